#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/** A field of a tensor that is to be a tensor of the file. */
struct exported {
    size_t tensor;
    int field;
};

/** What is under way. */
struct export
{
    const struct tool_options *options;
    struct ckpt_loader *loader;
    const struct ckpt_manifest *manifest;
    struct exported *list;
    struct ckpt_tensor *table; /**< of the file: one of each */
    size_t count;
    struct ckpt_metadata *metadata;
    size_t metadata_count;
    char **texts; /**< that these two point to */
    size_t text_count;
    struct ckpt_safetensors_writer *writer;
    void *elements; /**< of one block, */
    float *wide;    /**< and where it is converted */
    struct tool_progress progress;
};

// Takes a text into its own; NULL if there was no memory for it.
static const char *keep(struct export *job, char *text)
{
    if (text)
        job->texts[job->text_count++] = text;
    return text;
}

/* ------------------------------------------------------------------ what is exported */

static bool is_wanted(const struct tool_options *options, const struct ckpt_table_tensor *tensor)
{
    return !options->tensor || fnmatch(options->tensor, tensor->name, 0) == 0;
}

static zero_result add_field(struct export *job, size_t t, int field, struct base_error *error)
{
    const struct ckpt_table_tensor *tensor = &job->manifest->tensors[t];
    struct ckpt_tensor *out = &job->table[job->count];
    const char *name = keep(job, tool_tensor_name(job->manifest, tensor, field));
    if (!name)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a tensor's name");
    *out = (struct ckpt_tensor){.name = name, .dtype = tensor->field[field], .ndim = tensor->ndim};
    if (job->options->dtype_given)
        out->dtype = job->options->dtype;
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    job->list[job->count++] = (struct exported){t, field};
    return ZERO_OK;
}

static zero_result select_tensors(struct export *job, struct base_error *error)
{
    const struct ckpt_manifest *manifest = job->manifest;
    zero_result result = ZERO_OK;
    for (size_t t = 0; t < manifest->tensor_count && !result; t++) {
        const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
        const int fields = job->options->state ? tensor->fields : 1;
        for (int f = 0; f < fields && is_wanted(job->options, tensor) && !result; f++)
            result = add_field(job, t, f, error);
    }
    if (!result && job->count == 0 && job->options->tensor)
        return zero_fail(error, ZERO_E_INVALID, "no tensor's name matches '%.200s'",
                         job->options->tensor);
    return result;
}

/* ------------------------------------------------------------------ what is said beside tensors */

// Takes both, which may be NULL, into its own.
static zero_result add_text(struct export *job, char *key, char *text, struct base_error *error)
{
    struct ckpt_metadata *out = &job->metadata[job->metadata_count++];
    *out = (struct ckpt_metadata){keep(job, key), keep(job, text)};
    return out->key && out->text ? ZERO_OK
                                 : zero_fail(error, ZERO_E_NOMEM, "no memory for metadata");
}

static char *hex_of(const unsigned char *bytes, uint64_t count)
{
    char *digits = base_calloc(2 * (size_t)count + 1, 1);
    for (uint64_t i = 0; digits && i < count; i++)
        snprintf(digits + 2 * i, 3, "%02x", bytes[i]);
    return digits;
}

// Adds a blob of a rank, or (rank 0) one of all ranks.
static zero_result add_blob(struct export *job, size_t b, uint32_t rank, struct base_error *error)
{
    const struct ckpt_blob *blob = &job->manifest->blobs[b];
    const uint64_t size = blob->bytes[blob->of_rank ? rank : 0];
    unsigned char *bytes = base_calloc((size_t)size, 1);
    if (!bytes)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the %" PRIu64 " bytes of %s", size,
                         blob->name);
    zero_result result = ckpt_loader_blob(job->loader, b, rank, bytes, error);
    if (!result)
        result = add_text(job, tool_blob_key(blob, rank), hex_of(bytes, size), error);
    base_free(bytes);
    return result;
}

// What an import makes a checkpoint of: the manifest, and the bytes that the program attached.
static zero_result add_state(struct export *job, struct base_error *error)
{
    const struct ckpt_manifest *manifest = job->manifest;
    char *text = NULL;
    size_t length;
    zero_result result = ckpt_manifest_format(manifest, &text, &length, error);
    if (result)
        return result;
    result = add_text(job, base_strdup(TOOL_MANIFEST_KEY), tool_format("%.*s", (int)length, text),
                      error);
    base_free(text);
    for (size_t b = 0; b < manifest->blob_count; b++)
        for (uint32_t r = 0; r < (manifest->blobs[b].of_rank ? manifest->world : 1) && !result; r++)
            result = add_blob(job, b, r, error);
    return result;
}

// The whole state, bit for bit: what can be imported again.
static bool is_whole(const struct tool_options *options)
{
    return options->state && !options->dtype_given && !options->tensor;
}

static zero_result describe(struct export *job, struct base_error *error)
{
    const struct ckpt_manifest *manifest = job->manifest;
    const struct ckpt_state *state = &manifest->state;
    zero_result result =
        add_text(job, base_strdup("zero.step"), tool_format("%" PRIu64, state->step), error);
    if (!result)
        result = add_text(job, base_strdup("zero.fingerprint"),
                          base_strdup(tool_hex(state->fingerprint, 16).text), error);
    if (!result)
        result = add_text(job, base_strdup("zero.version"), base_strdup(manifest->library), error);
    return result || !is_whole(job->options) ? result : add_state(job, error);
}

