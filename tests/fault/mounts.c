#include "tests/fault/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static bool lacks(char why[MOUNTS_WHY], const char *what)
{
    snprintf(why, MOUNTS_WHY, "%s: %s", what, strerror(errno));
    return false;
}

static bool write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

// In a user namespace of its own a process is root.
static bool become_root(int kinds)
{
    char users[32], groups[32];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER | kinds) == 0 && write_text("/proc/self/setgroups", "deny") &&
           write_text("/proc/self/uid_map", users) && write_text("/proc/self/gid_map", groups);
}

bool mounts_namespace(int kinds, char why[MOUNTS_WHY])
{
    return unshare(kinds) == 0 || become_root(kinds) || lacks(why, "no namespace of its own");
}

bool mounts_begin(char why[MOUNTS_WHY])
{
    if (!mounts_namespace(CLONE_NEWNS, why))
        return false;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return lacks(why, "no private mounts");
    return true;
}

bool mounts_memory(const char *directory, const char *options, char why[MOUNTS_WHY])
{
    return mount("zero-test", directory, "tmpfs", 0, options) == 0 || lacks(why, "no tmpfs");
}

static bool run(const char *const *arguments)
{
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        setenv("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", 1);
        execvp(arguments[0], (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

bool mounts_make_ext4(const char *image, size_t bytes, char why[MOUNTS_WHY])
{
    const int fd = open(image, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool sized = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0;
    if (fd >= 0)
        close(fd);
    if (!sized)
        return lacks(why, "no image of a file system");
    const char *const arguments[] = {
        "mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0", image, NULL};
    errno = ENOENT;
    return run(arguments) || lacks(why, "no mkfs.ext4");
}

int mounts_loop(const char *image, char name[32], char why[MOUNTS_WHY])
{
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    const int file = open(image, O_RDWR | O_CLOEXEC);
    int loop = -1;
    // Another process may take the one that is free.
    for (int tries = 0; control >= 0 && file >= 0 && loop < 0 && tries < 16; tries++) {
        const struct loop_config config = {.fd = (unsigned)file,
                                           .info.lo_flags = LO_FLAGS_AUTOCLEAR};
        snprintf(name, 32, "/dev/loop%d", ioctl(control, LOOP_CTL_GET_FREE));
        loop = open(name, O_RDWR | O_CLOEXEC);
        if (loop >= 0 && ioctl(loop, LOOP_CONFIGURE, &config) != 0) {
            close(loop);
            loop = -1;
        }
    }
    if (loop < 0)
        lacks(why, "no loop device");
    if (file >= 0)
        close(file);
    if (control >= 0)
        close(control);
    return loop;
}

bool mounts_ext4(const char *device, const char *directory, char why[MOUNTS_WHY])
{
    return mount(device, directory, "ext4", MS_NOATIME, NULL) == 0 || lacks(why, "no ext4");
}

bool mounts_allow(const char *directory, bool writing)
{
    return mount(NULL, directory, NULL, MS_REMOUNT | MS_BIND | (writing ? 0 : MS_RDONLY), NULL) ==
           0;
}

bool mounts_end(const char *directory)
{
    return umount2(directory, 0) == 0;
}
