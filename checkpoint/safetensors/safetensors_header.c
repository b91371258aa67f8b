#include "checkpoint/safetensors/safetensors_header.h"

#include "base/arena.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char metadata_name[] = "__metadata__";

// Every type of the format; the first three are those of enum ckpt_dtype.
static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    [CKPT_F32] = {"F32", 32},
    [CKPT_BF16] = {"BF16", 16},
    [CKPT_F16] = {"F16", 16},
    {"BOOL", 8},
    {"F4", 4},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F8_E4M3", 8},
    {"F8_E4M3FNUZ", 8},
    {"F8_E5M2", 8},
    {"F8_E5M2FNUZ", 8},
    {"F8_E8M0", 8},
    {"U8", 8},
    {"I8", 8},
    {"U16", 16},
    {"I16", 16},
    {"U32", 32},
    {"I32", 32},
    {"U64", 64},
    {"I64", 64},
    {"F64", 64},
    {"C64", 64},
};

size_t ckpt_dtype_size(enum ckpt_dtype dtype)
{
    return dtype < CKPT_OTHER ? dtypes[dtype].bits / 8 : 0;
}

/* ------------------------------------------------------------------ parsing */

// Reads a JSON integer that is not negative.
static bool read_size(const json_t *value, uint64_t *size)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *size = (uint64_t)json_integer_value(value);
    return true;
}

static zero_result parse_dtype(struct ckpt_tensor *tensor, unsigned *bits, const json_t *value,
                               const char *path, struct base_error *error)
{
    if (!json_is_string(value))
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s' has no dtype", path,
                         tensor->name);
    const char *name = json_string_value(value);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            tensor->dtype = i < CKPT_OTHER ? (enum ckpt_dtype)i : CKPT_OTHER;
            *bits = dtypes[i].bits;
            return ZERO_OK;
        }
    }
    return zero_fail(error, ZERO_E_UNSUPPORTED, "'%s': tensor '%.80s' has unknown dtype '%.20s'",
                     path, tensor->name, name);
}

// Shape, number of elements and, with the bits of one, of bytes.
static zero_result parse_shape(struct ckpt_tensor *tensor, unsigned bits, const json_t *value,
                               const char *path, struct base_error *error)
{
    if (!json_is_array(value))
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s' has no shape", path,
                         tensor->name);
    const size_t ndim = json_array_size(value);
    if (ndim > CKPT_MAX_DIMS)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "'%s': tensor '%.80s' has %zu dimensions, more than %d", path,
                         tensor->name, ndim, CKPT_MAX_DIMS);
    tensor->ndim = (int)ndim;
    tensor->count = 1;
    for (size_t i = 0; i < ndim; i++) {
        if (!read_size(json_array_get(value, i), &tensor->shape[i]))
            return zero_fail(error, ZERO_E_CORRUPT,
                             "'%s': tensor '%.80s': dimension %zu is no size", path, tensor->name,
                             i);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s': its shape overflows",
                             path, tensor->name);
    }
    uint64_t size;
    if (__builtin_mul_overflow(tensor->count, (uint64_t)bits, &size) || size % 8 != 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': tensor '%.80s': %" PRIu64 " elements of %u bits are no bytes", path,
                         tensor->name, tensor->count, bits);
    tensor->bytes = size / 8;
    return ZERO_OK;
}

// Leaves in tensor->offset where the tensor begins in the data.
static zero_result parse_offsets(struct ckpt_tensor *tensor, const json_t *value,
                                 uint64_t data_bytes, const char *path, struct base_error *error)
{
    uint64_t begin, end;
    if (!json_is_array(value) || json_array_size(value) != 2 ||
        !read_size(json_array_get(value, 0), &begin) || !read_size(json_array_get(value, 1), &end))
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s' has no data_offsets", path,
                         tensor->name);
    if (begin > end || end > data_bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': tensor '%.80s': data_offsets %" PRIu64 " to %" PRIu64
                         " leave the %" PRIu64 " bytes of the file",
                         path, tensor->name, begin, end, data_bytes);
    if (end - begin != tensor->bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': tensor '%.80s' has %" PRIu64 " bytes by its data_offsets, %" PRIu64
                         " by its shape",
                         path, tensor->name, end - begin, tensor->bytes);
    tensor->offset = begin;
    return ZERO_OK;
}

