#include "tests/fault/full_disk.h"

#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PAGE = FULL_DISK_PAGE };

static const char *ballast(const struct temporary *temporary, int number)
{
    char name[32];
    snprintf(name, sizeof name, "full/ballast-%d", number);
    return temporary_path(temporary, name);
}

bool full_disk_mount(const struct temporary *temporary, const char *kind, size_t bytes, int names,
                     char why[MOUNTS_WHY])
{
    const char *full = temporary_path(temporary, "full"), *image;
    char options[64], device[32];
    snprintf(options, sizeof options, "size=%zu,nr_inodes=%d", bytes, names);
    if (strcmp(kind, "memory") == 0)
        return mounts_memory(full, options, why);
    image = temporary_path(temporary, "image");
    if (!mounts_make_ext4(image, bytes, why))
        return false;
    const int loop = mounts_loop(image, device, why);
    const bool mounted = loop >= 0 && mounts_ext4(device, full, why);
    if (loop >= 0)
        close(loop);
    return mounted;
}

bool full_disk_fill(const struct temporary *temporary, int left)
{
    const int fd = open(ballast(temporary, 0), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    off_t size = 0;
    TEAM_CHECK(fd >= 0);
    for (off_t piece = 256 * PAGE; piece >= PAGE; piece /= 2)
        while (fallocate(fd, 0, size, piece) == 0)
            size += piece;
    TEAM_CHECK(errno == ENOSPC && size >= left * (off_t)PAGE);
    // Blocks of an ext4 are free only when their journal says so.
    const bool given = ftruncate(fd, size - left * (off_t)PAGE) == 0 && syncfs(fd) == 0;
    close(fd);
    return given;
}

bool full_disk_fill_names(const struct temporary *temporary, int left)
{
    int fd, count = 0;
    do {
        fd = open(ballast(temporary, count), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
        count += fd >= 0;
    } while (fd >= 0);
    TEAM_CHECK(errno == ENOSPC && count >= left);
    while (left-- > 0)
        TEAM_CHECK(unlink(ballast(temporary, --count)) == 0);
    return true;
}

void full_disk_make_room(const struct temporary *temporary)
{
    int number = 0;
    while (unlink(ballast(temporary, number)) == 0)
        number++;
}

uint64_t full_disk_free(const struct temporary *temporary)
{
    struct statvfs status;
    if (statvfs(temporary_path(temporary, "full"), &status) != 0)
        return 0;
    return (uint64_t)status.f_bavail * status.f_frsize;
}
