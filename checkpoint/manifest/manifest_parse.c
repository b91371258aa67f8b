#include "checkpoint/manifest/manifest_parts.h"

#include "base/arena.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// What is being parsed. Of what fails the first is kept in `error`; what a member is then is
// nothing: 0, NULL, no elements.
struct parser {
    const char *path;
    const char *table; // the element of which table, NULL: of none
    size_t number;
    struct base_error error;
};

/* ------------------------------------------------------------------ members */

static void complain(struct parser *parser, const char *member, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(struct parser *parser, const char *member, const char *format, ...)
{
    char what[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (parser->table)
        zero_fail(&parser->error, ZERO_E_CORRUPT, "'%s': %s[%zu]: '%s' %s", parser->path,
                  parser->table, parser->number, member, what);
    else
        zero_fail(&parser->error, ZERO_E_CORRUPT, "'%s': '%s' %s", parser->path, member, what);
}

static void *allocate(struct parser *parser, size_t count, size_t size)
{
    void *memory = base_calloc(count, size);
    if (!memory)
        zero_fail(&parser->error, ZERO_E_NOMEM, "'%s': no memory for a table of %zu", parser->path,
                  count);
    return memory;
}

// A number that is there by itself, or is part of `member`.
static uint64_t parse_number(struct parser *parser, const json_t *value, const char *member,
                             uint64_t most)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) <= most)
        return (uint64_t)json_integer_value(value);
    complain(parser, member, "is no integer from 0 to %" PRIu64, most);
    return 0;
}

static uint64_t number(struct parser *parser, const json_t *object, const char *member,
                       uint64_t most)
{
    return parse_number(parser, json_object_get(object, member), member, most);
}

static double real(struct parser *parser, const json_t *value, const char *member)
{
    if (!json_is_number(value))
        complain(parser, member, "is no number");
    return json_number_value(value);
}

static bool flag(struct parser *parser, const json_t *object, const char *member)
{
    const json_t *value = json_object_get(object, member);
    if (!json_is_boolean(value))
        complain(parser, member, "is neither true nor false");
    return json_is_true(value);
}

// Never NULL.
static const char *word(struct parser *parser, const json_t *value, const char *member)
{
    if (json_is_string(value))
        return json_string_value(value);
    complain(parser, member, "is no text");
    return "";
}

static char *text(struct parser *parser, const json_t *object, const char *member)
{
    char *copy = base_strdup(word(parser, json_object_get(object, member), member));
    if (!copy)
        zero_fail(&parser->error, ZERO_E_NOMEM, "'%s': no memory for '%s'", parser->path, member);
    return copy;
}

// Which of the words is there; 0 if none is.
static size_t choice(struct parser *parser, const json_t *value, const char *member,
                     const char *const *words, size_t count)
{
    const char *given = word(parser, value, member);
    for (size_t i = 0; i < count; i++)
        if (strcmp(given, words[i]) == 0)
            return i;
    complain(parser, member, "is '%.40s'", given);
    return 0;
}

static enum ckpt_dtype dtype(struct parser *parser, const json_t *value, const char *member)
{
    return (enum ckpt_dtype)choice(parser, value, member, ckpt_dtype_names, CKPT_OTHER);
}

// Exactly 2 * count hexadecimal digits.
static void digits(struct parser *parser, const json_t *object, const char *member, uint8_t *bytes,
                   size_t count)
{
    const char *given = word(parser, json_object_get(object, member), member);
    if (strlen(given) != 2 * count || !ckpt_unhex(given, bytes, count))
        complain(parser, member, "has not %zu hexadecimal digits", 2 * count);
}

