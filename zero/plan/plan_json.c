#include "zero/plan/plan.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/kernels/kernels.h"
#include "offload/direct_file.h"

#include <assert.h>
#include <jansson.h>

/** The version of the schema that zero(7) describes; it grows where fields change their meaning. */
enum { SCHEMA_VERSION = 1 };

/** null: none. */
static json_t *bytes_or_null(uint64_t bytes)
{
    return bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

/** The object with a value more; NULL: no memory for it, or for what was to have it. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) == 0)
        return object;
    json_decref(object);
    return NULL;
}

/** with() for an array. */
static json_t *with_next(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) == 0)
        return array;
    json_decref(array);
    return NULL;
}

static json_t *describe_spread(const struct eng_spread *spread)
{
    assert(spread->least <= spread->most && spread->most <= spread->sum);
    return json_pack("{s:I, s:I, s:I, s:I, s:i}", "bytes", (json_int_t)spread->mine, "min",
                     (json_int_t)spread->least, "max", (json_int_t)spread->most, "sum",
                     (json_int_t)spread->sum, "largest_rank", spread->largest);
}

static json_t *describe_model(const struct eng_plan_facts *facts)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:i}", "elements", (json_int_t)eng_model_elements(facts->model),
        "tensors", (json_int_t)facts->model->param_count, "units",
        (json_int_t)facts->layout->unit_count, "groups", (json_int_t)facts->model->group_count,
        "granules", (json_int_t)facts->layout->granules, "granule_elements", BASE_GRANULE);
}

/** null: there is none, or it is empty. */
static json_t *string_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static json_t *real_or_null(bool known, double value)
{
    return known ? json_real(value) : json_null();
}

/** null: nothing is offloaded from a GPU. */
static json_t *describe_updater(const struct eng_plan_facts *facts)
{
    const struct eng_updater *updater = facts->updater;
    const char *by = eng_config_updates_by(facts->config);
    if (!by)
        return json_null();
    return json_pack("{s:s, s:s?}", "by", by, "reason", *updater->why ? updater->why : NULL);
}

/** Why the transport is what it is; NULL: it was given, or follows from the ranks. */
static const char *reason_of(const struct eng_plan_facts *facts)
{
    const char *reason = facts->host.reason;
    if (!reason && facts->config->any_provider)
        return "ucx, if all hosts have it";
    return reason && *reason ? reason : NULL;
}

/** null: there is one host, or GPUs add. */
static json_t *describe_between(const struct eng_plan_between *between)
{
    if (!between->several)
        return json_null();
    return json_pack("{s:o, s:b, s:o, s:o}", "ranks_a_host",
                     between->ranks_a_host > 0 ? json_integer(between->ranks_a_host) : json_null(),
                     "partial_sums", between->sums, "reason", string_or_null(between->reason),
                     "gradient_bytes",
                     between->ranks_a_host > 0 ? bytes_or_null(between->bytes) : json_null());
}

static json_t *describe_choices(const struct eng_plan_facts *facts)
{
    const struct eng_config *config = facts->config;
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:s?, s:s?, s:o, s:o}", "kernels",
                     facts->kernels->name, "transport", config->transport, "gather",
                     eng_config_gather(config), "reduction", config->reduction, "sum_group",
                     config->sum_group, "micro_batches", config->micro_batches,
                     "micro_batches_per_rank", eng_config_rounds(config), "micro_batches_given",
                     eng_config_given(config, "micro_batches"), "private_memory",
                     facts->host.private_path, "transport_reason", reason_of(facts), "update",
                     describe_updater(facts), "between_hosts", describe_between(&facts->between));
}

/** An object of spreads: what each row, or each moment, needs. */
static json_t *describe_spreads(const struct eng_spread *spreads, const struct eng_plan_name *names,
                                int count)
{
    json_t *object = json_object();
    for (int i = 0; i < count; i++)
        object = with(object, names[i].key, describe_spread(&spreads[i]));
    return object;
}

