#include "base/forked.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

enum { DESCRIPTORS = 1 << 20, WORD = 64 };

// The process has a bit for each descriptor. Pages that hold no bit are never touched.
static _Atomic uint64_t guarded[DESCRIPTORS / WORD];
static _Atomic int highest; // word that ever had a bit
static _Atomic uint32_t generation;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int failed; // errno of pthread_atfork()

/** A descriptor at whose end nothing is, or -1. Only functions that are safe between fork and exec
 * are called here. */
static int open_inert(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    close(ends[1]);
    return ends[0];
}

static void take_away(int fd, int inert)
{
    assert(fd >= 0 && fd < DESCRIPTORS);
    if (inert < 0 || dup3(inert, fd, O_CLOEXEC) < 0)
        close(fd);
}

/** In the child, before fork() returns there. */
static void leave_parent(void)
{
    const int errnum = errno, inert = open_inert();
    const int last = atomic_load(&highest);
    for (int word = 0; word <= last; word++) {
        uint64_t bits = atomic_exchange(&guarded[word], 0);
        for (int bit = 0; bits; bit++, bits >>= 1)
            if (bits & 1)
                take_away(word * WORD + bit, inert);
    }
    if (inert >= 0)
        close(inert);
    atomic_fetch_add(&generation, 1);
    errno = errnum;
}

static void install(void)
{
    failed = pthread_atfork(NULL, NULL, leave_parent);
}

uint32_t base_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

int base_forked_watch(void)
{
    pthread_once(&once, install);
    return failed;
}

int base_forked_guard(int fd)
{
    const int errnum = fd < 0 || fd >= DESCRIPTORS ? EMFILE : base_forked_watch();
    if (errnum)
        return errnum;
    int before = atomic_load(&highest);
    while (before < fd / WORD && !atomic_compare_exchange_weak(&highest, &before, fd / WORD))
        ;
    assert(atomic_load(&highest) >= fd / WORD);
    atomic_fetch_or(&guarded[fd / WORD], UINT64_C(1) << fd % WORD);
    return 0;
}

void base_forked_release(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS)
        atomic_fetch_and(&guarded[fd / WORD], ~(UINT64_C(1) << fd % WORD));
}
