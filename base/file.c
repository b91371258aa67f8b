#include "base/file.h"

#include "base/fault.h"
#include "base/forked.h"
#include "base/size_limit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

// More than this a single call does not transfer anyway.
static const size_t largest_transfer = (size_t)1 << 30;

zero_result base_open(int *fd, const char *path, int flags, mode_t mode, struct base_error *error)
{
    int errnum = base_fault("io.open");
    do
        *fd = errnum ? -1 : open(path, flags | O_CLOEXEC, mode);
    while (*fd < 0 && !errnum && errno == EINTR);
    if (*fd >= 0)
        return ZERO_OK;
    errno = errnum = errnum ? errnum : errno;
    return zero_fail_errno(error, errnum == ENOENT ? ZERO_NOT_FOUND : ZERO_E_IO, errnum,
                           "cannot open '%s'", path);
}

zero_result base_close(int *fd, const char *path, struct base_error *error)
{
    if (*fd < 0)
        return ZERO_OK;
    int errnum = base_fault("io.close");
    base_forked_release(*fd);
    // Linux frees the descriptor even when interrupted: never close twice.
    if (close(*fd) != 0 && errno != EINTR && !errnum)
        errnum = errno;
    *fd = -1;
    return errnum ? zero_fail_errno(error, ZERO_E_IO, errnum, "closing '%s' failed", path)
                  : ZERO_OK;
}

// Where a transfer stands: `left` bytes at `data` to move to or from `offset`.
struct transfer {
    int fd;
    bool positioned; // false: at the descriptor's own position
    size_t unit;     // moves multiples of this; 0: any number of bytes
    unsigned char *data;
    size_t left;
    uint64_t offset;
};

static ssize_t read_once(struct transfer *t, size_t count)
{
    const int errnum = base_fault("io.read");
    if (errnum) {
        errno = errnum;
        return -1;
    }
    return pread(t->fd, t->data, count, (off_t)t->offset);
}

static ssize_t write_once(struct transfer *t, size_t count)
{
    const int errnum = base_fault("io.write");
    if (errnum) {
        errno = errnum;
        return -1;
    }
    const struct base_size_limit limit = base_size_limit_begin();
    const ssize_t written = t->positioned ? pwrite(t->fd, t->data, count, (off_t)t->offset)
                                          : write(t->fd, t->data, count);
    base_size_limit_end(&limit);
    return written;
}

static size_t round_down(const struct transfer *t, size_t count)
{
    return t->unit ? count / t->unit * t->unit : count;
}

// Moves everything; returns 0, an errno, or -1 where nothing moves any more (the file's end).
static int move_all(struct transfer *t, ssize_t (*once)(struct transfer *t, size_t count))
{
    if (t->offset > INT64_MAX || t->left > INT64_MAX - t->offset)
        return EOVERFLOW;
    assert(!t->unit || ((uintptr_t)t->data | t->left | t->offset) % t->unit == 0);
    while (t->left > 0) {
        size_t count = t->left < largest_transfer ? t->left : largest_transfer;
        if (base_fault("io.short"))
            count -= round_down(t, count / 2);
        assert(count > 0 && count <= t->left);
        const ssize_t result = once(t, count);
        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0)
            return errno;
        const size_t moved = round_down(t, (size_t)result);
        assert((size_t)result <= count);
        if (moved == 0)
            return -1;
        t->data += moved;
        t->left -= moved;
        t->offset += moved;
    }
    return 0;
}

static zero_result write_failed(const struct transfer *t, int errnum, size_t count,
                                const char *path, struct base_error *error)
{
    assert(t->left > 0 && t->left <= count);
    return zero_fail_errno(error, ZERO_E_IO, errnum > 0 ? errnum : ENOSPC,
                           "writing %zu bytes to '%s' failed at offset %" PRIu64, count, path,
                           t->offset);
}

zero_result base_write_all(int fd, const void *data, size_t count, const char *path,
                           struct base_error *error)
{
    struct transfer t = {.fd = fd, .data = (unsigned char *)(uintptr_t)data, .left = count};
    const int errnum = move_all(&t, write_once);
    return errnum ? write_failed(&t, errnum, count, path, error) : ZERO_OK;
}

static zero_result write_at(int fd, const void *data, size_t count, uint64_t offset, size_t unit,
                            const char *path, struct base_error *error)
{
    struct transfer t = {.fd = fd,
                         .positioned = true,
                         .unit = unit,
                         .data = (unsigned char *)(uintptr_t)data,
                         .left = count,
                         .offset = offset};
    const int errnum = move_all(&t, write_once);
    return errnum ? write_failed(&t, errnum, count, path, error) : ZERO_OK;
}

