#include "base/fault.h"
#include "base/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ENOENT is the one failure that callers tell from others.
static zero_result failed(struct base_error *error, int errnum, const char *what, const char *path)
{
    return zero_fail_errno(error, errnum == ENOENT ? ZERO_NOT_FOUND : ZERO_E_IO, errnum,
                           "cannot %s '%s'", what, path);
}

zero_result base_fsync_directory(const char *path, struct base_error *error)
{
    int fd;
    zero_result result = base_open(&fd, path, O_RDONLY | O_DIRECTORY, 0, error);
    if (result)
        return result;
    result = base_fsync(fd, path, error);
    const zero_result closed = base_close(&fd, path, error);
    return result ? result : closed;
}

zero_result base_fsync_parent(const char *path, struct base_error *error)
{
    assert(*path);
    const char *slash = strrchr(path, '/');
    const size_t length = slash && slash > path ? (size_t)(slash - path) : 1;
    char directory[4096];
    if (length >= sizeof directory)
        return zero_fail_errno(error, ZERO_E_IO, ENAMETOOLONG, "cannot open '%s'", path);
    memcpy(directory, slash ? path : ".", length);
    directory[length] = '\0';
    const zero_result result = base_fsync_directory(directory, error);
    return result > 0 ? ZERO_E_IO : result;
}

zero_result base_absolute_path(const char *path, char *out, size_t size, struct base_error *error)
{
    assert(size > 0);
    char working[PATH_MAX] = "";
    *out = '\0';
    if (!*path)
        return zero_fail(error, ZERO_E_INVALID, "an empty path");
    if (*path != '/' && (!getcwd(working, sizeof working) || *working != '/'))
        return zero_fail_errno(error, ZERO_E_IO, errno,
                               "'%.300s' is below the working directory, which has no path", path);
    const size_t length = strcmp(working, "/") == 0 ? 0 : strlen(working);
    const size_t all = length + strlen(path) + (*path != '/');
    if (all >= size)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%.60s...' has %zu bytes with the working directory, more than %zu", path,
                         all, size - 1);
    assert(all > 0 && (length > 0 || *path == '/' || strcmp(working, "/") == 0));
    snprintf(out, size, "%.*s%s%s", (int)length, working, *path == '/' ? "" : "/", path);
    return ZERO_OK;
}

zero_result base_rename(const char *from, const char *to, struct base_error *error)
{
    int errnum = base_fault("io.rename");
    if (!errnum && rename(from, to) != 0)
        errnum = errno;
    return errnum ? zero_fail_errno(error, errnum == ENOENT ? ZERO_NOT_FOUND : ZERO_E_IO, errnum,
                                    "cannot rename '%s' to '%s'", from, to)
                  : ZERO_OK;
}

zero_result base_rename_new(const char *from, const char *to, struct base_error *error)
{
    int errnum = base_fault("io.rename");
    if (!errnum && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) != 0)
        errnum = errno;
    const zero_result result = errnum == EEXIST   ? ZERO_E_INVALID
                               : errnum == ENOENT ? ZERO_NOT_FOUND
                               : errnum == EINVAL ? ZERO_E_UNSUPPORTED
                                                  : ZERO_E_IO;
    return errnum ? zero_fail_errno(error, result, errnum, "cannot rename '%s' to a new '%s'", from,
                                    to)
                  : ZERO_OK;
}

zero_result base_exchange(const char *one, const char *other, struct base_error *error)
{
    int errnum = base_fault("io.exchange");
    if (!errnum && renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) != 0)
        errnum = errno;
    if (!errnum)
        return ZERO_OK;
    const zero_result result = errnum == EINVAL || errnum == ENOSYS ? ZERO_E_UNSUPPORTED
                               : errnum == ENOENT                   ? ZERO_NOT_FOUND
                                                                    : ZERO_E_IO;
    return zero_fail_errno(error, result, errnum, "cannot exchange '%s' and '%s'", one, other);
}

zero_result base_unlink(const char *path, struct base_error *error)
{
    int errnum = base_fault("io.unlink");
    if (!errnum && unlink(path) != 0)
        errnum = errno;
    return errnum ? failed(error, errnum, "remove", path) : ZERO_OK;
}

zero_result base_make_directory(const char *path, mode_t mode, struct base_error *error)
{
    int errnum = base_fault("io.mkdir");
    if (!errnum && mkdir(path, mode) != 0)
        errnum = errno;
    struct stat status;
    if (errnum == EEXIST && stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode))
            return ZERO_OK;
        return zero_fail(error, ZERO_E_INVALID, "'%s' is no directory", path);
    }
    return errnum ? failed(error, errnum, "make directory", path) : ZERO_OK;
}

zero_result base_remove_directory(const char *path, struct base_error *error)
{
    int errnum = base_fault("io.rmdir");
    if (!errnum && rmdir(path) != 0)
        errnum = errno;
    return errnum ? failed(error, errnum, "remove directory", path) : ZERO_OK;
}

static enum base_entry_kind kind_of(DIR *directory, const struct dirent *entry)
{
    struct stat status;
    if (entry->d_type == DT_REG)
        return BASE_ENTRY_FILE;
    if (entry->d_type == DT_DIR)
        return BASE_ENTRY_DIRECTORY;
    // Not every file system says it here.
    if (entry->d_type != DT_UNKNOWN ||
        fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return BASE_ENTRY_OTHER;
    if (S_ISREG(status.st_mode))
        return BASE_ENTRY_FILE;
    return S_ISDIR(status.st_mode) ? BASE_ENTRY_DIRECTORY : BASE_ENTRY_OTHER;
}

// The next entry; NULL with errno 0: no more.
static struct dirent *next_entry(DIR *directory)
{
    struct dirent *entry;
    errno = base_fault("io.list");
    if (errno)
        return NULL;
    do
        entry = readdir(directory);
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry;
}

zero_result base_list(const char *path, base_entry_fn entry, void *user, struct base_error *error)
{
    int fd;
    zero_result result = base_open(&fd, path, O_RDONLY | O_DIRECTORY, 0, error);
    if (result)
        return result;
    DIR *directory = fdopendir(fd);
    if (!directory) {
        result = failed(error, errno, "list", path);
        base_close(&fd, path, NULL);
        return result < 0 ? result : ZERO_E_IO;
    }
    struct dirent *next;
    while (!result && (next = next_entry(directory)))
        result = entry(user, next->d_name, kind_of(directory, next), error);
    if (!result && errno)
        result = zero_fail_errno(error, ZERO_E_IO, errno, "cannot list '%s'", path);
    closedir(directory);
    return result;
}
