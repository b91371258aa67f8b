/**
 * tests/ranks/ucx_here.h: whether jobs of this build can go by UCX on this machine.
 */
#ifndef TESTS_RANKS_UCX_HERE_H
#define TESTS_RANKS_UCX_HERE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/** It is told once if the library is missing. */
static inline bool ucx_is_here(void)
{
#ifdef ZERO_WITH_UCX
    static int found = -1;
    if (found < 0) {
        found = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != NULL;
        if (!found)
            printf("not run by UCX: %s\n", dlerror());
    }
    return found;
#else
    return false;
#endif
}

#endif