/** What is copied to and from buffers of the caller's. */
static json_t *describe_borrowed(const struct eng_model *model)
{
    uint64_t work, gradients;
    eng_model_borrowed(model, &work, &gradients);
    return json_pack("{s:I, s:I}", "working_copies", (json_int_t)work, "gradients",
                     (json_int_t)gradients);
}

/** An object of what is in each file, whether there is one or not. */
static json_t *describe_each_file(const struct eng_plan *plan)
{
    json_t *object = json_object();
    for (int i = 0; i < ENG_FILES; i++) {
        const struct eng_plan_file *file = &plan->files[i];
        object = with(object, eng_file_names[i].key,
                      json_pack("{s:o, s:o, s:o}", "bytes", describe_spread(&file->bytes), "read",
                                describe_spread(&file->read), "written",
                                describe_spread(&file->written)));
    }
    return object;
}

/** What was measured here; null: nothing was. */
static json_t *describe_rates(const struct eng_plan_disk *disk, bool known)
{
    if (!known)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:s?, s:f, s:f}", "disk_bytes_s", disk->disk_rate,
                     "read_bytes_s", disk->read_rate, "latency_s", disk->latency_s,
                     "memory_bytes_s", disk->memory_rate, "update_bytes_s",
                     real_or_null(!disk->update.unknown, disk->update.bytes_s), "update_unknown",
                     disk->update.unknown, "compressed_to", disk->codec.ratio, "compress_bytes_s",
                     disk->codec.bytes_s);
}

/** So many units a rank gathers. */
static size_t gathered(const struct eng_plan_facts *facts)
{
    size_t units = 0;
    for (size_t u = 0; u < facts->layout->unit_count; u++)
        units += facts->placement->units[u].gather_bytes > 0;
    return units;
}

/** What a step is expected to take, added to the description of files; null: it is not known. */
static json_t *with_expectation(json_t *files, const struct eng_plan *plan,
                                const struct eng_plan_facts *facts)
{
    struct eng_expectation expected;
    const bool knows = eng_plan_expects(plan, facts->config, &expected);
    const bool computes = knows && !plan->disk.update.unknown;
    double unit_s;
    const int needed = eng_plan_prefetch(plan, facts->config, gathered(facts), &unit_s);
    assert(!knows || expected.limit < ENG_LIMITS);
    files = with(files, "disk_s", real_or_null(knows, expected.disk_s));
    files = with(files, "memory_s", real_or_null(knows, expected.memory_s));
    files = with(files, "compute_s", real_or_null(computes, expected.compute_s));
    files = with(files, "compresses", knows ? json_boolean(expected.compresses) : json_null());
    files = with(files, "compressed_disk_s", real_or_null(knows, expected.encoded_s));
    files = with(files, "compress_s", real_or_null(knows, expected.codec_s));
    files = with(files, "rates", describe_rates(&plan->disk, knows));
    files = with(files, "prefetch_units", json_integer(facts->config->prefetch_units));
    files = with(files, "prefetch_needed", needed > 0 ? json_integer(needed) : json_null());
    files = with(files, "prefetch_unit_s", real_or_null(needed > 0, unit_s));
    files = with(files, "step_s", real_or_null(knows, expected.step_s));
    return with(files, "limit",
                knows ? json_string(eng_limit_names[expected.limit].key) : json_null());
}

/** What moves files, and why nothing better does, added to the description of files. */
static json_t *with_engine(json_t *files, const struct eng_plan *plan,
                           const struct eng_config *config)
{
    const struct eng_plan_disk *disk = &plan->disk;
    const bool cached = disk->direct_unit > BASE_DIRECT_UNIT;
    char access[OFF_DIRECT_FILE_TEXT_BYTES];
    files = with(files, "io", json_string(config->io));
    files = with(files, "engine", string_or_null(disk->engine));
    files = with(files, "engine_passed", string_or_null(disk->engine_passed));
    files = with(files, "engine_passed_rank",
                 *disk->engine_passed && disk->passed_rank >= 0 ? json_integer(disk->passed_rank)
                                                                : json_null());
    files = with(files, "engine_ranks", string_or_null(disk->engine_ranks));
    files = with(files, "direct_unit",
                 disk->opened ? bytes_or_null(cached ? 0 : disk->direct_unit) : json_null());
    files = with(files, "access",
                 disk->opened ? json_string(off_direct_file_text(disk->direct_unit, access))
                              : json_null());
    files = with(files, "registers", bytes_or_null(eng_plan_registers(plan)));
    return with(files, "lock_limit", config->probe ? bytes_or_null(disk->lock_limit) : json_null());
}

