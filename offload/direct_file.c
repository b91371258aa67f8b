#include "offload/direct_file.h"

#include "base/arena.h"
#include "base/fault.h"
#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

// The unit of O_DIRECT for an open file; 0: this file system can't.
static size_t direct_unit(int fd)
{
    const size_t usual = BASE_DIRECT_UNIT;
    if (base_fault("file.unit") != 0)
        return 2 * usual;
#ifdef STATX_DIOALIGN
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
        (status.stx_mask & STATX_DIOALIGN) != 0) {
        const size_t memory = status.stx_dio_mem_align, offset = status.stx_dio_offset_align;
        return memory > offset ? memory : offset;
    }
#endif
    return usual;
}

// 0, or what is wrong.
static int set_direct(int fd)
{
    const int failed = base_fault("file.direct");
    if (failed != 0)
        return failed;
    const int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0 ? errno : 0;
}

// Turns O_DIRECT on, where that can be had.
static zero_result make_direct(struct off_direct_file *file, struct base_error *error)
{
    assert(file->fd >= 0 && file->direct_unit == 0);
    const size_t unit = direct_unit(file->fd);
    file->unit = 1;
    if (unit == 0)
        return ZERO_OK;
    if (unit > BASE_DIRECT_UNIT) {
        file->direct_unit = unit;
        return ZERO_OK;
    }
    const int failed = set_direct(file->fd);
    if (failed != 0)
        return failed == EINVAL
                   ? ZERO_OK
                   : zero_fail_errno(error, ZERO_E_IO, failed, "%s: O_DIRECT", file->path);
    file->unit = file->direct_unit = unit;
    return ZERO_OK;
}

const char *off_direct_file_text(size_t direct_unit, char text[OFF_DIRECT_FILE_TEXT_BYTES])
{
    if (direct_unit == 0)
        snprintf(text, OFF_DIRECT_FILE_TEXT_BYTES,
                 "through the cache: this file system has no O_DIRECT");
    else if (direct_unit > BASE_DIRECT_UNIT)
        snprintf(text, OFF_DIRECT_FILE_TEXT_BYTES,
                 "through the cache: O_DIRECT takes units of %zu bytes here, more than %d",
                 direct_unit, BASE_DIRECT_UNIT);
    else
        snprintf(text, OFF_DIRECT_FILE_TEXT_BYTES, "past the cache in units of %zu bytes",
                 direct_unit);
    return text;
}

zero_result off_direct_file_open(struct off_direct_file *file, const char *path, int flags,
                                 mode_t mode, struct base_error *error)
{
    assert(path && *path);
    *file = (struct off_direct_file){.fd = -1};
    file->path = base_strdup(path);
    if (!file->path)
        return zero_fail(error, ZERO_E_NOMEM, "%s: no memory for its name", path);
    zero_result result = base_open(&file->fd, path, O_RDWR | flags, mode, error);
    if (!result)
        result = make_direct(file, error);
    if (result)
        off_direct_file_close(file, NULL);
    return result;
}

zero_result off_direct_file_close(struct off_direct_file *file, struct base_error *error)
{
    const zero_result result = base_close(&file->fd, file->path ? file->path : "", error);
    base_free(file->path);
    *file = (struct off_direct_file){.fd = -1};
    return result;
}
