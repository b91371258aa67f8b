#include "zero/plan/plan.h"

#include "base/arena.h"
#include "base/kernels/kernels.h"
#include "base/text.h"
#include "offload/direct_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 32768 };

const char *eng_human(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 10240 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

static void write_model(struct base_text *text, const struct eng_plan_facts *facts)
{
    const struct eng_config *config = facts->config;
    base_text_add(text, "plan of rank %d of %d, stage %d", config->rank, config->world,
                  config->stage);
    if (strcmp(config->name, ENG_CONTEXT_NAME) != 0)
        base_text_add(text, ", context %s", config->name);
    base_text_add(text, "\n");
    base_text_add(text, "  model        %" PRIu64 " elements, %zu tensors, %zu units, %zu groups\n",
                  eng_model_elements(facts->model), facts->model->param_count,
                  facts->layout->unit_count, facts->model->group_count);
    base_text_add(text, "  layout       %zu granules of %d elements\n", facts->layout->granules,
                  ENG_GRANULE);
    base_text_add(text, "  micro-batches %d a step, at most %d a rank%s\n", config->micro_batches,
                  eng_config_rounds(config),
                  eng_config_given(config, "micro_batches")
                      ? ""
                      : ": as many as ranks at first, as micro_batches is not set");
    base_text_add(text, "  kernels      %s\n", facts->kernels->name);
}

/** The two choices that decide what travels, and why. */
static void write_choices(struct base_text *text, const struct eng_config *config)
{
    if (config->stage == 0)
        base_text_add(text,
                      "  gather       nothing: at stage 0 every rank updates a copy of its own\n");
    else if (config->shared)
        base_text_add(text,
                      "  gather       shared: one copy for the host's %d rank%s, updated in place "
                      "(gather=%s, transport %s)\n",
                      config->world, config->world > 1 ? "s" : "", config->gather,
                      config->transport);
    else
        base_text_add(text,
                      "  gather       copy: every rank copies what others have updated "
                      "(gather=%s%s)\n",
                      config->gather,
                      config->params_nvme ? ", offload_params=nvme"
                      : config->resident  ? ", state is on the device"
                                          : "");
    if (config->local)
        base_text_add(text,
                      "  reduction    local: each rank adds up its own micro-batches; the "
                      "same bits at %d ranks only\n",
                      config->world);
    else if (config->sum_group > 1)
        base_text_add(text, "  reduction    canonical, blocks of %d micro-batches first\n",
                      config->sum_group);
    else
        base_text_add(text, "  reduction    canonical, in the order of the micro-batches\n");
}

/** Who updates what is offloaded, and why. */
static void write_updater(struct base_text *text, const struct eng_plan_facts *facts)
{
    const struct eng_updater *updater = facts->updater;
    const char *by = eng_plan_updater(facts->config);
    if (!by)
        return;
    base_text_add(text, "  update       by the %s: offload_update=%s", by,
                  facts->config->offload_update);
    if (*updater->why)
        base_text_add(text, ", %s", updater->why);
    base_text_add(text, "\n");
}

/** What is kept, or travels, in fewer bits than the tensors ask for. */
static void write_precision(struct base_text *text, const struct eng_config *config)
{
    if (config->comm_dtype != ZERO_DTYPE_DEFAULT)
        base_text_add(text, "  gradients    travel as %s, rounded to nearest\n",
                      eng_dtype_name(config->comm_dtype));
    if (config->no_masters)
        base_text_add(text, "  weights      of bf16 and f16 tensors have no masters: rounded "
                            "stochastically at every update\n");
    if (config->moment_dtype != ZERO_F32)
        base_text_add(text, "  moments      %s, rounded stochastically at every update\n",
                      eng_dtype_name(config->moment_dtype));
}

static void write_transport(struct base_text *text, const struct eng_plan_facts *facts)
{
    char size[32];
    if (facts->host.private_path)
        base_text_add(text, "  transport    %s, private memory: %s\n", facts->config->transport,
                      facts->host.private_path);
    if (facts->host.huge_bytes)
        base_text_add(text, "  huge pages   %s\n", eng_human(facts->host.huge_bytes, size));
    if (eng_config_registers(facts->config))
        base_text_add(text, "  GPU memory   registered by NCCL%s: device_register=%s\n",
                      strcmp(facts->config->device_register, "on") ? ", where all ranks can" : "",
                      facts->config->device_register);
}

static void write_row(struct base_text *text, const char *title, const char *tier, size_t bytes)
{
    char size[32];
    base_text_add(text, "  %-34s %-6s %16zu  %s\n", title, tier, bytes, eng_human(bytes, size));
}

static void write_memory(struct base_text *text, const struct eng_plan *plan,
                         const struct eng_config *config)
{
    base_text_add(text, "memory, bytes of this rank\n");
    for (int i = 0; i < ENG_PURPOSES; i++)
        write_row(text,
                  i == ENG_FOR_PARAMS && config->shared ? "working copies, shared by the host"
                                                        : eng_purpose_names[i].title,
                  "host", plan->rows[i].mine);
    write_row(text, "total", "", plan->total.mine);
    for (int i = 0; config->on_device && i < ENG_GPU_PURPOSES; i++)
        write_row(text, eng_gpu_names[i].title, "gpu", plan->gpu[i].mine);
    if (config->on_device)
        write_row(text, "total", "gpu", plan->gpu_total.mine);
    if (eng_config_moves(config) && !strcmp(config->device_transport, "nccl"))
        base_text_add(text, "  %-34s %-6s %16s  %s\n", "NCCL's own buffers", "gpu", "unknown",
                      "before they are there, and not counted");
    write_row(text, "zero_save, from its first call on", "", plan->saving.mine);
    write_row(text, "zero_load, while it loads", "", plan->loading.mine);
    base_text_add(text, "at most, bytes of this rank\n");
    for (int i = 0; i < ENG_PEAKS; i++)
        write_row(text, eng_peak_names[i].title, "host", plan->peaks[i].mine);
}

/** Whether tiles will be compressed, and why. */
static void write_compression(struct base_text *text, const struct eng_plan *plan,
                              const struct eng_config *config)
{
    struct eng_expectation expected;
    char rate[32];
    base_text_add(text, "  compress     %s", config->compress);
    if (strcmp(config->compress, "off") != 0)
        base_text_add(text, ", by %u thread%s", eng_config_tile_threads(config),
                      eng_config_tile_threads(config) > 1 ? "s" : "");
    if (!eng_plan_expects(plan, config, &expected))
        base_text_add(text, "%s\n",
                      strcmp(config->compress, "auto") ? "" : ": the first updates decide");
    else if (strcmp(config->compress, "off") == 0)
        base_text_add(text, ": with it the disk would take about %.3g s, and compressing %.3g s\n",
                      expected.encoded_s, expected.codec_s);
    else
        base_text_add(text, ": to %.3g of state's bytes, %s a second and thread: about %.3g s%s\n",
                      plan->disk.codec.ratio, eng_human((uint64_t)plan->disk.codec.bytes_s, rate),
                      expected.codec_s,
                      strcmp(config->compress, "on") == 0 ? ""
                      : expected.compresses ? "; the first updates decide, most likely for it"
                                            : "; the first updates decide, most likely against it");
}

/** What an update will take of memory and of processors. */
static void write_update(struct base_text *text, const struct eng_plan_disk *disk,
                         const struct eng_expectation *expected)
{
    char rate[32];
    base_text_add(
        text, "  in memory    about %.3g s, as a rank copies %s a second when all of the host do\n",
        expected->memory_s, eng_human((uint64_t)disk->memory_rate, rate));
    if (disk->update.unknown)
        base_text_add(text, "  computing    not known: %s\n", disk->update.unknown);
    else
        base_text_add(text,
                      "  computing    about %.3g s, as a rank updates %s of state a second in its "
                      "caches when all do\n",
                      expected->compute_s, eng_human((uint64_t)disk->update.bytes_s, rate));
}

/** Whether working copies are there when they are gathered. */
static void write_prefetch(struct base_text *text, const struct eng_plan *plan,
                           const struct eng_plan_facts *facts)
{
    double unit_s;
    const int units = facts->config->prefetch_units;
    const int needed = eng_plan_prefetch(plan, facts->config, eng_plan_gathered(facts), &unit_s);
    if (needed == 0)
        return;
    base_text_add(
        text,
        "  prefetch     %d unit%s ahead, %s: one is read in about %.3g s, and begins %.3g s "
        "late",
        units, units == 1 ? "" : "s", units >= needed ? "enough" : "too few", unit_s,
        plan->disk.latency_s);
    if (units < needed)
        base_text_add(text, "; prefetch_units=%d would be enough", needed);
    base_text_add(text, "\n");
}

/** What a step will take, beside whatever else it does. */
static void write_expectation(struct base_text *text, const struct eng_plan *plan,
                              const struct eng_config *config)
{
    struct eng_expectation expected;
    uint64_t read, written;
    char from[32], to[32], rate[32];
    if (!eng_plan_expects(plan, config, &expected))
        return;
    eng_plan_moves(plan, &read, &written);
    base_text_add(text,
                  "  a step       %s read and %s written by all ranks: about %.3g s, as the disk "
                  "moves %s a second\n",
                  eng_human(read, from), eng_human(written, to), expected.disk_s,
                  eng_human((uint64_t)plan->disk.disk_rate, rate));
    if (expected.compresses)
        base_text_add(text, "  compressed   about %.3g s\n", expected.encoded_s);
    if (plan->files[ENG_FILE_PARAMS].read.sum > 0)
        base_text_add(text,
                      "  of it        %s read of working copies, if each unit is gathered twice "
                      "in a micro-batch\n",
                      eng_human(plan->files[ENG_FILE_PARAMS].read.sum, from));
    write_update(text, &plan->disk, &expected);
    base_text_add(text,
                  "  expected     about %.3g s a step, beside forward and backward; the limit is "
                  "%s\n",
                  expected.step_s, eng_limit_names[expected.limit].title);
}

/** What moves it, and why not something better. */
static void write_io(struct base_text *text, const struct eng_plan *plan,
                     const struct eng_config *config)
{
    const struct eng_plan_disk *disk = &plan->disk;
    const bool registers = disk->engine && strncmp(disk->engine, "uring", 6) == 0;
    char access[OFF_DIRECT_FILE_TEXT_BYTES], needed[32], limit[32];
    base_text_add(text, "  io           %s", disk->engine ? disk->engine : config->io);
    if (disk->opened)
        base_text_add(text, ", %s", off_direct_file_text(disk->direct_unit, access));
    base_text_add(text, "\n");
    if (*disk->engine_passed) {
        base_text_add(text, "  io=auto      has nothing better");
        if (disk->passed_rank >= 0)
            base_text_add(text, " on rank %d", disk->passed_rank);
        base_text_add(text, ": %s\n", disk->engine_passed);
    }
    if (*disk->engine_ranks)
        base_text_add(text, "  io of ranks  %s\n", disk->engine_ranks);
    if (config->plan && registers && eng_plan_registers(plan) > disk->lock_limit)
        base_text_add(text,
                      "  locking      %s by this host's ranks, of which a user may lock %s "
                      "(ulimit -l): not all of them will have it\n",
                      eng_human(eng_plan_registers(plan), needed),
                      eng_human(disk->lock_limit, limit));
}

/** State in files: how much, where, and by what it moves. */
static void write_files(struct base_text *text, const struct eng_plan *plan,
                        const struct eng_plan_facts *facts)
{
    const struct eng_config *config = facts->config;
    const struct eng_plan_files *files = &facts->files;
    char size[32], left[32];
    if (!config->nvme)
        return;
    base_text_add(text, "on NVMe, bytes of this rank\n");
    for (int i = 0; i < ENG_FILES; i++)
        if (plan->files[i].bytes.sum > 0)
            write_row(text, eng_file_names[i].title, "nvme", plan->files[i].bytes.mine);
    base_text_add(text, "  directory    %s", config->nvme_dir);
    if (plan->disk.known)
        base_text_add(text, ": %s for all ranks%s, %s free",
                      eng_human(eng_plan_of_host(plan, plan->in_files.sum), size),
                      eng_plan_ranks_here(plan) < plan->world ? " of this host" : "",
                      eng_human(plan->disk.found, left));
    base_text_add(text, "\n  tiles        %zu of at most %s, %zu of them in memory at once",
                  files->tiles, eng_human(files->tile_bytes, size), files->buffers);
    if (plan->disk.pages)
        base_text_add(text, ", in %s", plan->disk.pages);
    base_text_add(text, "\n");
    write_io(text, plan, config);
    write_compression(text, plan, config);
    write_expectation(text, plan, config);
    write_prefetch(text, plan, facts);
    base_text_add(text, "  recovery     %s\n",
                  strcmp(config->recovery, "durable") == 0
                      ? "a finished step survives the death of all processes, and a power cut"
                      : "a finished step survives the death of all processes");
}

static void write_fit(struct base_text *text, const struct eng_fit *fit)
{
    char left[32], limit[32];
    if (*fit->source)
        base_text_add(text, "  memory       %s left of %s: %s\n", eng_human(fit->left, left),
                      eng_human(fit->limit, limit), fit->source);
    base_text_add(text, "  fits         %s%s%s\n",
                  fit->verdict == ENG_FITS_UNCHECKED ? "not checked: memory_limit=off"
                  : fit->verdict == ENG_FITS         ? "yes"
                                                     : "no",
                  *fit->reason ? ": " : "", fit->reason);
}

/** What is copied because the caller keeps buffers of its own, which no row has. */
static void write_borrowed(struct base_text *text, const struct eng_model *model)
{
    uint64_t work, gradients;
    eng_model_borrowed(model, &work, &gradients);
    if (work)
        base_text_add(text,
                      "  borrow       %" PRIu64 " bytes of working copies are copied to the "
                      "caller's memory after an update\n",
                      work);
    if (gradients)
        base_text_add(text,
                      "  grad         %" PRIu64 " bytes of gradients are copied from the caller's "
                      "memory in a micro-batch\n",
                      gradients);
}

static void write_host(struct base_text *text, const struct eng_plan *plan)
{
    char sum[32], least[32], most[32];
    const struct eng_spread *worst = &plan->peaks[eng_plan_worst(plan)];
    const int ranks = eng_plan_ranks_here(plan);
    base_text_add(text, "the host's %d ", ranks);
    if (ranks < plan->world)
        base_text_add(text, "of %d ", plan->world);
    base_text_add(text, "rank%s together\n", plan->world > 1 ? "s" : "");
    base_text_add(text, "  need         %s", eng_human(eng_plan_of_host(plan, worst->sum), sum));
    if (plan->world > 1)
        base_text_add(text, ", each from %s to %s (rank %d)", eng_human(worst->least, least),
                      eng_human(worst->most, most), worst->largest);
    base_text_add(text, "\n");
    write_fit(text, &plan->fit);
}

/** Whether this rank's GPU has what is needed there. */
static void write_gpu(struct base_text *text, const struct eng_plan *plan)
{
    const struct eng_gpu_fit *fit = &plan->gpu_fit;
    char needed[32], least[32], most[32], free[32], total[32];
    base_text_add(text, "the GPU of this rank\n  need         %s by %d rank%s",
                  eng_human(fit->needed, needed), fit->ranks, fit->ranks > 1 ? "s" : "");
    if (plan->world > 1)
        base_text_add(text, ", each rank of all from %s to %s (rank %d)",
                      eng_human(plan->gpu_total.least, least),
                      eng_human(plan->gpu_total.most, most), plan->gpu_total.largest);
    base_text_add(text, "\n");
    if (fit->total > 0)
        base_text_add(text, "  memory       %s free of %s\n", eng_human(fit->free, free),
                      eng_human(fit->total, total));
    base_text_add(text, "  fits         %s%s%s\n",
                  fit->verdict == ENG_FITS_UNCHECKED ? "not checked: memory_limit=off"
                  : fit->verdict == ENG_FITS         ? "yes"
                  : fit->verdict == ENG_FITS_NOT     ? "no"
                                                     : "unknown",
                  *fit->reason ? ": " : "", fit->reason);
    base_text_add(text, "  not counted  what NCCL, cuBLAS and other libraries take there, and the "
                        "program itself\n");
}

static void write_slots(struct base_text *text, const char *what, const struct eng_slot_plan *slots)
{
    char size[32];
    for (int c = 0; c < slots->class_count; c++)
        base_text_add(text, "  %-18s %3d of %s for %d units\n", what, slots->classes[c].slots,
                      eng_human(slots->classes[c].bytes, size), slots->classes[c].units);
}

char *eng_plan_text(const struct eng_plan *plan, const struct eng_plan_facts *facts)
{
    struct base_text text = {base_calloc(ROOM, 1), ROOM, 0};
    if (!text.bytes)
        return NULL;
    write_model(&text, facts);
    write_choices(&text, facts->config);
    write_updater(&text, facts);
    write_precision(&text, facts->config);
    write_borrowed(&text, facts->model);
    write_transport(&text, facts);
    write_memory(&text, plan, facts->config);
    write_files(&text, plan, facts);
    write_host(&text, plan);
    if (facts->config->on_device)
        write_gpu(&text, plan);
    base_text_add(&text, "slots\n");
    write_slots(&text, "gathered units", &facts->placement->gather);
    write_slots(&text, "gradients", &facts->placement->grads);
    write_slots(&text, "gradient sums", &facts->placement->sums);
    base_text_add(&text, "configuration\n");
    eng_config_text(facts->config, text.bytes + text.used, text.size - text.used);
    return text.bytes;
}
