// Safetensors files, one or several that are read as one.

#include "checkpoint/safetensors/safetensors.h"

#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/file.h"
#include "checkpoint/safetensors/safetensors_index.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are copied as they lie in files");

// One file of those that are read as one.
struct part {
    int fd;
    char *path;
    struct ckpt_header header;
};

struct ckpt_safetensors {
    struct part *parts;
    size_t count; // of them
    bool indexed;
    size_t tensors; // of all of them,
    struct ckpt_tensor **by_name;
};

// Reads the length of the header and checks that the file has that much.
static zero_result read_length(const struct part *part, uint64_t size, uint64_t *length,
                               struct base_error *error)
{
    unsigned char bytes[CKPT_HEADER_START];
    if (size < sizeof bytes)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' has %" PRIu64 " bytes, too few for a header",
                         part->path, size);
    const zero_result result = base_pread_all(part->fd, bytes, sizeof bytes, 0, part->path, error);
    if (result)
        return result;
    *length = 0;
    for (size_t i = 0; i < sizeof bytes; i++)
        *length |= (uint64_t)bytes[i] << (8 * i);
    if (*length > CKPT_MAX_HEADER || *length > size - sizeof bytes)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': a header of %" PRIu64 " bytes in a file of %" PRIu64
                         "; at most %" PRIu64 " are allowed",
                         part->path, *length, size, CKPT_MAX_HEADER);
    return ZERO_OK;
}

static zero_result read_header(struct part *part, struct base_error *error)
{
    uint64_t size = 0, length = 0;
    zero_result result = base_file_size(part->fd, &size, part->path, error);
    if (result == ZERO_OK)
        result = read_length(part, size, &length, error);
    if (result)
        return result;
    char *json = base_calloc((size_t)length, 1);
    if (!json)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for a header of %" PRIu64 " bytes",
                         part->path, length);
    result = base_pread_all(part->fd, json, (size_t)length, CKPT_HEADER_START, part->path, error);
    if (result == ZERO_OK)
        result = ckpt_header_parse(&part->header, json, (size_t)length,
                                   size - CKPT_HEADER_START - length, part->path, error);
    base_free(json);
    return result;
}

static zero_result no_memory_to_open(const char *path, struct base_error *error)
{
    return zero_fail(error, ZERO_E_NOMEM, "no memory to open '%s'", path);
}

static zero_result make_parts(struct ckpt_safetensors *file, size_t count, const char *path,
                              struct base_error *error)
{
    file->parts = base_calloc(count, sizeof *file->parts);
    if (!file->parts)
        return no_memory_to_open(path, error);
    file->count = count;
    for (size_t i = 0; i < count; i++)
        file->parts[i].fd = -1;
    return ZERO_OK;
}

// Opens a file, whose path has just been allocated.
static zero_result open_part(struct part *part, char *path, struct base_error *error)
{
    part->path = path;
    // Without O_NONBLOCK opening a pipe would wait for its writer.
    const zero_result result = base_open(&part->fd, path, O_RDONLY | O_NONBLOCK, 0, error);
    return result ? result : read_header(part, error);
}

static zero_result open_alone(struct ckpt_safetensors *file, const char *path,
                              struct base_error *error)
{
    const zero_result result = make_parts(file, 1, path, error);
    char *own = result ? NULL : base_strdup(path);
    if (result)
        return result;
    return own ? open_part(&file->parts[0], own, error) : no_memory_to_open(path, error);
}

static zero_result open_indexed(struct ckpt_safetensors *file, const char *path,
                                struct base_error *error)
{
    struct ckpt_index index;
    zero_result result = ckpt_index_read(&index, path, error);
    if (result == ZERO_OK)
        result = make_parts(file, index.files, path, error);
    for (size_t i = 0; result == ZERO_OK && i < file->count; i++) {
        char *own = ckpt_index_path(&index, i);
        result = own ? open_part(&file->parts[i], own, error) : no_memory_to_open(path, error);
        if (result == ZERO_OK)
            result = ckpt_index_check(&index, i, &file->parts[i].header, error);
        json_decref(file->parts[i].header.metadata); // of one file of many: not the index's
        file->parts[i].header.metadata = NULL;
    }
    ckpt_index_free(&index);
    file->indexed = true;
    return result;
}