// tensor->name is set.
static zero_result parse_tensor(struct ckpt_tensor *tensor, const json_t *value,
                                uint64_t data_bytes, const char *path, struct base_error *error)
{
    if (!json_is_object(value))
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s' is no JSON object", path,
                         tensor->name);
    unsigned bits = 0;
    zero_result result = parse_dtype(tensor, &bits, json_object_get(value, "dtype"), path, error);
    if (result == ZERO_OK)
        result = parse_shape(tensor, bits, json_object_get(value, "shape"), path, error);
    if (result == ZERO_OK)
        result =
            parse_offsets(tensor, json_object_get(value, "data_offsets"), data_bytes, path, error);
    return result;
}

// Metadata must be what the format says: texts by name; or null, which Hugging Face's library takes
// for none.
static zero_result check_metadata(json_t *metadata, const char *path, struct base_error *error)
{
    const char *key;
    json_t *value;
    if (metadata && !json_is_null(metadata) && !json_is_object(metadata))
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': %s is no JSON object", path, metadata_name);
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return zero_fail(
        error, ZERO_E_CORRUPT, "'%s': %s: '%.80s' is no text", path, metadata_name, key);
    return ZERO_OK;
}

// Allocates the table and copies the names into it, in the order of the JSON.
static zero_result allocate_table(struct ckpt_header *header, json_t *root, const char *path,
                                  struct base_error *error)
{
    const char *key;
    json_t *value;
    size_t count = 0, bytes = 0;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, metadata_name) == 0)
            continue;
        bytes += strlen(key) + 1;
        count++;
    }
    header->tensor = base_calloc(count, sizeof *header->tensor);
    header->by_name = base_calloc(count, sizeof(struct ckpt_tensor *));
    header->names = base_calloc(bytes, 1);
    if (!header->tensor || !header->by_name || !header->names)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for a table of %zu tensors", path,
                         count);
    char *name = header->names;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, metadata_name) == 0)
            continue;
        const size_t size = strlen(key) + 1;
        header->tensor[header->count++].name = memcpy(name, key, size);
        name += size;
    }
    return ZERO_OK;
}

static zero_result parse_root(struct ckpt_header *header, json_t *root, uint64_t data_bytes,
                              const char *path, struct base_error *error)
{
    zero_result result = check_metadata(json_object_get(root, metadata_name), path, error);
    if (result == ZERO_OK)
        result = allocate_table(header, root, path, error);
    for (size_t i = 0; result == ZERO_OK && i < header->count; i++) {
        struct ckpt_tensor *tensor = &header->tensor[i];
        result = parse_tensor(tensor, json_object_get(root, tensor->name), data_bytes, path, error);
    }
    return result;
}

