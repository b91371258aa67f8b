#include "tests/ranks/process_memory.h"
#include "tests/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TEST_SANITIZED

static uint64_t allocations(void)
{
    return 0;
}

bool process_sanitized(void)
{
    return true;
}

#else

// These take the place of libc's for the whole process, libc itself included.

#define REPLACES __attribute__((visibility("default")))

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static _Atomic uint64_t calls;

static uint64_t allocations(void)
{
    return atomic_load(&calls);
}

bool process_sanitized(void)
{
    return false;
}

REPLACES void *malloc(size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_malloc(size);
}

REPLACES void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_calloc(count, size);
}

REPLACES void *realloc(void *memory, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_realloc(memory, size);
}

REPLACES void *aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_memalign(alignment, size);
}

REPLACES int posix_memalign(void **memory, size_t alignment, size_t size)
{
    atomic_fetch_add(&calls, 1);
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

#endif

/** The number behind `key` in a file of "key: number" lines, 0 if there is none; no allocation. */
static size_t number_of(const char *path, const char *key)
{
    char text[4096];
    size_t used = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t length = 1; fd >= 0 && length > 0; used += (size_t)length) {
        length = read(fd, text + used, sizeof text - 1 - used);
        length = length < 0 ? 0 : length;
    }
    if (fd >= 0)
        close(fd);
    text[used] = '\0';
    const char *found = strstr(text, key);
    return found ? (size_t)strtoull(found + strlen(key), NULL, 10) : 0;
}

size_t process_pss(void)
{
    return process_pss_of(getpid());
}

size_t process_pss_of(pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)process);
    return (number_of(path, "\nPss_Anon:") + number_of(path, "\nPss_Shmem:")) * 1024;
}

struct process_state process_state(void)
{
    const char *path = "/proc/self/status";
    return (struct process_state){.allocations = allocations(),
                                  .mapped = number_of(path, "\nVmSize:") * 1024,
                                  .threads = (int)number_of(path, "\nThreads:")};
}
