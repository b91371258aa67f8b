/**
 * base/size_limit.h: writing under a limit of file sizes (RLIMIT_FSIZE, `ulimit -f`).
 *
 * The kernel refuses what would make a file, or memory that has a descriptor, larger than the
 * limit: EFBIG. It also sends SIGXFSZ to the thread, and that signal ends the process. How a
 * process treats the signal is the program's to decide, so the library only keeps the signal from
 * its own calls: the thread blocks it before the call, and takes it back after the call.
 */
#ifndef BASE_SIZE_LIMIT_H
#define BASE_SIZE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

/** What base_size_limit_end() needs. */
struct base_size_limit {
    bool held;       /**< the thread has a limit, and SIGXFSZ is blocked */
    bool pending;    /**< SIGXFSZ was pending before: it is the program's */
    sigset_t before; /**< the thread's mask */
};

/** From here on SIGXFSZ does not reach this thread. Without a limit nothing is done. *Local*, any
 * thread; a pair of calls may lie within another pair. */
struct base_size_limit base_size_limit_begin(void);

/** Takes back the SIGXFSZ that has come since, and restores the thread's mask. Keeps errno.
 * *Local*, the thread of base_size_limit_begin(). */
void base_size_limit_end(const struct base_size_limit *limit);

#endif