static int compare_places(const void *left, const void *right)
{
    const struct ckpt_tensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    // Of tensors at the same place only the last one can have bytes.
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_names(const void *left, const void *right)
{
    const struct ckpt_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

void ckpt_header_sort(struct ckpt_tensor **by_name, size_t count)
{
    if (count > 0)
        qsort(by_name, count, sizeof *by_name, compare_names);
}

static int compare_with_name(const void *name, const void *element)
{
    const struct ckpt_tensor *const *tensor = element;
    return strcmp(name, (*tensor)->name);
}

const struct ckpt_tensor *ckpt_header_search(struct ckpt_tensor *const *by_name, size_t count,
                                             const char *name)
{
    struct ckpt_tensor *const *found =
        bsearch(name, by_name, count, sizeof *by_name, compare_with_name);
    return found ? *found : NULL;
}

// Sorts the table, checks that it covers the data exactly, and moves it to where the data begin.
static zero_result place_tensors(struct ckpt_header *header, uint64_t data_start,
                                 uint64_t data_bytes, const char *path, struct base_error *error)
{
    qsort(header->tensor, header->count, sizeof *header->tensor, compare_places);
    uint64_t end = 0;
    for (size_t i = 0; i < header->count; i++) {
        struct ckpt_tensor *tensor = &header->tensor[i];
        if (tensor->offset != end)
            return zero_fail(error, ZERO_E_CORRUPT,
                             "'%s': tensor '%.80s' begins at byte %" PRIu64
                             " of the data, but the one before ends at %" PRIu64,
                             path, tensor->name, tensor->offset, end);
        end += tensor->bytes;
        tensor->offset += data_start;
        header->by_name[i] = tensor;
    }
    if (end != data_bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': the tensors end at byte %" PRIu64
                         " of the data, the file at %" PRIu64,
                         path, end, data_bytes);
    ckpt_header_sort(header->by_name, header->count);
    return ZERO_OK;
}

zero_result ckpt_header_parse(struct ckpt_header *header, const char *json, size_t length,
                              uint64_t data_bytes, const char *path, struct base_error *error)
{
    *header = (struct ckpt_header){0};
    if (length == 0 || json[0] != '{')
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': the header is no JSON object", path);
    json_error_t where;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &where);
    if (!root && json_error_code(&where) == json_error_out_of_memory)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for a header of %zu bytes", path,
                         length);
    if (!root)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': the header is damaged at byte %d: %s", path,
                         where.position, where.text);
    zero_result result = parse_root(header, root, data_bytes, path, error);
    if (result == ZERO_OK)
        result = place_tensors(header, CKPT_HEADER_START + length, data_bytes, path, error);
    header->metadata = json_incref(json_object_get(root, metadata_name));
    json_decref(root);
    if (result)
        ckpt_header_free(header);
    return result;
}

void ckpt_header_free(struct ckpt_header *header)
{
    base_free(header->tensor);
    base_free(header->by_name);
    base_free(header->names);
    json_decref(header->metadata);
    *header = (struct ckpt_header){0};
}

/* ------------------------------------------------------------------ formatting */

// Checks one tensor of the caller's and computes its count and bytes.
static zero_result measure_tensor(struct ckpt_tensor *tensor, const char *path,
                                  struct base_error *error)
{
    const size_t size = ckpt_dtype_size(tensor->dtype);
    if (size == 0)
        return zero_fail(error, ZERO_E_INVALID, "'%s': tensor '%.80s': dtype %d cannot be written",
                         path, tensor->name, (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > CKPT_MAX_DIMS)
        return zero_fail(error, ZERO_E_INVALID, "'%s': tensor '%.80s' has %d dimensions", path,
                         tensor->name, tensor->ndim);
    tensor->count = 1;
    bool overflow = false;
    for (int i = 0; i < tensor->ndim; i++)
        overflow |= __builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count);
    overflow |= __builtin_mul_overflow(tensor->count, (uint64_t)size, &tensor->bytes);
    if (overflow || tensor->bytes > INT64_MAX)
        return zero_fail(error, ZERO_E_INVALID, "'%s': tensor '%.80s': its shape overflows", path,
                         tensor->name);
    return ZERO_OK;
}

// Places the tensors in the data, those with elements of `size` bytes behind *end.
static bool place_by_size(struct ckpt_tensor *table, size_t tensors, size_t size, uint64_t *end)
{
    for (size_t i = 0; i < tensors; i++) {
        if (ckpt_dtype_size(table[i].dtype) != size)
            continue;
        table[i].offset = *end;
        *end += table[i].bytes;
        if (*end > INT64_MAX)
            return false;
    }
    return true;
}

static json_t *describe_tensor(const struct ckpt_tensor *tensor)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    const json_int_t begin = (json_int_t)tensor->offset;
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtypes[tensor->dtype].name, "shape", shape,
                     "data_offsets", begin, begin + (json_int_t)tensor->bytes);
}