/* ------------------------------------------------------------------ writing */

static zero_result write_tensor(struct export *job, size_t i, struct base_error *error)
{
    const struct exported *from = &job->list[i];
    const struct ckpt_table_tensor *tensor = &job->manifest->tensors[from->tensor];
    const enum ckpt_dtype stored = tensor->field[from->field];
    const uint64_t elements = tool_elements(tensor);
    zero_result result = ZERO_OK;
    for (uint64_t at = 0, count; at < elements && !result; at += count) {
        count = tool_part(tensor, at);
        result = tool_read(job->loader, from->tensor, from->field, at, count, job->elements, error);
        if (!result && stored == job->table[i].dtype)
            result = ckpt_safetensors_write_stored(job->writer, i, at, count, job->elements, error);
        else if (!result) {
            tool_widen(stored, job->elements, (size_t)count, job->wide);
            result = ckpt_safetensors_write(job->writer, i, at, count, job->wide, error);
        }
        tool_progress_update(&job->progress, ckpt_loader_bytes_read(job->loader));
    }
    return result;
}

static zero_result write_all(struct export *job, struct base_error *error)
{
    const struct ckpt_safetensors_options options = {.metadata = job->metadata,
                                                     .metadata_count = job->metadata_count,
                                                     .never_replace = !job->options->force};
    zero_result result = ckpt_safetensors_create(&job->writer, job->options->paths[1], job->table,
                                                 job->count, &options, error);
    if (result)
        return result;
    tool_progress_begin(&job->progress, "export", tool_stored_bytes(job->manifest));
    for (size_t i = 0; i < job->count && !result; i++)
        result = write_tensor(job, i, error);
    tool_progress_end(&job->progress);
    if (result)
        return result;
    result = ckpt_safetensors_finish(job->writer, error);
    job->writer = NULL;
    return result;
}

/* ------------------------------------------------------------------ the command */

static zero_result print(const struct export *job, const struct tool_place *place,
                         struct base_error *error)
{
    const struct ckpt_manifest *manifest = job->manifest;
    uint64_t bytes = 0;
    for (size_t i = 0; i < job->count; i++)
        bytes += tool_elements(&manifest->tensors[job->list[i].tensor]) *
                 tool_dtype_bytes(job->table[i].dtype);
    const char *path = job->options->paths[1];
    if (!job->options->json) {
        printf("%s: %zu tensors of step %" PRIu64 ", %s\n", path, job->count, manifest->state.step,
               tool_size(bytes).text);
        return ZERO_OK;
    }
    json_t *root = tool_json_root("export");
    root = tool_json_set(root, "directory", tool_json_text(place->directory));
    root = tool_json_set(root, "step", tool_json_number(manifest->state.step));
    root = tool_json_set(root, "file", tool_json_text(path));
    root = tool_json_set(root, "tensors", tool_json_number(job->count));
    root = tool_json_set(root, "bytes", tool_json_number(bytes));
    root = tool_json_set(root, "whole", json_boolean(is_whole(job->options)));
    return tool_json_print(root, error);
}

static void release(struct export *job)
{
    ckpt_safetensors_abort(job->writer);
    for (size_t i = 0; i < job->text_count; i++)
        base_free(job->texts[i]);
    base_free(job->texts);
    base_free(job->metadata);
    base_free(job->table);
    base_free(job->list);
    base_free(job->elements);
    base_free(job->wide);
    ckpt_loader_close(job->loader);
}

static zero_result allocate(struct export *job, struct base_error *error)
{
    const struct ckpt_manifest *manifest = job->manifest;
    const size_t tensors = manifest->tensor_count * CKPT_MAX_FIELDS;
    size_t texts = 4;
    for (size_t b = 0; b < manifest->blob_count; b++)
        texts += manifest->blobs[b].of_rank ? manifest->world : 1;
    job->list = base_calloc(tensors, sizeof *job->list);
    job->table = base_calloc(tensors, sizeof *job->table);
    job->metadata = base_calloc(texts, sizeof *job->metadata);
    job->texts = base_calloc(tensors + 2 * texts, sizeof *job->texts);
    job->elements = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
    job->wide = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
    if (job->list && job->table && job->metadata && job->texts && job->elements && job->wide)
        return ZERO_OK;
    zero_fail(error, ZERO_E_NOMEM, "no memory for a table of %zu tensors", manifest->tensor_count);
    return ZERO_E_NOMEM;
}

static zero_result prepare(struct export *job, struct base_error *error)
{
    job->manifest = ckpt_loader_manifest(job->loader);
    zero_result result = allocate(job, error);
    if (!result)
        result = select_tensors(job, error);
    return result ? result : describe(job, error);
}

zero_result tool_export(const struct tool_options *options, bool *found, struct base_error *error)
{
    struct export job = {.options = options};
    struct tool_place place;
    *found = false;
    zero_result result = tool_place_open(&place, options->paths[0], error);
    if (!result)
        result =
            ckpt_loader_open(&job.loader, &ckpt_store_posix, place.directory, place.step, error);
    if (!result)
        result = prepare(&job, error);
    if (!result)
        result = write_all(&job, error);
    if (!result)
        result = print(&job, &place, error);
    release(&job);
    tool_place_close(&place);
    return result;
}