static uint64_t hex64(struct parser *parser, const json_t *object, const char *member)
{
    uint8_t bytes[8] = {0};
    uint64_t value = 0;
    digits(parser, object, member, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        value = value << 8 | bytes[i];
    return value;
}

// An array of at most so many elements; their number in *count.
static const json_t *array(struct parser *parser, const json_t *object, const char *member,
                           size_t most, size_t *count)
{
    const json_t *value = json_object_get(object, member);
    *count = json_array_size(value);
    if (json_is_array(value) && *count <= most)
        return value;
    if (json_is_array(value))
        complain(parser, member, "has %zu elements, more than %zu", *count, most);
    else
        complain(parser, member, "is no array");
    *count = 0;
    return NULL;
}

/* ------------------------------------------------------------------ tables */

// Parses one element of a table into the manifest.
typedef void parse_fn(struct parser *parser, struct ckpt_manifest *manifest, size_t i,
                      const json_t *value);

// Room for the elements of an array, whose number it sets.
static void *make_table(struct parser *parser, const json_t *root, const char *member, size_t size,
                        size_t *count)
{
    array(parser, root, member, SIZE_MAX, count);
    void *elements = allocate(parser, *count, size);
    if (!elements)
        *count = 0;
    return elements;
}

static void fill_table(struct parser *parser, struct ckpt_manifest *manifest, const json_t *root,
                       const char *member, size_t count, parse_fn *parse)
{
    parser->table = member;
    for (size_t i = 0; i < count && !parser->error.result; i++) {
        parser->number = i;
        parse(parser, manifest, i, json_array_get(json_object_get(root, member), i));
    }
    parser->table = NULL;
}

static void parse_hyper(struct parser *parser, struct ckpt_group *group, const json_t *value)
{
    const char *name;
    json_t *hyper = json_object_get(value, "hyper"), *given;
    if (!json_is_object(hyper) || json_object_size(hyper) > CKPT_MAX_HYPER) {
        complain(parser, "hyper", "is no object of at most %d numbers", CKPT_MAX_HYPER);
        return;
    }
    json_object_foreach(hyper, name, given)
    {
        struct ckpt_hyper *slot = &group->hyper[group->hypers++];
        if (strlen(name) >= sizeof slot->name)
            complain(parser, "hyper", "has the long name '%.80s'", name);
        snprintf(slot->name, sizeof slot->name, "%s", name);
        slot->value = real(parser, given, name);
    }
}

static void parse_group(struct parser *parser, struct ckpt_manifest *manifest, size_t i,
                        const json_t *value)
{
    struct ckpt_group *group = &manifest->groups[i];
    group->name = text(parser, value, "name");
    group->optimizer = text(parser, value, "optimizer");
    group->decay = text(parser, value, "decay");
    group->nesterov = flag(parser, value, "nesterov");
    group->frozen = flag(parser, value, "frozen");
    parse_hyper(parser, group, value);
}

// The shape; a slice's elements follow from it, if it makes sense.
static void parse_shape(struct parser *parser, struct ckpt_table_tensor *tensor,
                        const json_t *value)
{
    size_t ndim;
    const json_t *shape = array(parser, value, "shape", CKPT_MAX_DIMS, &ndim);
    tensor->ndim = (int)ndim;
    tensor->slices = number(parser, value, "slices", UINT32_MAX);
    tensor->numel = 1;
    for (size_t d = 0; d < ndim; d++) {
        tensor->shape[d] = parse_number(parser, json_array_get(shape, d), "shape", CKPT_MAX_NUMBER);
        if (__builtin_mul_overflow(tensor->numel, tensor->shape[d], &tensor->numel))
            complain(parser, "shape", "overflows");
    }
    if (tensor->slices > 0)
        tensor->numel /= tensor->slices;
}

static void parse_tensor(struct parser *parser, struct ckpt_manifest *manifest, size_t i,
                         const json_t *value)
{
    struct ckpt_table_tensor *tensor = &manifest->tensors[i];
    uint8_t sum[16] = {0};
    size_t fields;
    tensor->name = text(parser, value, "name");
    parse_shape(parser, tensor, value);
    tensor->dtype = dtype(parser, json_object_get(value, "dtype"), "dtype");
    tensor->grad_dtype = dtype(parser, json_object_get(value, "grad_dtype"), "grad_dtype");
    tensor->group = (uint32_t)number(parser, value, "group", UINT32_MAX);
    tensor->trains = flag(parser, value, "trains");
    const json_t *names = array(parser, value, "fields", CKPT_MAX_FIELDS, &fields);
    tensor->fields = (int)fields;
    for (size_t f = 0; f < fields; f++)
        tensor->field[f] = dtype(parser, json_array_get(names, f), "fields");
    digits(parser, value, "sum", sum, sizeof sum);
    for (size_t b = 0; b < 8; b++) {
        tensor->sum.high = tensor->sum.high << 8 | sum[b];
        tensor->sum.low = tensor->sum.low << 8 | sum[8 + b];
    }
}

static void parse_blob(struct parser *parser, struct ckpt_manifest *manifest, size_t i,
                       const json_t *value)
{
    static const char *const scopes[] = {"global", "rank"};
    struct ckpt_blob *blob = &manifest->blobs[i];
    blob->name = text(parser, value, "name");
    blob->of_rank = choice(parser, json_object_get(value, "scope"), "scope", scopes, 2) == 1;
    const json_t *bytes = json_object_get(value, "bytes");
    const size_t count = blob->of_rank ? manifest->world : 1;
    if (blob->of_rank && json_array_size(bytes) != count) {
        complain(parser, "bytes", "has not one element a shard");
        return;
    }
    blob->bytes = allocate(parser, count, sizeof *blob->bytes);
    for (size_t s = 0; blob->bytes && s < count; s++)
        blob->bytes[s] = parse_number(parser, blob->of_rank ? json_array_get(bytes, s) : bytes,
                                      "bytes", CKPT_MAX_NUMBER);
}

static void parse_run(struct parser *parser, struct ckpt_run *run, const json_t *value)
{
    if (json_array_size(value) != 4)
        complain(parser, "runs", "has one that is no array of 4 numbers");
    run->tensor = (uint32_t)parse_number(parser, json_array_get(value, 0), "runs", UINT32_MAX);
    run->slice = (uint32_t)parse_number(parser, json_array_get(value, 1), "runs", UINT32_MAX);
    run->first = parse_number(parser, json_array_get(value, 2), "runs", CKPT_MAX_NUMBER);
    run->count = parse_number(parser, json_array_get(value, 3), "runs", CKPT_MAX_NUMBER);
}

static void parse_shard(struct parser *parser, struct ckpt_manifest *manifest, size_t i,
                        const json_t *value)
{
    struct ckpt_shard_entry *shard = &manifest->shards[i];
    char name[CKPT_SHARD_NAME];
    ckpt_shard_name((uint32_t)i, name);
    choice(parser, json_object_get(value, "file"), "file", (const char *const[]){name}, 1);
    shard->bytes = number(parser, value, "bytes", CKPT_MAX_NUMBER);
    shard->index_offset = number(parser, value, "index_offset", CKPT_MAX_NUMBER);
    shard->index_xxh3 = hex64(parser, value, "index_xxh3");
    const json_t *runs = array(parser, value, "runs", SIZE_MAX, &shard->run_count);
    shard->runs = allocate(parser, shard->run_count, sizeof *shard->runs);
    for (size_t r = 0; shard->runs && r < shard->run_count && !parser->error.result; r++)
        parse_run(parser, &shard->runs[r], json_array_get(runs, r));
}

/* ------------------------------------------------------------------ the whole */

static void parse_loss_scale(struct parser *parser, struct ckpt_state *state, const json_t *root)
{
    const json_t *value = json_object_get(root, "loss_scale");
    state->has_loss_scale = !json_is_null(value);
    if (!state->has_loss_scale)
        return;
    if (!json_is_object(value))
        complain(parser, "loss_scale", "is neither null nor an object");
    state->loss_scale = real(parser, json_object_get(value, "value"), "value");
    state->loss_scale_clean = number(parser, value, "clean", CKPT_MAX_NUMBER);
    state->loss_scale_dynamic = flag(parser, value, "dynamic");
}

static void parse_state(struct parser *parser, struct ckpt_state *state, const json_t *root)
{
    static const char *const reductions[] = {"canonical", "native"};
    state->step = number(parser, root, "step", CKPT_MAX_NUMBER);
    state->updates = number(parser, root, "updates", CKPT_MAX_NUMBER);
    state->micro_batches = number(parser, root, "micro_batches", CKPT_MAX_NUMBER);
    state->sum_group = number(parser, root, "sum_group", CKPT_MAX_NUMBER);
    state->skips = number(parser, root, "skips", CKPT_MAX_NUMBER);
    state->seed = hex64(parser, root, "seed");
    state->stage = (int)number(parser, root, "stage", 3);
    const json_t *reduction = json_object_get(root, "reduction");
    state->local = choice(parser, reduction, "reduction", reductions, 2) == 1;
    const json_t *comm = json_object_get(root, "comm_dtype");
    state->comm_dtype = CKPT_OTHER;
    if (strcmp(word(parser, comm, "comm_dtype"), "default") != 0)
        state->comm_dtype = dtype(parser, comm, "comm_dtype");
    parse_loss_scale(parser, state, root);
    digits(parser, root, "fingerprint", state->fingerprint, sizeof state->fingerprint);
}

static void parse_tables(struct parser *parser, struct ckpt_manifest *manifest, const json_t *root)
{
    manifest->shards =
        make_table(parser, root, "shards", sizeof *manifest->shards, &manifest->world);
    manifest->groups =
        make_table(parser, root, "groups", sizeof *manifest->groups, &manifest->group_count);
    manifest->tensors =
        make_table(parser, root, "tensors", sizeof *manifest->tensors, &manifest->tensor_count);
    manifest->blobs =
        make_table(parser, root, "blobs", sizeof *manifest->blobs, &manifest->blob_count);
    fill_table(parser, manifest, root, "shards", manifest->world, parse_shard);
    fill_table(parser, manifest, root, "groups", manifest->group_count, parse_group);
    fill_table(parser, manifest, root, "tensors", manifest->tensor_count, parse_tensor);
    fill_table(parser, manifest, root, "blobs", manifest->blob_count, parse_blob);
}

static void parse_format(struct parser *parser, const json_t *root)
{
    const uint64_t format = number(parser, root, "format", CKPT_MAX_NUMBER);
    if (format > CKPT_FORMAT)
        zero_fail(&parser->error, ZERO_E_VERSION,
                  "'%s': its format is %" PRIu64 ", a later library's; this one knows %d",
                  parser->path, format, CKPT_FORMAT);
    else if (format != CKPT_FORMAT)
        complain(parser, "format", "is not %d", CKPT_FORMAT);
}

static void parse_root(struct parser *parser, struct ckpt_manifest *manifest, const json_t *root)
{
    parse_format(parser, root);
    if (parser->error.result)
        return;
    manifest->library = text(parser, root, "library");
    manifest->created = text(parser, root, "created");
    digits(parser, root, "id", manifest->id, sizeof manifest->id);
    manifest->job = text(parser, root, "job");
    manifest->sequence = number(parser, root, "sequence", CKPT_MAX_NUMBER);
    manifest->run_told = json_object_get(root, "run") != NULL;
    if (manifest->run_told)
        digits(parser, root, "run", manifest->run.bytes, sizeof manifest->run.bytes);
    manifest->level = (int)number(parser, root, "level", INT_MAX);
    parse_state(parser, &manifest->state, root);
    parse_tables(parser, manifest, root);
    const uint64_t world = number(parser, root, "world", CKPT_MAX_SHARDS);
    if (world != manifest->world)
        complain(parser, "world", "is %" PRIu64 ", but there are %zu shards", world,
                 manifest->world);
    if (!manifest->run_told && !parser->error.result)
        manifest->run = ckpt_derive_run(manifest);
}

static void parse_text(struct parser *parser, struct ckpt_manifest *manifest, const char *text,
                       size_t length)
{
    json_error_t where;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    if (root)
        parse_root(parser, manifest, root);
    else if (json_error_code(&where) == json_error_out_of_memory)
        zero_fail(&parser->error, ZERO_E_NOMEM, "'%s': no memory for its %zu bytes", parser->path,
                  length);
    else
        zero_fail(&parser->error, ZERO_E_CORRUPT, "'%s' is damaged at byte %d: %s", parser->path,
                  where.position, where.text);
    json_decref(root);
}

zero_result ckpt_manifest_parse(struct ckpt_manifest *manifest, const char *text, size_t length,
                                const char *path, struct base_error *error)
{
    *manifest = (struct ckpt_manifest){0};
    struct parser parser = {.path = path};
    if (ckpt_check_last_line(text, length, path, &parser.error) == ZERO_OK)
        parse_text(&parser, manifest, text, length);
    const struct ckpt_error_context blame = {path, ZERO_E_CORRUPT};
    if (!parser.error.result)
        ckpt_manifest_check(manifest, &manifest->index, &blame, &parser.error);
    if (!parser.error.result)
        return ZERO_OK;
    ckpt_manifest_free(manifest);
    return zero_fail(error, parser.error.result, "%s", parser.error.message);
}
