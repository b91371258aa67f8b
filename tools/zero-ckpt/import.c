#include "tools/zero-ckpt/import.h"

#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ values */

// `first` is the first one's number in the tensor.
static zero_result narrow(const struct ckpt_tensor *from, enum ckpt_dtype dtype, uint64_t first,
                          const float *values, size_t count, void *out, struct base_error *error)
{
    uint16_t *halves = out;
    for (size_t i = 0; i < count; i++) {
        if (dtype == CKPT_BF16 ? base_beyond_bf16(values[i]) : base_beyond_f16(values[i]))
            return zero_fail(error, ZERO_E_INVALID,
                             "element %" PRIu64 " of tensor '%.80s' is %g, which %s has not",
                             first + i, from->name, (double)values[i], tool_dtype(dtype));
        halves[i] =
            dtype == CKPT_BF16 ? base_bf16_from_f32(values[i]) : base_f16_from_f32(values[i]);
    }
    return ZERO_OK;
}

// Of weights that have masters a job makes a working copy, of another type.
static zero_result check_working(const struct ckpt_table_tensor *tensor,
                                 const struct ckpt_tensor *from, uint64_t first,
                                 const float *values, uint64_t count, struct base_error *error)
{
    for (uint64_t i = 0; i < count; i++)
        if (tensor->dtype == CKPT_BF16 ? base_beyond_bf16(values[i]) : base_beyond_f16(values[i]))
            return zero_fail(error, ZERO_E_INVALID,
                             "element %" PRIu64 " of tensor '%.80s' is %g, which %s, the type of "
                             "the working copy, has not",
                             first + i, from->name, (double)values[i], tool_dtype(tensor->dtype));
    return ZERO_OK;
}

static zero_result read_wide(const struct import *job, size_t tensor, int field,
                             const struct ckpt_tensor *from, uint64_t at, uint64_t count, void *out,
                             struct base_error *error)
{
    const struct ckpt_table_tensor *like = &job->manifest.tensors[tensor];
    const zero_result result = ckpt_safetensors_read_f32(job->file, from, at, count, out, error);
    // A whole state is what a job had.
    if (result || !job->like || field > 0 || like->dtype == CKPT_F32)
        return result;
    return check_working(like, from, at, out, count, error);
}