static zero_result add_tensor(json_t *root, const struct ckpt_tensor *tensor, const char *path,
                              struct base_error *error)
{
    if (!*tensor->name || strcmp(tensor->name, metadata_name) == 0)
        return zero_fail(error, ZERO_E_INVALID, "'%s': a tensor cannot be called '%s'", path,
                         tensor->name);
    if (json_object_get(root, tensor->name))
        return zero_fail(error, ZERO_E_INVALID, "'%s': two tensors are called '%.80s'", path,
                         tensor->name);
    if (json_object_set_new(root, tensor->name, describe_tensor(tensor)) != 0)
        return zero_fail(error, ZERO_E_INVALID, "'%s': tensor name '%.80s' is no UTF-8", path,
                         tensor->name);
    return ZERO_OK;
}

static zero_result add_metadata(json_t *root, const struct ckpt_metadata *metadata, size_t count,
                                const char *path, struct base_error *error)
{
    json_t *object = json_object_get(root, metadata_name);
    for (size_t i = 0; i < count; i++)
        if (json_object_set_new(object, metadata[i].key, json_string(metadata[i].text)) != 0)
            return zero_fail(error, ZERO_E_INVALID, "'%s': %s: '%.80s' is no UTF-8", path,
                             metadata_name, metadata[i].key);
    return ZERO_OK;
}

// Makes the file's first bytes from the JSON: length, text, padding.
static zero_result frame_text(const char *json, char **text, size_t *length, const char *path,
                              struct base_error *error)
{
    const size_t used = json ? strlen(json) : 0;
    const uint64_t padded = (used + 7) / 8 * 8;
    if (padded > CKPT_MAX_HEADER)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%s': a header of %zu bytes is longer than %" PRIu64, path, used,
                         CKPT_MAX_HEADER);
    *length = (size_t)(CKPT_HEADER_START + padded);
    *text = json ? base_calloc(*length, 1) : NULL;
    if (!*text)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for a header of %zu bytes", path,
                         used);
    for (int i = 0; i < 8; i++)
        (*text)[i] = (char)(padded >> (8 * i) & 0xff);
    memset(*text + CKPT_HEADER_START, ' ', (size_t)padded);
    memcpy(*text + CKPT_HEADER_START, json, used);
    return ZERO_OK;
}

zero_result ckpt_header_format(struct ckpt_tensor *table, size_t tensors,
                               const struct ckpt_metadata *metadata, size_t metadata_count,
                               char **text, size_t *length, const char *path,
                               struct base_error *error)
{
    *text = NULL;
    json_t *root = json_pack("{s:{s:s}}", metadata_name, "format", "pt");
    char *json = NULL;
    zero_result result = root ? add_metadata(root, metadata, metadata_count, path, error)
                              : zero_fail(error, ZERO_E_NOMEM, "'%s': no memory", path);
    for (size_t i = 0; result == ZERO_OK && i < tensors; i++)
        result = measure_tensor(&table[i], path, error);
    if (result)
        goto out;

    uint64_t end = 0;
    if (!place_by_size(table, tensors, 4, &end) || !place_by_size(table, tensors, 2, &end)) {
        result = zero_fail(error, ZERO_E_INVALID, "'%s': the tensors are too large", path);
        goto out;
    }
    for (size_t i = 0; result == ZERO_OK && i < tensors; i++)
        result = add_tensor(root, &table[i], path, error);
    if (result)
        goto out;
    json = json_dumps(root, JSON_COMPACT);
    result = frame_text(json, text, length, path, error);
    for (size_t i = 0; result == ZERO_OK && i < tensors; i++)
        table[i].offset += *length;
out:
    free(json);
    json_decref(root);
    return result;
}

zero_result ckpt_tensor_failed(struct base_error *error, const struct ckpt_tensor *tensor,
                               const struct base_error *cause)
{
    return zero_fail(error, cause->result, "tensor '%.80s': %s", tensor->name, cause->message);
}

zero_result ckpt_tensor_check_range(const struct ckpt_tensor *tensor, uint64_t first,
                                    uint64_t count, const char *path, struct base_error *error)
{
    if (first <= tensor->count && count <= tensor->count - first)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "'%s': tensor '%.80s': %" PRIu64 " elements from %" PRIu64
                     " on leave its %" PRIu64,
                     path, tensor->name, count, first, tensor->count);
}