/** null: there are none. */
static json_t *describe_files(const struct eng_plan *plan, const struct eng_plan_facts *facts)
{
    const struct eng_plan_files *files = &facts->files;
    uint64_t read, written;
    if (!plan->disk.directory)
        return json_null();
    eng_plan_moves(plan, &read, &written);
    json_t *object = json_pack(
        "{s:o, s:I, s:I, s:I, s:o, s:s, s:o, s:I, s:I, s:I, s:s?, s:s, s:s, s:i}", "bytes",
        describe_spread(&plan->in_files), "bytes_here",
        (json_int_t)eng_plan_of_host(plan, plan->in_files.sum), "read", (json_int_t)read, "written",
        (json_int_t)written, "files", describe_each_file(plan), "directory", plan->disk.directory,
        "found", plan->disk.known ? bytes_or_null(plan->disk.found) : json_null(), "tiles",
        (json_int_t)files->tiles, "tile_bytes", (json_int_t)files->tile_bytes, "buffers",
        (json_int_t)files->buffers, "pages", plan->disk.pages, "recovery", facts->config->recovery,
        "compress", facts->config->compress, "helpers",
        (int)eng_config_tile_threads(facts->config));
    return with_expectation(with_engine(object, plan, facts->config), plan, facts);
}

static json_t *describe_memory(const struct eng_plan *plan, const struct eng_plan_facts *facts)
{
    json_t *rows = describe_spreads(plan->rows, eng_purpose_names, ENG_PURPOSES);
    json_t *tiers = with(json_object(), "host", rows);
    if (plan->gpu_total.most > 0)
        tiers = with(tiers, "gpu", describe_spreads(plan->gpu, eng_gpu_names, ENG_GPU_PURPOSES));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:I, s:o, s:o}", "tiers", tiers, "nvme",
                     describe_files(plan, facts), "total", describe_spread(&plan->total),
                     "zero_save", describe_spread(&plan->saving), "zero_load",
                     describe_spread(&plan->loading), "working_copies_shared",
                     facts->config->shared, "gathered_units_shared", facts->config->host_slots,
                     "huge_pages", (json_int_t)facts->host.huge_bytes, "borrowed",
                     describe_borrowed(facts->model), "peaks",
                     describe_spreads(plan->peaks, eng_peak_names, ENG_PEAKS));
}

static json_t *describe_slots(const struct eng_slot_plan *slots)
{
    json_t *list = json_array();
    for (int c = 0; c < slots->class_count; c++)
        list = with_next(
            list, json_pack("{s:I, s:i, s:i}", "bytes", (json_int_t)slots->classes[c].bytes,
                            "slots", slots->classes[c].slots, "units", slots->classes[c].units));
    return list;
}

/** null: it is not known, or no rank has looked. */
static json_t *fits_or_null(enum eng_fits verdict)
{
    const bool known = verdict == ENG_FITS || verdict == ENG_FITS_NOT;
    return known ? json_boolean(verdict == ENG_FITS) : json_null();
}

/** null: all hosts have as many ranks. */
static json_t *describe_uneven(const struct eng_fit *fit)
{
    if (fit->most_ranks == 0)
        return json_null();
    return json_pack("{s:i, s:I, s:i, s:I}", "least_ranks", fit->least_ranks, "least_need",
                     (json_int_t)fit->least_needed, "most_ranks", fit->most_ranks, "most_need",
                     (json_int_t)fit->most_needed);
}

