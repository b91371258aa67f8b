/**
 * base/futex.h: sleep until a word changes. *Local*, any thread. Linux.
 *
 * The protocol: the sleeper reads the word, decides that it has to wait, and sleeps only if the
 * word still has that value; the waker changes the word first and wakes then.
 */
#ifndef BASE_FUTEX_H
#define BASE_FUTEX_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BASE_FUTEX_FOREVER UINT64_MAX

/**
 * Sleeps while *word == expected, at most timeout_ns. shared: the word lies in memory that other
 * processes map. Returns 0 when woken, when the word differs, or for no reason at all (look at the
 * word again); ETIMEDOUT after the time. Keeps errno.
 */
static inline int base_futex_wait(const _Atomic uint32_t *word, uint32_t expected,
                                  uint64_t timeout_ns, bool shared)
{
    const int saved = errno;
    const int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / UINT64_C(1000000000)),
                                     .tv_nsec = (long)(timeout_ns % UINT64_C(1000000000))};
    const long rc = syscall(SYS_futex, word, operation, expected,
                            timeout_ns == BASE_FUTEX_FOREVER ? NULL : &timeout, NULL, 0);
    const int result = rc < 0 && errno == ETIMEDOUT ? ETIMEDOUT : 0;
    errno = saved;
    return result;
}

/** Wakes at most `count` sleepers (INT_MAX: all). Keeps errno. */
static inline void base_futex_wake(const _Atomic uint32_t *word, int count, bool shared)
{
    const int saved = errno;
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
    errno = saved;
}

#endif
