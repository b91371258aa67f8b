#include "tests/unit/memory_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// An open file: which one, by its path, as it may be replaced meanwhile.
struct ckpt_file {
    struct memory_store *memory;
    struct memory_file *file;
};

struct memory_file *memory_store_find(struct memory_store *memory, const char *path)
{
    for (size_t i = 0; i < MEMORY_FILES; i++)
        if (memory->files[i].data && strcmp(memory->files[i].path, path) == 0)
            return &memory->files[i];
    return NULL;
}

static void resize(struct memory_file *file, size_t bytes)
{
    // Exactly so long, so that a sanitizer sees one byte too far.
    unsigned char *data = realloc(file->data, bytes > 0 ? bytes : 1);
    if (!data)
        abort();
    if (bytes > file->bytes)
        memset(data + file->bytes, 0, bytes - file->bytes);
    file->data = data;
    file->bytes = bytes;
}

static struct memory_file *make_file(struct memory_store *memory, const char *path)
{
    struct memory_file *file = memory_store_find(memory, path);
    for (size_t i = 0; !file && i < MEMORY_FILES; i++)
        if (!memory->files[i].data)
            file = &memory->files[i];
    if (!file)
        abort();
    snprintf(file->path, sizeof file->path, "%s", path);
    resize(file, 0);
    return file;
}

void memory_store_put(struct memory_store *memory, const char *path, const void *data, size_t bytes)
{
    struct memory_file *file = make_file(memory, path);
    resize(file, bytes);
    if (bytes > 0)
        memcpy(file->data, data, bytes);
}

static zero_result open_file(struct memory_store *memory, struct ckpt_file **out,
                             struct memory_file *file)
{
    *out = malloc(sizeof **out);
    if (!*out)
        abort();
    **out = (struct ckpt_file){memory, file};
    memory->open++;
    return ZERO_OK;
}

static zero_result create_in_memory(void *user, struct ckpt_file **file, const char *path,
                                    bool over, struct base_error *error)
{
    (void)over;
    (void)error;
    return open_file(user, file, make_file(user, path));
}

static zero_result open_in_memory(void *user, struct ckpt_file **file, const char *path,
                                  struct base_error *error)
{
    struct memory_file *found = memory_store_find(user, path);
    *file = NULL;
    return found ? open_file(user, file, found)
                 : zero_fail(error, ZERO_NOT_FOUND, "there is no '%s'", path);
}

static zero_result write_in_memory(struct ckpt_file *file, const void *data, size_t bytes,
                                   uint64_t offset, struct base_error *error)
{
    if ((uintptr_t)data % CKPT_STORE_UNIT || bytes % CKPT_STORE_UNIT || offset % CKPT_STORE_UNIT)
        return zero_fail(error, ZERO_E_IO, "a write that is no multiple of a unit");
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (offset + bytes > file->file->bytes)
        resize(file->file, offset + bytes);
    memcpy(file->file->data + offset, data, bytes);
    pthread_mutex_unlock(&mutex);
    return ZERO_OK;
}

static zero_result read_in_memory(struct ckpt_file *file, void *data, size_t bytes, uint64_t offset,
                                  struct base_error *error)
{
    if (offset > file->file->bytes || bytes > file->file->bytes - offset)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' ends early", file->file->path);
    memcpy(data, file->file->data + offset, bytes);
    return ZERO_OK;
}

static zero_result bytes_in_memory(struct ckpt_file *file, uint64_t *bytes,
                                   struct base_error *error)
{
    (void)error;
    *bytes = file->file->bytes;
    return ZERO_OK;
}

static zero_result truncate_in_memory(struct ckpt_file *file, uint64_t bytes,
                                      struct base_error *error)
{
    (void)error;
    resize(file->file, bytes);
    return ZERO_OK;
}

static zero_result sync_in_memory(struct ckpt_file *file, struct base_error *error)
{
    (void)file;
    (void)error;
    return ZERO_OK;
}

static zero_result close_in_memory(struct ckpt_file **file, struct base_error *error)
{
    (void)error;
    if (*file)
        (*file)->memory->open--;
    free(*file);
    *file = NULL;
    return ZERO_OK;
}

static zero_result lock_nothing(void *user, struct ckpt_file **lock, const char *path,
                                bool exclusive, struct base_error *error)
{
    (void)user;
    (void)exclusive;
    *lock = NULL;
    return zero_fail(error, ZERO_NOT_FOUND, "there is no '%s'", path);
}

static void unlock_nothing(struct ckpt_file **lock)
{
    *lock = NULL;
}

void memory_store_init(struct memory_store *memory)
{
    *memory = (struct memory_store){.store = {.user = memory,
                                              .create = create_in_memory,
                                              .open = open_in_memory,
                                              .write = write_in_memory,
                                              .read = read_in_memory,
                                              .bytes = bytes_in_memory,
                                              .truncate = truncate_in_memory,
                                              .sync = sync_in_memory,
                                              .close = close_in_memory,
                                              .lock = lock_nothing,
                                              .unlock = unlock_nothing}};
}

void memory_store_free(struct memory_store *memory)
{
    for (size_t i = 0; i < MEMORY_FILES; i++)
        free(memory->files[i].data);
    *memory = (struct memory_store){.open = memory->open};
}