static json_t *describe_host(const struct eng_plan *plan)
{
    const struct eng_fit *fit = &plan->fit;
    const enum eng_peak worst = eng_plan_worst(plan);
    json_t *ranks = json_array();
    for (int r = 0; r < plan->world; r++)
        ranks = with_next(ranks, json_integer((json_int_t)plan->ranks[r]));
    return json_pack(
        "{s:i, s:i, s:o, s:o, s:I, s:I, s:s, s:i, s:o, s:s?, s:o, s:o, s:s?, s:o, s:o}", "ranks",
        plan->world, "ranks_here", eng_plan_ranks_here(plan), "uneven", describe_uneven(fit),
        "rank_bytes", ranks, "need", (json_int_t)plan->peaks[worst].sum, "need_here",
        (json_int_t)eng_plan_of_host(plan, plan->peaks[worst].sum), "need_at",
        eng_peak_names[worst].key, "largest_rank", plan->peaks[worst].largest, "fits",
        fits_or_null(fit->verdict), "limited_by", *fit->source ? fit->source : NULL, "limit",
        bytes_or_null(*fit->source ? fit->limit : UINT64_MAX), "left",
        bytes_or_null(*fit->source ? fit->left : UINT64_MAX), "reason",
        *fit->reason ? fit->reason : NULL, "memory_total", bytes_or_null(fit->host.total),
        "memory_available", bytes_or_null(fit->host.available));
}

/** null: the program computes on the host. */
static json_t *describe_gpu(const struct eng_plan *plan, const struct eng_config *config)
{
    const struct eng_gpu_fit *fit = &plan->gpu_fit;
    const bool known = fit->total > 0;
    if (plan->gpu_total.most == 0)
        return json_null();
    return json_pack("{s:i, s:I, s:o, s:o, s:o, s:s?, s:o, s:s?, s:b}", "ranks", fit->ranks, "need",
                     (json_int_t)fit->needed, "memory_free",
                     bytes_or_null(known ? fit->free : UINT64_MAX), "memory_total",
                     bytes_or_null(known ? fit->total : UINT64_MAX), "fits",
                     fits_or_null(fit->verdict), "reason", *fit->reason ? fit->reason : NULL,
                     "rank_need", describe_spread(&plan->gpu_total), "transport",
                     eng_config_moves(config) ? config->device_transport : NULL, "registered",
                     eng_config_registers(config));
}

static json_t *describe_config(const struct eng_config *config)
{
    struct eng_config_entry entry;
    json_t *object = json_object();
    for (int i = 0; eng_config_entry(config, i, &entry); i++)
        object = with(object, entry.key,
                      json_pack("{s:s, s:s}", "value", entry.value, "source", entry.source));
    return object;
}

json_t *eng_plan_describe(const struct eng_plan *plan, const struct eng_plan_facts *facts)
{
    const struct eng_config *config = facts->config;
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:i, s:i, s:i, s:o, s:o, s:o, s:{s:o, s:o, s:o}, "
                     "s:o, s:o, s:o}",
                     "schema", "zero-plan", "version", SCHEMA_VERSION, "library", zero_version(),
                     "name", config->name, "planned_only", config->plan, "rank", config->rank,
                     "world", config->world, "stage", config->stage, "model", describe_model(facts),
                     "choices", describe_choices(facts), "memory", describe_memory(plan, facts),
                     "slots", "gathered_units", describe_slots(&facts->placement->gather),
                     "gradients", describe_slots(&facts->placement->grads), "gradient_sums",
                     describe_slots(&facts->placement->sums), "host", describe_host(plan), "gpu",
                     describe_gpu(plan, config), "config", describe_config(config));
}

char *eng_plan_json(const json_t *plan)
{
    const size_t size = json_dumpb(plan, NULL, 0, JSON_INDENT(2));
    char *json = size > 0 ? base_calloc(size + 1, 1) : NULL;
    if (json && json_dumpb(plan, json, size, JSON_INDENT(2)) != size) {
        base_free(json);
        json = NULL;
    }
    return json;
}
