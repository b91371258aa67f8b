#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>

/* ------------------------------------------------------------------ of any manifest */

uint64_t tool_elements(const struct ckpt_table_tensor *tensor)
{
    return tensor->slices * tensor->numel;
}

uint64_t tool_tensor_bytes(const struct ckpt_table_tensor *tensor)
{
    uint64_t bytes = 0;
    for (int f = 0; f < tensor->fields; f++)
        bytes += tool_elements(tensor) * tool_dtype_bytes(tensor->field[f]);
    return bytes;
}

// Of all ranks' together.
static uint64_t blob_bytes(const struct ckpt_manifest *manifest, const struct ckpt_blob *blob)
{
    uint64_t bytes = 0;
    for (size_t r = 0; r < (blob->of_rank ? manifest->world : 1); r++)
        bytes += blob->bytes[r];
    return bytes;
}

uint64_t tool_plain_bytes(const struct ckpt_manifest *manifest)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < manifest->tensor_count; t++)
        bytes += tool_tensor_bytes(&manifest->tensors[t]);
    for (size_t b = 0; b < manifest->blob_count; b++)
        bytes += blob_bytes(manifest, &manifest->blobs[b]);
    return bytes;
}

uint64_t tool_stored_bytes(const struct ckpt_manifest *manifest)
{
    uint64_t bytes = 0;
    for (size_t r = 0; r < manifest->world; r++)
        bytes += manifest->shards[r].bytes;
    return bytes;
}

struct tool_shape tool_shape(const struct ckpt_table_tensor *tensor)
{
    struct tool_shape out = {"1"};
    struct base_text text = {out.text, sizeof out.text, 0};
    for (int d = 0; d < tensor->ndim; d++)
        base_text_add(&text, "%s%" PRIu64, d ? "x" : "", tensor->shape[d]);
    return out;
}

/* ------------------------------------------------------------------ what is in the shards */

struct inspection {
    const struct tool_options *options;
    const struct tool_place *place;
    struct ckpt_manifest manifest;
    uint64_t *stored; /**< bytes of each tensor in the shards, as far as these can be read */
    json_t *damage;   /**< messages */
};

static void add_blocks(struct inspection *inspection, const struct ckpt_shard *shard, size_t rank)
{
    const struct ckpt_run *runs = inspection->manifest.shards[rank].runs;
    for (size_t b = 0; b < ckpt_shard_blocks(shard); b++) {
        const struct ckpt_block_place place = ckpt_shard_place(shard, b);
        if (place.run != SIZE_MAX)
            inspection->stored[runs[place.run].tensor] +=
                ckpt_stored_bytes(place.block->plane_bytes);
    }
}

// A shard that can't be read is one piece of damage; only lack of memory ends it.
static zero_result read_shards(struct inspection *inspection, struct base_error *error)
{
    const struct tool_place *place = inspection->place;
    zero_result result = ZERO_OK;
    for (size_t r = 0; r < inspection->manifest.world && !result; r++) {
        struct base_error damage = {.result = ZERO_OK};
        char path[CKPT_PATH_BYTES];
        struct ckpt_shard *shard = NULL;
        result = ckpt_shard_path(path, place->directory, place->step, (uint32_t)r, &damage);
        if (!result)
            result = ckpt_shard_open(&shard, &ckpt_store_posix, path, &inspection->manifest,
                                     (uint32_t)r, &damage);
        if (!result)
            add_blocks(inspection, shard, r);
        ckpt_shard_close(shard);
        if (result == ZERO_E_NOMEM)
            return zero_fail(error, result, "%s", damage.message);
        if (result)
            inspection->damage =
                tool_json_append(inspection->damage, tool_json_text(damage.message));
        result = inspection->damage ? ZERO_OK
                                    : zero_fail(error, ZERO_E_NOMEM, "no memory for a message");
    }
    return result;
}

static bool is_damaged(const struct inspection *inspection)
{
    return json_array_size(inspection->damage) > 0;
}

// 0: not known, as some of it can't be read.
static uint64_t stored_of(const struct inspection *inspection, size_t tensor)
{
    return is_damaged(inspection) ? 0 : inspection->stored[tensor];
}

/* ------------------------------------------------------------------ as text */

static void add_scale(struct tool_table *table, const struct ckpt_state *state)
{
    if (!state->has_loss_scale)
        tool_table_add(table, TOOL_PLAIN, "loss scale\tnone");
    else
        tool_table_add(table, TOOL_PLAIN, "loss scale\t%g, %s, %" PRIu64 " clean steps",
                       state->loss_scale, state->loss_scale_dynamic ? "dynamic" : "fixed",
                       state->loss_scale_clean);
}

