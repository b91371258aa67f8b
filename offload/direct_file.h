/**
 * offload/direct_file.h: a file that is read and written past the system's cache, where the file
 * system can do that.
 *
 * Its caller rounds memory, offsets and sizes to multiples of BASE_DIRECT_UNIT. Where O_DIRECT
 * would take larger ones, files go through the cache.
 *
 * Points of base/fault.h: file.direct (O_DIRECT is not to be had; einval: of this file system),
 * file.unit (its unit is too large).
 */
#ifndef OFFLOAD_DIRECT_FILE_H
#define OFFLOAD_DIRECT_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct off_direct_file {
    int fd;             /**< -1: none */
    size_t unit;        /**< what memory, offsets and sizes are multiples of; 1 without O_DIRECT */
    size_t direct_unit; /**< the same with it; 0: this file system has none; more than
                             BASE_DIRECT_UNIT: nor has the file */
    char *path;
};

enum { OFF_DIRECT_FILE_TEXT_BYTES = 96 };

/** "past the cache in units of 4096 bytes" and the like; returns `text`. */
const char *off_direct_file_text(size_t direct_unit, char text[OFF_DIRECT_FILE_TEXT_BYTES]);

/**
 * Opens for reading and writing; `flags` are open(2)'s further ones, `mode` is used with O_CREAT.
 * The unit is asked of the kernel (statx), which knows it from Linux 6.1 on; before that it is
 * 4,096. *Local.* ZERO_NOT_FOUND (error is set too), ZERO_E_IO, ZERO_E_NOMEM: *file has none.
 */
zero_result off_direct_file_open(struct off_direct_file *file, const char *path, int flags,
                                 mode_t mode, struct base_error *error);

/** Closes it; accepts one that has none. An error means that data may be lost. *Local.* */
zero_result off_direct_file_close(struct off_direct_file *file, struct base_error *error);

#endif