// Parts are at most a block, and those of other types than the checkpoint's are rounded once.
zero_result tool_import_elements(struct import *job, size_t tensor, int field, uint64_t at,
                                 uint64_t count, void *out, struct base_error *error)
{
    enum { CHUNK = 4096 };
    const enum ckpt_dtype dtype = job->manifest.tensors[tensor].field[field];
    const struct ckpt_tensor *from = job->fields[tensor * CKPT_MAX_FIELDS + (size_t)field];
    if (!from)
        memset(out, 0, (size_t)count * tool_dtype_bytes(dtype));
    if (from && dtype == CKPT_F32)
        return read_wide(job, tensor, field, from, at, count, out, error);
    if (!from || from->dtype == dtype)
        return from ? ckpt_safetensors_read(job->file, from, at, count, out, error) : ZERO_OK;
    float values[CHUNK];
    zero_result result = ZERO_OK;
    for (uint64_t done = 0, n; done < count && !result; done += n) {
        n = count - done < CHUNK ? count - done : CHUNK;
        result = ckpt_safetensors_read_f32(job->file, from, at + done, n, values, error);
        if (!result)
            result =
                narrow(from, dtype, at + done, values, (size_t)n, (uint16_t *)out + done, error);
    }
    return result;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_hex(const char *text, unsigned char *bytes, uint64_t count)
{
    if (!text || strlen(text) != 2 * count)
        return false;
    for (uint64_t i = 0; i < count; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

zero_result tool_import_blob(struct import *job, size_t b, uint32_t rank, void *out,
                             struct base_error *error)
{
    const struct ckpt_blob *blob = &job->manifest.blobs[b];
    if (job->like)
        return ckpt_loader_blob(job->like, b, rank, out, error);
    char *key = tool_blob_key(blob, rank);
    if (!key)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a name");
    const bool good = parse_hex(ckpt_safetensors_metadata(job->file, key), out,
                                blob->bytes[blob->of_rank ? rank : 0]);
    if (!good)
        zero_fail(error, ZERO_E_CORRUPT, "'%.200s': metadata '%.80s' is not %" PRIu64 " bytes",
                  job->options->paths[0], key, blob->bytes[blob->of_rank ? rank : 0]);
    base_free(key);
    return good ? ZERO_OK : ZERO_E_CORRUPT;
}

/* ------------------------------------------------------------------ what goes where */

static zero_result check_tensor(const struct import *job, const struct ckpt_table_tensor *tensor,
                                int field, const struct ckpt_tensor *found, const char *name,
                                struct base_error *error)
{
    const char *path = job->options->paths[0];
    if (!found)
        return zero_fail(error, ZERO_E_INVALID, "'%.200s' has no tensor '%.80s'", path, name);
    bool same = found->ndim == tensor->ndim;
    for (int d = 0; same && d < tensor->ndim; d++)
        same = found->shape[d] == tensor->shape[d];
    char there[BASE_SHAPE_BYTES], here[BASE_SHAPE_BYTES];
    if (!same)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%.200s': tensor '%.80s' has another shape than %s: %s", path, name,
                         base_shape_text(tensor->shape, tensor->ndim, here),
                         base_shape_text(found->shape, found->ndim, there));
    if (found->dtype == CKPT_OTHER || (!job->like && found->dtype != tensor->field[field]))
        return zero_fail(error, ZERO_E_INVALID, "'%.200s': tensor '%.80s' is not %s", path, name,
                         job->like ? "f32, bf16 or f16" : tool_dtype(tensor->field[field]));
    return ZERO_OK;
}

// Enters a field of a tensor, which the file must have.
static zero_result find_field(struct import *job, size_t t, int field, bool *used,
                              struct base_error *error)
{
    const struct ckpt_table_tensor *tensor = &job->manifest.tensors[t];
    char *name = tool_tensor_name(&job->manifest, tensor, field);
    if (!name)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a name");
    const struct ckpt_tensor *found = ckpt_safetensors_find(job->file, name);
    const zero_result result = check_tensor(job, tensor, field, found, name, error);
    if (!result) {
        job->fields[t * CKPT_MAX_FIELDS + (size_t)field] = found;
        used[found->number] = true;
    }
    base_free(name);
    return result;
}

static zero_result check_used(const struct import *job, const bool *used, struct base_error *error)
{
    for (size_t i = 0; i < ckpt_safetensors_count(job->file); i++)
        if (!used[i])
            return zero_fail(error, ZERO_E_INVALID,
                             "'%.200s': tensor '%.80s' is none of the model's%s",
                             job->options->paths[0], ckpt_safetensors_at(job->file, i)->name,
                             job->like ? " weights in --like" : "");
    return ZERO_OK;
}

static zero_result match(struct import *job, struct base_error *error)
{
    const size_t tensors = job->manifest.tensor_count;
    bool *used = base_calloc(ckpt_safetensors_count(job->file), sizeof *used);
    job->fields = base_calloc(tensors * CKPT_MAX_FIELDS, sizeof *job->fields);
    zero_result result = ZERO_OK;
    if (!used || !job->fields) {
        base_free(used);
        zero_fail(error, ZERO_E_NOMEM, "no memory for %zu tensors", tensors);
        return ZERO_E_NOMEM;
    }
    for (size_t t = 0; t < tensors && !result; t++)
        for (int f = 0; f < (job->like ? 1 : job->manifest.tensors[t].fields) && !result; f++)
            result = find_field(job, t, f, used, error);
    if (!result)
        result = check_used(job, used, error);
    base_free(used);
    return result;
}

/* ------------------------------------------------------------------ of which state */

// That of a job that has not updated anything yet, but for what the other one had.
static void begin_anew(struct ckpt_state *state)
{
    state->step = 0;
    state->updates = 0;
    state->skips = 0;
    state->loss_scale_clean = 0;
}

static zero_result take_like(struct import *job, struct base_error *error)
{
    char *text;
    size_t length;
    zero_result result = tool_place_open(&job->place, job->options->like, error);
    if (!result)
        result = ckpt_loader_open(&job->like, &ckpt_store_posix, job->place.directory,
                                  job->place.step, error);
    if (!result)
        result = ckpt_manifest_format(ckpt_loader_manifest(job->like), &text, &length, error);
    if (result)
        return result;
    result = ckpt_manifest_parse(&job->manifest, text, length, job->options->like, error);
    base_free(text);
    begin_anew(&job->manifest.state);
    return result;
}

static zero_result take_state(struct import *job, struct base_error *error)
{
    const char *path = job->options->paths[0];
    const char *text = ckpt_safetensors_metadata(job->file, TOOL_MANIFEST_KEY);
    if (text && job->options->like)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%.200s' has a whole state: --like would have no effect", path);
    if (job->options->like)
        return job->options->edited
                   ? zero_fail(error, ZERO_E_INVALID, "--edited has no effect with --like")
                   : take_like(job, error);
    if (!text)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%.200s' has no whole state (that of export --state): --like says of "
                         "which job it is to be one",
                         path);
    char *shown = tool_format("%.200s: " TOOL_MANIFEST_KEY, path);
    const zero_result result =
        shown ? ckpt_manifest_parse(&job->manifest, text, strlen(text), shown, error)
              : zero_fail(error, ZERO_E_NOMEM, "no memory for a name");
    base_free(shown);
    return result;
}

/* ------------------------------------------------------------------ the command */

static zero_result print(const struct import *job, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &job->manifest;
    const char *path = job->options->paths[1];
    const struct tool_text fingerprint = tool_hex(manifest->state.fingerprint, 16);
    if (!job->options->json) {
        printf("%s/step-%08" PRIu64 ": %zu tensors, %s, fingerprint %s\n", path, job->step,
               manifest->tensor_count, tool_size(tool_stored_bytes(manifest)).text,
               fingerprint.text);
        struct tool_table table = {.columns = 1};
        for (size_t i = 0; i < json_array_size(job->changed); i++)
            tool_table_add(&table, TOOL_PLAIN, "changed since the export: %s",
                           json_string_value(json_array_get(job->changed, i)));
        return tool_table_print(&table, job->options, error);
    }
    json_t *root = tool_json_root("import");
    root = tool_json_set(root, "file", tool_json_text(job->options->paths[0]));
    root = tool_json_set(root, "directory", tool_json_text(path));
    root = tool_json_set(root, "step", tool_json_number(job->step));
    root = tool_json_set(root, "tensors", tool_json_number(manifest->tensor_count));
    root = tool_json_set(root, "fingerprint", json_string(fingerprint.text));
    root = tool_json_set(root, "changed", json_incref(job->changed));
    return tool_json_print(root, error);
}

zero_result tool_import(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct import job = {.options = options, .changed = json_array()};
    *found = false;
    zero_result result = ckpt_safetensors_open(&job.file, options->paths[0], error);
    if (!result)
        result = take_state(&job, error);
    if (!result) {
        job.step = options->step_given ? options->step : job.manifest.state.step;
        result = match(&job, error);
    }
    if (!result)
        result = tool_import_write(&job, error);
    if (!result)
        result = print(&job, error);
    ckpt_loader_close(job.like);
    tool_place_close(&job.place);
    ckpt_manifest_free(&job.manifest);
    ckpt_safetensors_close(job.file);
    base_free(job.fields);
    json_decref(job.changed);
    return result;
}
