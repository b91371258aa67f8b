/**
 * tests/ranks/ucx_here.h: whether jobs of this build can go by UCX on this machine.
 */
#ifndef TESTS_RANKS_UCX_HERE_H
#define TESTS_RANKS_UCX_HERE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/** For ranks that are to go by UCX, though the hosts have TCP only. The last one is for the leak
 * sanitizer, which else misreads what a thread has of a library that was loaded at run time. */
static const char *const ucx_settings[] = {"ZERO_TRANSPORT=ucx", "UCX_TLS=tcp,self",
                                           "UCX_NET_DEVICES=eth0",
                                           "LSAN_OPTIONS=intercept_tls_get_addr=0", NULL};

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