// Numbers the tensors of all files, and sorts them by name.
static zero_result join_tables(struct ckpt_safetensors *file, const char *path,
                               struct base_error *error)
{
    size_t count = 0;
    for (size_t p = 0; p < file->count; p++)
        count += file->parts[p].header.count;
    file->by_name = base_calloc(count, sizeof(struct ckpt_tensor *));
    if (!file->by_name)
        return no_memory_to_open(path, error);
    for (size_t p = 0; p < file->count; p++)
        for (size_t i = 0; i < file->parts[p].header.count; i++) {
            struct ckpt_tensor *tensor = &file->parts[p].header.tensor[i];
            tensor->file = p;
            tensor->number = file->tensors;
            file->by_name[file->tensors++] = tensor;
        }
    ckpt_header_sort(file->by_name, file->tensors);
    return ZERO_OK;
}

zero_result ckpt_safetensors_open(struct ckpt_safetensors **out, const char *path,
                                  struct base_error *error)
{
    *out = NULL;
    struct ckpt_safetensors *file = base_calloc(1, sizeof *file);
    if (!file)
        return no_memory_to_open(path, error);
    zero_result result = (ckpt_index_is(path) ? open_indexed : open_alone)(file, path, error);
    if (result == ZERO_OK)
        result = join_tables(file, path, error);
    if (result) {
        ckpt_safetensors_close(file);
        return result;
    }
    *out = file;
    return ZERO_OK;
}

void ckpt_safetensors_close(struct ckpt_safetensors *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->count; i++) {
        struct part *part = &file->parts[i];
        base_close(&part->fd, part->path, NULL);
        ckpt_header_free(&part->header);
        base_free(part->path);
    }
    base_free(file->parts);
    base_free(file->by_name);
    base_free(file);
}

size_t ckpt_safetensors_count(const struct ckpt_safetensors *file)
{
    return file->tensors;
}

const struct ckpt_tensor *ckpt_safetensors_at(const struct ckpt_safetensors *file, size_t index)
{
    for (size_t p = 0; p < file->count; index -= file->parts[p++].header.count)
        if (index < file->parts[p].header.count)
            return &file->parts[p].header.tensor[index];
    return NULL;
}

const struct ckpt_tensor *ckpt_safetensors_find(const struct ckpt_safetensors *file,
                                                const char *name)
{
    return ckpt_header_search(file->by_name, file->tensors, name);
}

const char *ckpt_safetensors_metadata(const struct ckpt_safetensors *file, const char *key)
{
    return file->indexed ? NULL
                         : json_string_value(json_object_get(file->parts[0].header.metadata, key));
}

// Widens the `count` halves that fill the upper half of out's bytes. Element i's float overwrites
// no half but those before i+1, so this works in place, upwards.
static void widen_in_place(float *out, uint64_t count, enum ckpt_dtype dtype)
{
    const unsigned char *halves = (const unsigned char *)out + count * sizeof(uint16_t);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, halves + i * sizeof half, sizeof half);
        out[i] = dtype == CKPT_BF16 ? base_f32_from_bf16(half) : base_f32_from_f16(half);
    }
}

static zero_result check_read(const struct ckpt_safetensors *file, const struct ckpt_tensor *tensor,
                              uint64_t first, uint64_t count, struct base_error *error)
{
    const char *path = file->parts[tensor->file].path;
    return ckpt_dtype_size(tensor->dtype) > 0
               ? ckpt_tensor_check_range(tensor, first, count, path, error)
               : zero_fail(error, ZERO_E_INVALID,
                           "'%s': tensor '%.80s' is neither F32, BF16 nor F16", path, tensor->name);
}

zero_result ckpt_safetensors_read(const struct ckpt_safetensors *file,
                                  const struct ckpt_tensor *tensor, uint64_t first, uint64_t count,
                                  void *out, struct base_error *error)
{
    const zero_result result = check_read(file, tensor, first, count, error);
    if (result)
        return result;
    const struct part *part = &file->parts[tensor->file];
    const size_t size = ckpt_dtype_size(tensor->dtype);
    struct base_error cause = {.result = ZERO_OK};
    if (base_pread_all(part->fd, out, (size_t)(count * size), tensor->offset + first * size,
                       part->path, &cause))
        return ckpt_tensor_failed(error, tensor, &cause);
    return ZERO_OK;
}

zero_result ckpt_safetensors_read_f32(const struct ckpt_safetensors *file,
                                      const struct ckpt_tensor *tensor, uint64_t first,
                                      uint64_t count, float *out, struct base_error *error)
{
    zero_result result = check_read(file, tensor, first, count, error);
    if (result)
        return result;
    unsigned char *to =
        (unsigned char *)out + count * (sizeof *out - ckpt_dtype_size(tensor->dtype));
    result = ckpt_safetensors_read(file, tensor, first, count, to, error);
    if (result == ZERO_OK && tensor->dtype != CKPT_F32)
        widen_in_place(out, count, tensor->dtype);
    return result;
}
