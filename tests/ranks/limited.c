/*
 * limited [user] [memlock=KIB] [files=N] [refuse=ERRNO] [bare] -- program [arguments...]
 *
 * Starts a program as a container or a login shell would: as nobody, if root asks for it (user);
 * with limits of locked memory and of open files; where io_uring_setup(2) is refused (EPERM,
 * ENOSYS); with nothing in its environment but PATH and what begins with ZERO_ (bare). 77: that
 * cannot be had here.
 */
#include "tests/unit/refuse_calls.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SKIPPED = 77, NOBODY = 65534, MOST_VARIABLES = 64 };

static int skip(const char *what)
{
    fprintf(stderr, "limited: %s: %s\n", what, strerror(errno));
    return SKIPPED;
}

static int become_nobody(void)
{
    if (getuid() != 0)
        return 0;
    for (unsigned long capability = 0; capability < 64; capability++)
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0); // those there are
    if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
        setresuid(NOBODY, NOBODY, NOBODY))
        return skip("becoming nobody");
    return 0;
}

static int lower(__rlimit_resource_t resource, const char *number, unsigned unit)
{
    const rlim_t most = strtoul(number, NULL, 10) * unit;
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = most};
    return setrlimit(resource, &limit) ? skip("setrlimit") : 0;
}

static int refuse(const char *name)
{
    const int errnum = strcmp(name, "ENOSYS") == 0 ? ENOSYS : EPERM;
    return refuse_call(SYS_io_uring_setup, -1, errnum) ? 0 : skip("a filter of calls");
}

static void strip_environment(void)
{
    static char *kept[MOST_VARIABLES + 1];
    int count = 0;
    for (char **variable = environ; *variable && count < MOST_VARIABLES; variable++)
        if (strncmp(*variable, "PATH=", 5) == 0 || strncmp(*variable, "ZERO_", 5) == 0)
            kept[count++] = *variable;
    environ = kept;
}

static int apply(const char *word)
{
    if (strcmp(word, "user") == 0)
        return become_nobody();
    if (strncmp(word, "memlock=", 8) == 0)
        return lower(RLIMIT_MEMLOCK, word + 8, 1024);
    if (strncmp(word, "files=", 6) == 0)
        return lower(RLIMIT_NOFILE, word + 6, 1);
    if (strncmp(word, "refuse=", 7) == 0)
        return refuse(word + 7);
    strip_environment();
    return 0;
}

int main(int argc, char **argv)
{
    int i = 1, failed = 0;
    for (; i < argc && strcmp(argv[i], "--") != 0 && !failed; i++)
        failed = apply(argv[i]);
    if (failed || i + 1 >= argc)
        return failed ? failed : 2;
    if (access(argv[i + 1], X_OK) != 0)
        return skip(argv[i + 1]);
    execv(argv[i + 1], argv + i + 1);
    fprintf(stderr, "limited: %s: %s\n", argv[i + 1], strerror(errno));
    return 2;
}