static zero_result print_head(const struct inspection *inspection, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    const struct ckpt_state *state = &manifest->state;
    const uint64_t plain = tool_plain_bytes(manifest), stored = tool_stored_bytes(manifest);
    struct tool_table table = {.columns = 2};
    tool_table_add(&table, TOOL_PLAIN, "checkpoint\t%s/step-%08" PRIu64,
                   inspection->place->directory, state->step);
    for (size_t i = 0; i < json_array_size(inspection->damage); i++)
        tool_table_add(&table, TOOL_RED, "damage\t%s",
                       json_string_value(json_array_get(inspection->damage, i)));
    tool_table_add(&table, TOOL_PLAIN, "step\t%" PRIu64 ", after %" PRIu64 " updates", state->step,
                   state->updates);
    tool_table_add(&table, TOOL_PLAIN, "skipped\t%" PRIu64 " in a row", state->skips);
    tool_table_add(&table, TOOL_PLAIN, "created\t%s, by zero %s", manifest->created,
                   manifest->library);
    tool_table_add(&table, TOOL_PLAIN, "job\t%s", manifest->job);
    tool_table_add(&table, TOOL_PLAIN, "run\t%s%s", tool_hex(manifest->run.bytes, 16).text,
                   manifest->run_told ? "" : " (derived: the file does not say it)");
    tool_table_add(&table, TOOL_PLAIN, "ranks\t%zu, stage %d", manifest->world, state->stage);
    tool_table_add(&table, TOOL_PLAIN, "batch\t%" PRIu64 " micro-batches, sum_group %" PRIu64,
                   state->micro_batches, state->sum_group);
    tool_table_add(&table, TOOL_PLAIN, "reduction\t%s, comm_dtype %s",
                   state->local ? "local" : "canonical", tool_dtype(state->comm_dtype));
    tool_table_add(&table, TOOL_PLAIN, "seed\t%" PRIu64, state->seed);
    add_scale(&table, state);
    tool_table_add(&table, TOOL_PLAIN, "fingerprint\t%s", tool_hex(state->fingerprint, 16).text);
    tool_table_add(&table, TOOL_PLAIN, "identity\t%s", tool_hex(manifest->id, 16).text);
    tool_table_add(&table, TOOL_PLAIN, "size\t%s of %s, ratio %s, level %d", tool_size(stored).text,
                   tool_size(plain).text, tool_ratio(plain, stored).text, manifest->level);
    return tool_table_print(&table, inspection->options, error);
}

static zero_result print_groups(const struct inspection *inspection, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    struct tool_table table = {.columns = 6};
    tool_table_add(&table, TOOL_BOLD, ">GROUP\tOPTIMIZER\tDECAY\tFROZEN\tHYPER-PARAMETERS\tNAME");
    for (size_t g = 0; g < manifest->group_count; g++) {
        const struct ckpt_group *group = &manifest->groups[g];
        char hyper[CKPT_MAX_HYPER * 64] = "-";
        struct base_text text = {hyper, sizeof hyper, 0};
        for (int h = 0; h < group->hypers; h++)
            base_text_add(&text, "%s%s=%.9g", h ? "," : "", group->hyper[h].name,
                          group->hyper[h].value);
        tool_table_add(&table, TOOL_PLAIN, "%zu\t%s%s\t%s\t%s\t%s\t%s", g, group->optimizer,
                       group->nesterov ? ",nesterov" : "", group->decay,
                       group->frozen ? "yes" : "no", hyper, group->name);
    }
    return tool_table_print(&table, inspection->options, error);
}

static zero_result print_tensors(const struct inspection *inspection, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    struct tool_table table = {.columns = 10};
    tool_table_add(&table, TOOL_BOLD,
                   "SHAPE\t>SLICES\tDTYPE\tGRADIENT\tFIELDS\t>GROUP\t>SIZE\t>RATIO\tSUM\tTENSOR");
    for (size_t t = 0; t < manifest->tensor_count; t++) {
        const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
        const uint64_t plain = tool_tensor_bytes(tensor);
        char fields[CKPT_MAX_FIELDS * 8];
        struct base_text text = {fields, sizeof fields, 0};
        for (int f = 0; f < tensor->fields; f++)
            base_text_add(&text, "%s%s", f ? "," : "", tool_dtype(tensor->field[f]));
        tool_table_add(&table, TOOL_PLAIN, "%s\t%" PRIu64 "\t%s\t%s\t%s\t%u\t%s\t%s\t%.12s\t%s",
                       tool_shape(tensor).text, tensor->slices, tool_dtype(tensor->dtype),
                       tensor->trains ? tool_dtype(tensor->grad_dtype) : "-", fields, tensor->group,
                       tool_size(plain).text, tool_ratio(plain, stored_of(inspection, t)).text,
                       tool_sum(tensor->sum).text, tensor->name);
    }
    return tool_table_print(&table, inspection->options, error);
}