zero_result base_pwrite_all(int fd, const void *data, size_t count, uint64_t offset,
                            const char *path, struct base_error *error)
{
    return write_at(fd, data, count, offset, 0, path, error);
}

zero_result base_pwrite_direct(int fd, const void *data, size_t count, uint64_t offset,
                               const char *path, struct base_error *error)
{
    return write_at(fd, data, count, offset, BASE_DIRECT_UNIT, path, error);
}

zero_result base_pread_all(int fd, void *data, size_t count, uint64_t offset, const char *path,
                           struct base_error *error)
{
    struct transfer t = {
        .fd = fd, .positioned = true, .data = data, .left = count, .offset = offset};
    const int errnum = move_all(&t, read_once);
    if (errnum < 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%s' ends at offset %" PRIu64 ", %zu bytes too early", path, t.offset,
                         t.left);
    if (errnum > 0)
        return zero_fail_errno(error, ZERO_E_IO, errnum,
                               "reading %zu bytes of '%s' failed at offset %" PRIu64, count, path,
                               t.offset);
    return ZERO_OK;
}

zero_result base_file_size(int fd, uint64_t *size, const char *path, struct base_error *error)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "cannot look at '%s'", path);
    if (!S_ISREG(status.st_mode))
        return zero_fail(error, ZERO_E_INVALID, "'%s' is no regular file", path);
    *size = (uint64_t)status.st_size;
    return ZERO_OK;
}

zero_result base_truncate(int fd, uint64_t size, const char *path, struct base_error *error)
{
    const struct base_size_limit limit = base_size_limit_begin();
    int errnum = size > INT64_MAX ? EFBIG : base_fault("io.truncate");
    while (!errnum && ftruncate(fd, (off_t)size) != 0)
        if (errno != EINTR)
            errnum = errno;
    base_size_limit_end(&limit);
    return errnum ? zero_fail_errno(error, ZERO_E_IO, errnum,
                                    "cannot make '%s' %" PRIu64 " bytes long", path, size)
                  : ZERO_OK;
}

static zero_result flush(int fd, int (*call)(int fd), const char *path, struct base_error *error)
{
    int errnum = base_fault("io.fsync");
    // After a failed fsync the data may be lost for good, so only an interruption is repeated.
    while (!errnum && call(fd) != 0)
        if (errno != EINTR)
            errnum = errno;
    return errnum ? zero_fail_errno(error, ZERO_E_IO, errnum, "fsync of '%s' failed", path)
                  : ZERO_OK;
}

zero_result base_fsync(int fd, const char *path, struct base_error *error)
{
    return flush(fd, fsync, path, error);
}

zero_result base_fdatasync(int fd, const char *path, struct base_error *error)
{
    return flush(fd, fdatasync, path, error);
}

zero_result base_lock(int fd, bool exclusive, const char *path, struct base_error *error)
{
    assert(fd >= 0);
    int errnum = base_fault("io.lock");
    while (!errnum && flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0)
        if (errno != EINTR)
            errnum = errno;
    if (errnum == EWOULDBLOCK)
        return ZERO_AGAIN;
    if (!errnum)
        errnum = base_forked_guard(fd);
    return errnum ? zero_fail_errno(error, ZERO_E_IO, errnum, "cannot lock '%s'", path) : ZERO_OK;
}

void base_unlock(int fd)
{
    (void)flock(fd, LOCK_UN);
}

// The process that has locked a file, by a line of /proc/locks; 0 if the line is of another.
static int holder_in(const char *line, const struct stat *file)
{
    unsigned long long inode;
    unsigned major_number, minor_number;
    int pid;
    if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid, &major_number, &minor_number,
               &inode) != 4 ||
        makedev(major_number, minor_number) != file->st_dev || inode != file->st_ino)
        return 0;
    return pid > 0 ? pid : 0;
}

void base_lock_holder(const char *path, char text[BASE_HOLDER_BYTES])
{
    char line[256];
    struct stat file;
    int pid = 0;
    text[0] = '\0';
    FILE *locks = stat(path, &file) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (pid == 0 && locks && fgets(line, sizeof line, locks))
        pid = holder_in(line, &file);
    if (locks)
        fclose(locks);
    if (pid > 0)
        snprintf(text, BASE_HOLDER_BYTES, " (process %d has locked it%s)", pid,
                 kill(pid, 0) != 0 && errno == ESRCH
                     ? " and has ended: a process that it has started still has it open"
                     : "");
}
