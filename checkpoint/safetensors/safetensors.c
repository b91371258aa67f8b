#include "checkpoint/safetensors/safetensors.h"

#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/file.h"
#include "checkpoint/safetensors/safetensors_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are copied as they lie in files");

// Fails with a message that names the tensor, from one that names file and offset.
static zero_result tensor_failed(struct base_error *error, const struct ckpt_tensor *tensor,
                                 const struct base_error *cause)
{
    return zero_fail(error, cause->result, "tensor '%.80s': %s", tensor->name, cause->message);
}

static zero_result check_range(const struct ckpt_tensor *tensor, uint64_t first, uint64_t count,
                               const char *path, struct base_error *error)
{
    if (first <= tensor->count && count <= tensor->count - first)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "'%s': tensor '%.80s': %" PRIu64 " elements from %" PRIu64
                     " on leave its %" PRIu64,
                     path, tensor->name, count, first, tensor->count);
}

/* ------------------------------------------------------------------ reading */

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
        json_decref(file->parts[i].header.metadata); // of one file of many: nobody's
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
               ? check_range(tensor, first, count, path, error)
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
        return tensor_failed(error, tensor, &cause);
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

/* ------------------------------------------------------------------ writing */

enum { TEMPORARY_NAMES = 100, NARROW_CHUNK = 32768 };

struct ckpt_safetensors_writer {
    int fd;
    char *path;
    char *temporary; // its name while it is written, else NULL
    size_t tensors;
    struct ckpt_tensor *table;
    char *names;
    uint64_t missing; // elements not written yet
    bool never_replace;
    uint16_t narrow[NARROW_CHUNK];
};

static zero_result no_memory(const char *path, struct base_error *error)
{
    zero_fail(error, ZERO_E_NOMEM, "no memory to write '%s'", path);
    return ZERO_E_NOMEM;
}

static zero_result copy_table(struct ckpt_safetensors_writer *writer,
                              const struct ckpt_tensor *table, size_t tensors,
                              struct base_error *error)
{
    size_t bytes = 0;
    for (size_t i = 0; i < tensors; i++)
        bytes += strlen(table[i].name) + 1;
    writer->table = base_calloc(tensors, sizeof *table);
    writer->names = base_calloc(bytes, 1);
    if (!writer->table || !writer->names)
        return no_memory(writer->path, error);
    char *name = writer->names;
    for (size_t i = 0; i < tensors; i++) {
        const size_t size = strlen(table[i].name) + 1;
        writer->table[i] = table[i];
        writer->table[i].name = memcpy(name, table[i].name, size);
        name += size;
    }
    writer->tensors = tensors;
    return ZERO_OK;
}

// Creates a file beside the final one under a name that nobody else has.
static zero_result create_temporary(struct ckpt_safetensors_writer *writer,
                                    struct base_error *error)
{
    const size_t size = strlen(writer->path) + 64;
    char *name = base_calloc(size, 1);
    if (!name)
        return no_memory(writer->path, error);
    struct base_error cause = {.result = ZERO_OK};
    zero_result result = ZERO_E_IO;
    for (int i = 0; result && i < TEMPORARY_NAMES; i++) {
        base_error_clear(&cause);
        snprintf(name, size, "%s.%ld.%d.tmp", writer->path, (long)getpid(), i);
        result = base_open(&writer->fd, name, O_WRONLY | O_CREAT | O_EXCL, 0666, &cause);
        if (result && errno != EEXIST)
            break;
    }
    if (result) {
        base_free(name);
        return zero_fail(error, result, "%s", cause.message);
    }
    writer->temporary = name;
    return ZERO_OK;
}

static zero_result write_header(struct ckpt_safetensors_writer *writer,
                                const struct ckpt_safetensors_options *options,
                                struct base_error *error)
{
    char *text;
    size_t length;
    zero_result result = ckpt_header_format(
        writer->table, writer->tensors, options ? options->metadata : NULL,
        options ? options->metadata_count : 0, &text, &length, writer->path, error);
    if (result)
        return result;
    result = create_temporary(writer, error);
    if (result == ZERO_OK)
        result = base_pwrite_all(writer->fd, text, length, 0, writer->temporary, error);
    base_free(text);
    return result;
}

// A rename would put a file in the place of a device, a link or a folder.
static zero_result check_target(const char *path, bool never_replace, struct base_error *error)
{
    struct stat status;
    if (lstat(path, &status) == 0 && never_replace)
        return zero_fail(error, ZERO_E_INVALID, "'%s' is there already", path);
    if (lstat(path, &status) == 0)
        return S_ISREG(status.st_mode)
                   ? ZERO_OK
                   : zero_fail(error, ZERO_E_INVALID,
                               "'%s' is there and no regular file: it will not be replaced", path);
    if (errno == ENOENT)
        return ZERO_OK;
    return zero_fail_errno(error, errno == ENOTDIR ? ZERO_NOT_FOUND : ZERO_E_IO, errno, "'%s'",
                           path);
}

zero_result ckpt_safetensors_create(struct ckpt_safetensors_writer **out, const char *path,
                                    const struct ckpt_tensor *table, size_t tensors,
                                    const struct ckpt_safetensors_options *options,
                                    struct base_error *error)
{
    *out = NULL;
    struct ckpt_safetensors_writer *writer = base_calloc(1, sizeof *writer);
    if (!writer)
        return no_memory(path, error);
    writer->fd = -1;
    writer->never_replace = options && options->never_replace;
    writer->path = base_strdup(path);
    zero_result result =
        writer->path ? check_target(path, writer->never_replace, error) : no_memory(path, error);
    if (result == ZERO_OK)
        result = copy_table(writer, table, tensors, error);
    if (result == ZERO_OK)
        result = write_header(writer, options, error);
    if (result) {
        ckpt_safetensors_abort(writer);
        return result;
    }
    for (size_t i = 0; i < tensors; i++)
        writer->missing += writer->table[i].count;
    *out = writer;
    return ZERO_OK;
}