static zero_result print_blobs(const struct inspection *inspection, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    struct tool_table table = {.columns = 3};
    if (manifest->blob_count > 0)
        tool_table_add(&table, TOOL_BOLD, "SCOPE\t>SIZE\tBLOB");
    for (size_t b = 0; b < manifest->blob_count; b++) {
        const struct ckpt_blob *blob = &manifest->blobs[b];
        tool_table_add(&table, TOOL_PLAIN, "%s\t%s\t%s", blob->of_rank ? "rank" : "global",
                       tool_size(blob_bytes(manifest, blob)).text, blob->name);
    }
    return tool_table_print(&table, inspection->options, error);
}

static zero_result print_shards(const struct inspection *inspection, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    struct tool_table table = {.columns = 4};
    tool_table_add(&table, TOOL_BOLD, ">SIZE\t>RUNS\t>ELEMENTS\tSHARD");
    for (size_t r = 0; r < manifest->world; r++) {
        const struct ckpt_shard_entry *shard = &manifest->shards[r];
        char name[CKPT_SHARD_NAME];
        uint64_t elements = 0;
        for (size_t i = 0; i < shard->run_count; i++)
            elements += shard->runs[i].count;
        ckpt_shard_name((uint32_t)r, name);
        tool_table_add(&table, TOOL_PLAIN, "%s\t%zu\t%" PRIu64 "\t%s", tool_size(shard->bytes).text,
                       shard->run_count, elements, name);
    }
    return tool_table_print(&table, inspection->options, error);
}

static zero_result print_text(const struct inspection *inspection, struct base_error *error)
{
    static zero_result (*const parts[])(const struct inspection *, struct base_error *) = {
        print_head, print_groups, print_tensors, print_blobs, print_shards};
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !result; i++) {
        // An empty line between them, but none for what is not there.
        if (i > 0 && (parts[i] != print_blobs || inspection->manifest.blob_count > 0))
            putchar('\n');
        result = parts[i](inspection, error);
    }
    return result;
}

/* ------------------------------------------------------------------ as JSON */

static json_t *describe_scale(const struct ckpt_state *state)
{
    return state->has_loss_scale ? json_pack("{s:f, s:b, s:o}", "value", state->loss_scale,
                                             "dynamic", (int)state->loss_scale_dynamic, "clean",
                                             tool_json_number(state->loss_scale_clean))
                                 : json_null();
}

static json_t *describe_groups(const struct ckpt_manifest *manifest)
{
    json_t *array = json_array();
    for (size_t g = 0; g < manifest->group_count; g++) {
        const struct ckpt_group *group = &manifest->groups[g];
        json_t *hyper = json_object();
        for (int h = 0; h < group->hypers; h++)
            hyper = tool_json_set(hyper, group->hyper[h].name, json_real(group->hyper[h].value));
        array = tool_json_append(
            array, json_pack("{s:o, s:s, s:s, s:b, s:b, s:o}", "name", tool_json_text(group->name),
                             "optimizer", group->optimizer, "decay", group->decay, "nesterov",
                             (int)group->nesterov, "frozen", (int)group->frozen, "hyper", hyper));
    }
    return array;
}

static json_t *describe_tensor(const struct inspection *inspection, size_t t)
{
    const struct ckpt_table_tensor *tensor = &inspection->manifest.tensors[t];
    const uint64_t stored = stored_of(inspection, t);
    json_t *shape = json_array(), *fields = json_array();
    for (int d = 0; d < tensor->ndim; d++)
        shape = tool_json_append(shape, tool_json_number(tensor->shape[d]));
    for (int f = 0; f < tensor->fields; f++)
        fields = tool_json_append(fields, json_string(tool_dtype(tensor->field[f])));
    return json_pack(
        "{s:o, s:o, s:o, s:s, s:s, s:I, s:b, s:o, s:o, s:o, s:s}", "name",
        tool_json_text(tensor->name), "shape", shape, "slices", tool_json_number(tensor->slices),
        "dtype", tool_dtype(tensor->dtype), "grad_dtype", tool_dtype(tensor->grad_dtype), "group",
        (json_int_t)tensor->group, "trains", (int)tensor->trains, "fields", fields, "plain_bytes",
        tool_json_number(tool_tensor_bytes(tensor)), "stored_bytes",
        stored ? tool_json_number(stored) : json_null(), "sum", tool_sum(tensor->sum).text);
}

