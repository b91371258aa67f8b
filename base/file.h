/**
 * base/file.h: file operations that do all of what they were asked or say what failed.
 *
 * Short transfers are continued and interrupted calls repeated. `path` is used in messages, beside
 * offset and errno. Errors are ZERO_E_IO unless said otherwise. A write beyond the limit of file
 * sizes is such an error too, EFBIG, and no signal (base/size_limit.h). All *local*, any thread.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/**
 * open(2) with O_CLOEXEC added; `mode` is used with O_CREAT. *fd is to be closed with
 * base_close(), -1 on error. ZERO_NOT_FOUND if the file does not exist (error is set too).
 */
zero_result base_open(int *fd, const char *path, int flags, mode_t mode, struct base_error *error);

/** Closes *fd and sets it to -1; does nothing if it is -1 already. The descriptor is gone even
 * after an error, which means that data written to it may be lost. */
zero_result base_close(int *fd, const char *path, struct base_error *error);

/** Writes `count` bytes at the file's position; for pipes and sockets too. */
zero_result base_write_all(int fd, const void *data, size_t count, const char *path,
                           struct base_error *error);

/** Reads `count` bytes at `offset`. ZERO_E_CORRUPT: the file ends before; contents of data are
 * undefined after an error. */
zero_result base_pread_all(int fd, void *data, size_t count, uint64_t offset, const char *path,
                           struct base_error *error);

/** Writes `count` bytes at `offset`. */
zero_result base_pwrite_all(int fd, const void *data, size_t count, uint64_t offset,
                            const char *path, struct base_error *error);

/** The unit of O_DIRECT: what memory, offset and count are multiples of. */
enum { BASE_DIRECT_UNIT = 4096 };

/** Writes `count` bytes at `offset` to a file opened with O_DIRECT: what a short transfer leaves
 * begins at a multiple of the unit again. */
zero_result base_pwrite_direct(int fd, const void *data, size_t count, uint64_t offset,
                               const char *path, struct base_error *error);

/** Size of a regular file in bytes. ZERO_E_INVALID: something else than a regular file. */
zero_result base_file_size(int fd, uint64_t *size, const char *path, struct base_error *error);

/** Cuts a file at `size` bytes, or lengthens it by zeros. */
zero_result base_truncate(int fd, uint64_t size, const char *path, struct base_error *error);

/** Makes what was written to fd durable. */
zero_result base_fsync(int fd, const char *path, struct base_error *error);

/** base_fsync(), without times and what else is not needed to read the file. */
zero_result base_fdatasync(int fd, const char *path, struct base_error *error);

/**
 * flock(2), exclusive or shared, without waiting: ZERO_AGAIN (no message) if a lock is in the way.
 * It goes with this process: a child made by fork() does not get the descriptor (base/forked.h),
 * which is to be closed by base_close().
 */
zero_result base_lock(int fd, bool exclusive, const char *path, struct base_error *error);

/** Gives it up, also where a child made by the system call itself still has the descriptor. */
void base_unlock(int fd);

enum { BASE_HOLDER_BYTES = 128 };

/**
 * Who keeps base_lock() from a file, as the end of a message: " (process 12 has locked it)". Empty
 * where the kernel does not say (/proc/locks), as of a process in another PID namespace. *Local.*
 */
void base_lock_holder(const char *path, char text[BASE_HOLDER_BYTES]);

/* ------------------------------------------------------------------ names */

/** Makes creations, renames and removals in a directory durable. ZERO_NOT_FOUND sets error, too. */
zero_result base_fsync_directory(const char *path, struct base_error *error);

/** base_fsync_directory() of the directory that contains `path`; ZERO_E_IO if it is missing. */
zero_result base_fsync_parent(const char *path, struct base_error *error);

/** Writes to `out` what `path` means in the current working directory, however that changes later:
 * itself if it begins with '/', else behind that directory. ZERO_E_INVALID: not less than `size`
 * bytes, or empty; ZERO_E_IO: the working directory has no path any more. After an error `out` is
 * empty. */
zero_result base_absolute_path(const char *path, char *out, size_t size, struct base_error *error);

/** rename(2): atomically makes `to` the file that was `from`; durable after base_fsync_parent().
 * ZERO_NOT_FOUND (error is set too): no `from`, or a directory is missing. */
zero_result base_rename(const char *from, const char *to, struct base_error *error);

/** base_rename(), unless `to` is there: ZERO_E_INVALID. ZERO_E_UNSUPPORTED: this file system can't
 * tell. */
zero_result base_rename_new(const char *from, const char *to, struct base_error *error);

/** Exchanges two names at once. ZERO_NOT_FOUND like base_rename(); ZERO_E_UNSUPPORTED: this file
 * system can't. */
zero_result base_exchange(const char *one, const char *other, struct base_error *error);

/** unlink(2). ZERO_NOT_FOUND like base_rename(). */
zero_result base_unlink(const char *path, struct base_error *error);

/** mkdir(2), or finds the directory there. ZERO_NOT_FOUND: the one it is to be in is missing;
 * ZERO_E_INVALID: something else has the name. */
zero_result base_make_directory(const char *path, mode_t mode, struct base_error *error);

/** rmdir(2), of an empty one. ZERO_NOT_FOUND like base_rename(). */
zero_result base_remove_directory(const char *path, struct base_error *error);

enum base_entry_kind { BASE_ENTRY_FILE, BASE_ENTRY_DIRECTORY, BASE_ENTRY_OTHER };

/** Receives one entry of a directory, which it may remove. Anything but ZERO_OK ends the listing
 * and is its result. */
typedef zero_result (*base_entry_fn)(void *user, const char *name, enum base_entry_kind kind,
                                     struct base_error *error);

/** Calls `entry` for all entries but "." and "..", in no order. A link is BASE_ENTRY_OTHER.
 * ZERO_NOT_FOUND like base_rename(). */
zero_result base_list(const char *path, base_entry_fn entry, void *user, struct base_error *error);

#endif
