#include "checkpoint/safetensors/safetensors_index.h"

#include "base/arena.h"
#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool ckpt_index_is(const char *path)
{
    static const char end[] = ".json";
    const size_t length = strlen(path);
    return length >= sizeof end && strcmp(path + length - strlen(end), end) == 0;
}

/* ------------------------------------------------------------------ reading */

static zero_result parse(struct ckpt_index *index, const char *text, size_t length,
                         struct base_error *error)
{
    json_error_t where;
    index->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    if (!index->root && json_error_code(&where) == json_error_out_of_memory)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for an index of %zu bytes",
                         index->path, length);
    if (!index->root)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s': the index is damaged at byte %d: %s",
                         index->path, where.position, where.text);
    index->map = json_object_get(index->root, "weight_map");
    return json_is_object(index->map)
               ? ZERO_OK
               : zero_fail(error, ZERO_E_CORRUPT, "'%s' is no index: it has no weight_map",
                           index->path);
}

static zero_result read_text(struct ckpt_index *index, int fd, struct base_error *error)
{
    uint64_t size = 0;
    zero_result result = base_file_size(fd, &size, index->path, error);
    if (result)
        return result;
    if (size > CKPT_MAX_HEADER)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s': an index of %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                         index->path, size, CKPT_MAX_HEADER);
    char *text = base_calloc((size_t)size, 1);
    if (!text)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for an index of %" PRIu64 " bytes",
                         index->path, size);
    result = base_pread_all(fd, text, (size_t)size, 0, index->path, error);
    if (!result)
        result = parse(index, text, (size_t)size, error);
    base_free(text);
    return result;
}

static int compare_names(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

// Lists the files. Whatever an index says, nothing but what is beside it is opened.
static zero_result list_files(struct ckpt_index *index, struct base_error *error)
{
    const char *tensor;
    json_t *value;
    size_t count = 0;
    index->file = base_calloc(json_object_size(index->map), sizeof *index->file);
    if (!index->file)
        return zero_fail(error, ZERO_E_NOMEM, "'%s': no memory for %zu tensors", index->path,
                         json_object_size(index->map));
    json_object_foreach(index->map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !*name || strchr(name, '/') || ckpt_index_is(name))
            return zero_fail(error, ZERO_E_CORRUPT,
                             "'%s': tensor '%.80s' is in no file of this folder: '%.80s'",
                             index->path, tensor, name ? name : "");
        index->file[count++] = name;
    }
    if (count > 0)
        qsort(index->file, count, sizeof *index->file, compare_names);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(index->file[i], index->file[index->files - 1]) != 0)
            index->file[index->files++] = index->file[i];
    return index->files > 0 ? ZERO_OK
                            : zero_fail(error, ZERO_E_CORRUPT, "'%s' has no tensors", index->path);
}

zero_result ckpt_index_read(struct ckpt_index *index, const char *path, struct base_error *error)
{
    int fd = -1;
    *index = (struct ckpt_index){.path = path};
    // Without O_NONBLOCK opening a pipe would wait for its writer.
    zero_result result = base_open(&fd, path, O_RDONLY | O_NONBLOCK, 0, error);
    if (!result)
        result = read_text(index, fd, error);
    base_close(&fd, path, NULL);
    if (!result)
        result = list_files(index, error);
    if (result)
        ckpt_index_free(index);
    return result;
}

void ckpt_index_free(struct ckpt_index *index)
{
    base_free(index->file);
    json_decref(index->root);
    *index = (struct ckpt_index){0};
}

/* ------------------------------------------------------------------ its files */

char *ckpt_index_path(const struct ckpt_index *index, size_t number)
{
    const char *slash = strrchr(index->path, '/'), *name = index->file[number];
    const size_t folder = slash ? (size_t)(slash + 1 - index->path) : 0, size = strlen(name) + 1;
    char *path = base_calloc(folder + size, 1);
    if (path) {
        memcpy(path, index->path, folder);
        memcpy(path + folder, name, size);
    }
    return path;
}

// The first tensor that the index has in file `name` and the file does not have; NULL: none.
static const char *find_missing(const struct ckpt_index *index, const char *name,
                                const struct ckpt_header *header)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(index->map, tensor, value)
    {
        if (strcmp(json_string_value(value), name) == 0 &&
            !ckpt_header_search(header->by_name, header->count, tensor))
            return tensor;
    }
    return NULL;
}

zero_result ckpt_index_check(const struct ckpt_index *index, size_t number,
                             const struct ckpt_header *header, struct base_error *error)
{
    const char *name = index->file[number];
    for (size_t i = 0; i < header->count; i++) {
        const char *tensor = header->tensor[i].name;
        const char *said = json_string_value(json_object_get(index->map, tensor));
        if (!said)
            return zero_fail(error, ZERO_E_CORRUPT, "'%s' does not have tensor '%.80s' of '%.80s'",
                             index->path, tensor, name);
        if (strcmp(said, name) != 0)
            return zero_fail(error, ZERO_E_CORRUPT,
                             "'%s': tensor '%.80s' is in '%.80s', not in '%.80s'", index->path,
                             tensor, name, said);
    }
    const char *missing = find_missing(index, name, header);
    return missing ? zero_fail(error, ZERO_E_CORRUPT, "'%s': tensor '%.80s' is not in '%.80s'",
                               index->path, missing, name)
                   : ZERO_OK;
}
