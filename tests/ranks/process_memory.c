#include "tests/ranks/process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#ifdef SANITIZED

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

/** Calls see(text, length) for each piece of a file, without allocating. */
static void read_pieces(const char *path, void (*see)(void *user, const char *text, size_t length),
                        void *user)
{
    char text[4096];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t length; fd >= 0 && (length = read(fd, text, sizeof text)) > 0;)
        see(user, text, (size_t)length);
    if (fd >= 0)
        close(fd);
}

static void count_lines(void *user, const char *text, size_t length)
{
    int *lines = user;
    for (size_t i = 0; i < length; i++)
        *lines += text[i] == '\n';
}

struct status {
    char text[4096];
    size_t used;
};

static void collect(void *user, const char *text, size_t length)
{
    struct status *status = user;
    const size_t room = sizeof status->text - 1 - status->used;
    const size_t taken = length < room ? length : room;
    memcpy(status->text + status->used, text, taken);
    status->used += taken;
}

/** The number behind `key` in a file of "key: number" lines; 0 if there is none. */
static size_t number_of(const char *path, const char *key)
{
    struct status status = {.used = 0};
    read_pieces(path, collect, &status);
    const char *found = strstr(status.text, key);
    return found ? (size_t)strtoull(found + strlen(key), NULL, 10) : 0;
}

size_t process_pss(void)
{
    return number_of("/proc/self/smaps_rollup", "\nPss:") * 1024;
}

struct process_state process_state(void)
{
    struct process_state state = {.threads = (int)number_of("/proc/self/status", "\nThreads:")};
    read_pieces("/proc/self/maps", count_lines, &state.mappings);
    state.allocations = allocations();
    return state;
}
