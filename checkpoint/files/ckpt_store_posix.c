#include "checkpoint/files/ckpt_store.h"

#include "base/arena.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

_Static_assert(CKPT_STORE_UNIT % BASE_DIRECT_UNIT == 0, "writes fit O_DIRECT");

enum { FILE_MODE = 0666, DIRECTORY_MODE = 0777 }; // less the umask

struct ckpt_file {
    int fd;
    bool lost; // a flush has failed
    char *path;
};

static void free_file(struct ckpt_file **file)
{
    if (!*file)
        return;
    base_close(&(*file)->fd, (*file)->path, NULL);
    base_free((*file)->path);
    base_free(*file);
    *file = NULL;
}

static zero_result open_file(struct ckpt_file **out, const char *path, int flags,
                             struct base_error *error)
{
    struct ckpt_file *file = *out = base_calloc(1, sizeof *file);
    if (file) {
        file->fd = -1;
        file->path = base_strdup(path);
    }
    if (!file || !file->path) {
        free_file(out);
        zero_fail(error, ZERO_E_NOMEM, "no memory to open '%s'", path);
        return ZERO_E_NOMEM;
    }
    const zero_result result = base_open(&file->fd, path, flags, FILE_MODE, error);
    if (result)
        free_file(out);
    return result;
}

static zero_result create_file(void *user, struct ckpt_file **file, const char *path, bool over,
                               struct base_error *error)
{
    (void)user;
    const zero_result result =
        open_file(file, path, O_WRONLY | (over ? 0 : O_CREAT | O_EXCL), error);
    // Not with open(2), which on a file system that can't would leave the new file behind. There
    // writes go through the cache.
    if (result == ZERO_OK)
        (void)fcntl((*file)->fd, F_SETFL, O_DIRECT);
    return result;
}

static zero_result open_to_read(void *user, struct ckpt_file **file, const char *path,
                                struct base_error *error)
{
    (void)user;
    // Without O_NONBLOCK opening a pipe would wait for its writer.
    zero_result result = open_file(file, path, O_RDONLY | O_NONBLOCK, error);
    struct base_error strange = {.result = ZERO_OK};
    uint64_t bytes;
    if (result == ZERO_OK)
        result = base_file_size((*file)->fd, &bytes, path, &strange);
    if (result == ZERO_E_INVALID)
        result = ZERO_E_CORRUPT;
    if (strange.result)
        zero_fail(error, result, "%s", strange.message);
    if (result)
        free_file(file);
    return result;
}

static zero_result write_file(struct ckpt_file *file, const void *data, size_t bytes,
                              uint64_t offset, struct base_error *error)
{
    return base_pwrite_direct(file->fd, data, bytes, offset, file->path, error);
}

static zero_result read_file(struct ckpt_file *file, void *data, size_t bytes, uint64_t offset,
                             struct base_error *error)
{
    return base_pread_all(file->fd, data, bytes, offset, file->path, error);
}

static zero_result file_bytes(struct ckpt_file *file, uint64_t *bytes, struct base_error *error)
{
    return base_file_size(file->fd, bytes, file->path, error);
}

static zero_result truncate_file(struct ckpt_file *file, uint64_t bytes, struct base_error *error)
{
    return base_truncate(file->fd, bytes, file->path, error);
}

static zero_result sync_file(struct ckpt_file *file, struct base_error *error)
{
    if (file->lost)
        return zero_fail(error, ZERO_E_IO, "what was written to '%s' is lost: a flush has failed",
                         file->path);
    const zero_result result = base_fdatasync(file->fd, file->path, error);
    file->lost = result != ZERO_OK;
    return result;
}

static zero_result close_file(struct ckpt_file **file, struct base_error *error)
{
    const zero_result result = *file ? base_close(&(*file)->fd, (*file)->path, error) : ZERO_OK;
    free_file(file);
    return result;
}

static zero_result make_directory(void *user, const char *path, struct base_error *error)
{
    (void)user;
    return base_make_directory(path, DIRECTORY_MODE, error);
}

static zero_result remove_directory(void *user, const char *path, struct base_error *error)
{
    (void)user;
    return base_remove_directory(path, error);
}

static zero_result remove_file(void *user, const char *path, struct base_error *error)
{
    (void)user;
    return base_unlink(path, error);
}

static zero_result rename_entry(void *user, const char *from, const char *to,
                                struct base_error *error)
{
    (void)user;
    return base_rename(from, to, error);
}

static zero_result exchange_entries(void *user, const char *one, const char *other,
                                    struct base_error *error)
{
    (void)user;
    return base_exchange(one, other, error);
}

static zero_result sync_directory(void *user, const char *path, struct base_error *error)
{
    (void)user;
    return base_fsync_directory(path, error);
}

static zero_result list_directory(void *user, const char *path, base_entry_fn entry,
                                  void *entry_user, struct base_error *error)
{
    (void)user;
    return base_list(path, entry, entry_user, error);
}

static zero_result take_lock(void *user, struct ckpt_file **lock, const char *path, bool exclusive,
                             struct base_error *error)
{
    (void)user;
    zero_result result = open_file(lock, path, exclusive ? O_RDWR | O_CREAT : O_RDONLY, error);
    if (result == ZERO_OK)
        result = base_lock((*lock)->fd, exclusive, path, error);
    if (result)
        free_file(lock);
    return result;
}

static bool holds_lock(struct ckpt_file *lock)
{
    struct stat locked, named;
    return fstat(lock->fd, &locked) == 0 && stat(lock->path, &named) == 0 &&
           locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

// Not by closing it alone: a child that the program has forked meanwhile may have it open, too.
static void give_lock_back(struct ckpt_file **lock)
{
    if (*lock)
        base_unlock((*lock)->fd);
    free_file(lock);
}

const struct ckpt_store ckpt_store_posix = {
    .create = create_file,
    .open = open_to_read,
    .write = write_file,
    .read = read_file,
    .bytes = file_bytes,
    .truncate = truncate_file,
    .sync = sync_file,
    .close = close_file,
    .make_directory = make_directory,
    .remove_directory = remove_directory,
    .remove = remove_file,
    .rename = rename_entry,
    .exchange = exchange_entries,
    .sync_directory = sync_directory,
    .list = list_directory,
    .lock = take_lock,
    .holds = holds_lock,
    .unlock = give_lock_back,
};