// Fails if a finite value would be an infinity in the tensor's type.
static zero_result check_fits(const struct ckpt_safetensors_writer *writer,
                              const struct ckpt_tensor *tensor, uint64_t first, uint64_t count,
                              const float *values, struct base_error *error)
{
    for (uint64_t i = 0; i < count; i++)
        if (tensor->dtype == CKPT_BF16 ? base_beyond_bf16(values[i]) : base_beyond_f16(values[i]))
            return zero_fail(error, ZERO_E_INVALID,
                             "'%s': element %" PRIu64 " of tensor '%.80s' is %g, which %s has not",
                             writer->path, first + i, tensor->name, (double)values[i],
                             tensor->dtype == CKPT_BF16 ? "bf16" : "f16");
    return ZERO_OK;
}

static zero_result write_narrowed(struct ckpt_safetensors_writer *writer,
                                  const struct ckpt_tensor *tensor, uint64_t first, uint64_t count,
                                  const float *values, struct base_error *error)
{
    zero_result result = check_fits(writer, tensor, first, count, values, error);
    for (uint64_t done = 0, chunk; done < count && !result; done += chunk) {
        chunk = count - done < NARROW_CHUNK ? count - done : NARROW_CHUNK;
        for (uint64_t i = 0; i < chunk; i++)
            writer->narrow[i] = tensor->dtype == CKPT_BF16 ? base_bf16_from_f32(values[done + i])
                                                           : base_f16_from_f32(values[done + i]);
        result = base_pwrite_all(
            writer->fd, writer->narrow, (size_t)chunk * sizeof writer->narrow[0],
            tensor->offset + (first + done) * sizeof writer->narrow[0], writer->temporary, error);
    }
    return result;
}

static zero_result check_write(const struct ckpt_safetensors_writer *writer, size_t index,
                               uint64_t first, uint64_t count, struct base_error *error)
{
    return index < writer->tensors
               ? check_range(&writer->table[index], first, count, writer->path, error)
               : zero_fail(error, ZERO_E_INVALID, "'%s' has %zu tensors, not a number %zu",
                           writer->path, writer->tensors, index);
}

zero_result ckpt_safetensors_write_stored(struct ckpt_safetensors_writer *writer, size_t index,
                                          uint64_t first, uint64_t count, const void *elements,
                                          struct base_error *error)
{
    zero_result result = check_write(writer, index, first, count, error);
    if (result)
        return result;
    const struct ckpt_tensor *tensor = &writer->table[index];
    const size_t size = ckpt_dtype_size(tensor->dtype);
    struct base_error cause = {.result = ZERO_OK};
    result = base_pwrite_all(writer->fd, elements, (size_t)(count * size),
                             tensor->offset + first * size, writer->temporary, &cause);
    if (result)
        return tensor_failed(error, tensor, &cause);
    writer->missing -= count;
    return ZERO_OK;
}

zero_result ckpt_safetensors_write(struct ckpt_safetensors_writer *writer, size_t index,
                                   uint64_t first, uint64_t count, const float *values,
                                   struct base_error *error)
{
    zero_result result = check_write(writer, index, first, count, error);
    if (result)
        return result;
    const struct ckpt_tensor *tensor = &writer->table[index];
    if (tensor->dtype == CKPT_F32)
        return ckpt_safetensors_write_stored(writer, index, first, count, values, error);
    struct base_error cause = {.result = ZERO_OK};
    result = write_narrowed(writer, tensor, first, count, values, &cause);
    if (result)
        return tensor_failed(error, tensor, &cause);
    writer->missing -= count;
    return ZERO_OK;
}

// Syncs, closes and renames: afterwards there is no temporary file any more.
static zero_result commit(struct ckpt_safetensors_writer *writer, struct base_error *error)
{
    if (writer->missing != 0)
        return zero_fail(error, ZERO_E_STATE, "'%s': %" PRIu64 " elements were not written once",
                         writer->path, writer->missing);
    zero_result result = base_fsync(writer->fd, writer->temporary, error);
    if (result == ZERO_OK)
        result = base_close(&writer->fd, writer->temporary, error);
    if (result == ZERO_OK)
        result = (writer->never_replace ? base_rename_new : base_rename)(writer->temporary,
                                                                         writer->path, error);
    if (result)
        return result < 0 ? result : ZERO_E_IO;
    base_free(writer->temporary);
    writer->temporary = NULL;
    return base_fsync_parent(writer->path, error);
}

zero_result ckpt_safetensors_finish(struct ckpt_safetensors_writer *writer,
                                    struct base_error *error)
{
    const zero_result result = commit(writer, error);
    ckpt_safetensors_abort(writer); // what is left of it: nothing but memory after a success
    return result;
}

void ckpt_safetensors_abort(struct ckpt_safetensors_writer *writer)
{
    if (!writer)
        return;
    base_close(&writer->fd, writer->temporary, NULL);
    if (writer->temporary)
        unlink(writer->temporary);
    base_free(writer->temporary);
    base_free(writer->table);
    base_free(writer->names);
    base_free(writer->path);
    base_free(writer);
}