static json_t *describe_blobs(const struct ckpt_manifest *manifest)
{
    json_t *array = json_array();
    for (size_t b = 0; b < manifest->blob_count; b++) {
        const struct ckpt_blob *blob = &manifest->blobs[b];
        array =
            tool_json_append(array, json_pack("{s:o, s:s, s:o}", "name", tool_json_text(blob->name),
                                              "scope", blob->of_rank ? "rank" : "global", "bytes",
                                              tool_json_number(blob_bytes(manifest, blob))));
    }
    return array;
}

static json_t *describe_shards(const struct ckpt_manifest *manifest)
{
    json_t *array = json_array();
    for (size_t r = 0; r < manifest->world; r++) {
        const struct ckpt_shard_entry *shard = &manifest->shards[r];
        char name[CKPT_SHARD_NAME];
        ckpt_shard_name((uint32_t)r, name);
        array = tool_json_append(array, json_pack("{s:s, s:o, s:I}", "file", name, "bytes",
                                                  tool_json_number(shard->bytes), "runs",
                                                  (json_int_t)shard->run_count));
    }
    return array;
}

static json_t *describe(const struct inspection *inspection)
{
    const struct ckpt_manifest *manifest = &inspection->manifest;
    const struct ckpt_state *state = &manifest->state;
    char seed[17];
    snprintf(seed, sizeof seed, "%016" PRIx64, state->seed);
    json_t *tensors = json_array();
    for (size_t t = 0; t < manifest->tensor_count; t++)
        tensors = tool_json_append(tensors, describe_tensor(inspection, t));
    json_t *root = tool_json_root("inspect");
    json_t *rest = json_pack(
        "{s:o, s:O, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:i, s:s, s:s, s:s, s:o, s:s, s:s, "
        "s:i, s:o, s:s, s:o, s:o, s:o, s:o, s:o}",
        "directory", tool_json_text(inspection->place->directory), "damage", inspection->damage,
        "step", tool_json_number(state->step), "updates", tool_json_number(state->updates), "skips",
        tool_json_number(state->skips), "created", tool_json_text(manifest->created), "library",
        tool_json_text(manifest->library), "micro_batches", tool_json_number(state->micro_batches),
        "sum_group", tool_json_number(state->sum_group), "world", (json_int_t)manifest->world,
        "stage", state->stage, "reduction", state->local ? "local" : "canonical", "comm_dtype",
        tool_dtype(state->comm_dtype), "seed", seed, "loss_scale", describe_scale(state),
        "fingerprint", tool_hex(state->fingerprint, 16).text, "id", tool_hex(manifest->id, 16).text,
        "level", manifest->level, "job", tool_json_text(manifest->job), "run",
        tool_hex(manifest->run.bytes, 16).text, "plain_bytes",
        tool_json_number(tool_plain_bytes(manifest)), "stored_bytes",
        tool_json_number(tool_stored_bytes(manifest)), "groups", describe_groups(manifest), "blobs",
        describe_blobs(manifest), "shards", describe_shards(manifest));
    rest = tool_json_set(rest, "tensors", tensors);
    if (json_object_update(root, rest)) {
        json_decref(root);
        root = NULL;
    }
    json_decref(rest);
    return root;
}

/* ------------------------------------------------------------------ the command */

static zero_result inspect(struct inspection *inspection, struct base_error *error)
{
    const struct tool_place *place = inspection->place;
    zero_result result = ckpt_read_manifest(&inspection->manifest, &ckpt_store_posix,
                                            place->directory, place->step, error);
    if (result)
        return result;
    inspection->stored = base_calloc(inspection->manifest.tensor_count, sizeof *inspection->stored);
    if (!inspection->stored)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu tensors",
                         inspection->manifest.tensor_count);
    result = read_shards(inspection, error);
    if (result)
        return result;
    return inspection->options->json ? tool_json_print(describe(inspection), error)
                                     : print_text(inspection, error);
}

zero_result tool_inspect(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct tool_place place;
    struct inspection inspection = {.options = options, .place = &place, .damage = json_array()};
    zero_result result = tool_place_open(&place, options->paths[0], error);
    if (!result)
        result = inspect(&inspection, error);
    tool_place_close(&place);
    *found = is_damaged(&inspection);
    ckpt_manifest_free(&inspection.manifest);
    base_free(inspection.stored);
    json_decref(inspection.damage);
    return result;
}
