// Writes a safetensors file beside its final place, and renames it when it is whole.

#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/file.h"
#include "checkpoint/safetensors/safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Creates a file beside the final one under a name that no other file has.
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
               ? ckpt_tensor_check_range(&writer->table[index], first, count, writer->path, error)
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
        return ckpt_tensor_failed(error, tensor, &cause);
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
        return ckpt_tensor_failed(error, tensor, &cause);
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
