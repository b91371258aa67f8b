/**
 * base/file.h: file operations that do all of what they were asked or say what failed.
 *
 * Short transfers are continued and interrupted calls repeated. `path` is used in messages, beside
 * offset and errno. Errors are ZERO_E_IO unless said otherwise. All *local*, any thread.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

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

/** Size of a regular file in bytes. ZERO_E_INVALID: something else than a regular file. */
zero_result base_file_size(int fd, uint64_t *size, const char *path, struct base_error *error);

/** Makes what was written to fd durable. */
zero_result base_fsync(int fd, const char *path, struct base_error *error);

/** Makes creations, renames and removals in the directory that contains `path` durable. */
zero_result base_fsync_parent(const char *path, struct base_error *error);

/** rename(2): atomically makes `to` the file that was `from`; durable after base_fsync_parent(). */
zero_result base_rename(const char *from, const char *to, struct base_error *error);

#endif
