#include "offload/file.h"

#include "base/arena.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

// The unit of O_DIRECT for an open file; 0: this file system can't.
static size_t direct_unit(int fd)
{
    const size_t usual = BASE_DIRECT_UNIT;
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

// Turns O_DIRECT on, where that can be had.
static zero_result make_direct(struct off_file *file, struct base_error *error)
{
    const size_t unit = direct_unit(file->fd);
    const int flags = fcntl(file->fd, F_GETFL);
    file->unit = 1;
    if (unit == 0)
        return ZERO_OK;
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT) != 0)
        return errno == EINVAL
                   ? ZERO_OK
                   : zero_fail_errno(error, ZERO_E_IO, errno, "%s: O_DIRECT", file->path);
    file->direct = true;
    file->unit = unit;
    return ZERO_OK;
}

zero_result off_file_open(struct off_file *file, const char *path, int flags, mode_t mode,
                          struct base_error *error)
{
    *file = (struct off_file){.fd = -1};
    file->path = base_strdup(path);
    if (!file->path)
        return zero_fail(error, ZERO_E_NOMEM, "%s: no memory for its name", path);
    zero_result result = base_open(&file->fd, path, O_RDWR | flags, mode, error);
    if (!result)
        result = make_direct(file, error);
    if (result)
        off_file_close(file, NULL);
    return result;
}

zero_result off_file_close(struct off_file *file, struct base_error *error)
{
    const zero_result result = base_close(&file->fd, file->path ? file->path : "", error);
    base_free(file->path);
    *file = (struct off_file){.fd = -1};
    return result;
}
