/**
 * base/fault.h: failures on demand, for tests.
 *
 * Only a build with the option ZERO_FAULT_POINTS has the points. In any other one they compile to
 * nothing, and opening a context while ZERO_FAULT is set is an error.
 *
 * ZERO_FAULT names points and the hit that fails, counted over the process from 1:
 *
 *     ZERO_FAULT="alloc@3,io.write:enospc@17+"
 *
 * fails the third allocation with the point's own errno, and every write from the 17th on with
 * ENOSPC. Grammar: point[:errno-name|:action]@N[+], separated by commas; at most 16 of
 * them. A point that ends in `*` stands for all points that begin so, and counts their hits
 * together.
 *
 * An action is done in place of failing, to see what becomes of the others:
 *
 *     kill       SIGKILL to this process
 *     stop       SIGSTOP to this process; the point succeeds when it is continued
 *     exit       _exit(0)
 *     exec       becomes "/bin/sleep 60"
 *     delay      sleeps for a random time of up to 2 ms, then the point succeeds
 *     hang       does not come back until the faults are replaced, then the point succeeds
 *
 *     ZERO_FAULT="coll.reduce-scatter.read:kill@3"
 *
 * Points of base (others document theirs where they are hit):
 *     alloc      base_calloc, base_strdup, base_arena_init: the memory is not to be had (ENOMEM)
 *     io.read    each read(2) of base_pread_all (EIO); eintr is retried as a real one
 *     io.write   each write(2) of base_write_all, base_pwrite_all, base_pwrite_direct (EIO); the
 *                same
 *     io.short   each of those transfers: moves half of its bytes, which is no error
 *     io.open, io.close, io.lock, io.truncate, io.rename, io.exchange, io.unlink
 *                base_open, base_close, and so on (EIO)
 *     io.fsync   base_fsync, base_fdatasync, base_fsync_directory, base_fsync_parent (EIO)
 *     io.mkdir, io.rmdir
 *                base_make_directory, base_remove_directory (EIO)
 *     io.list    base_list: each entry it looks for, the end included (EIO)
 *     thread     each thread of base_pool_create, and of a checkpoint's saver (EAGAIN)
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>

/** Room for a point's name with its final zero. */
enum { BASE_FAULT_POINT_BYTES = 32 };

#ifdef ZERO_FAULT_POINTS

/** Not to be used directly. -1: ZERO_FAULT has not been read yet; 0: no faults; 1: some. */
extern atomic_int base_fault_state;

/** The slow path of base_fault(). */
int base_fault_hit(const char *point);

/**
 * Counts a hit of `point`; returns 0, or the errno it is to fail with. Costs one relaxed load
 * where no faults are set. *Local*, any thread.
 */
static inline int base_fault(const char *point)
{
    return atomic_load_explicit(&base_fault_state, memory_order_relaxed) == 0
               ? 0
               : base_fault_hit(point);
}

/** Whether faults may be set. *Local*, any thread. */
static inline bool base_fault_watched(void)
{
    return atomic_load_explicit(&base_fault_state, memory_order_relaxed) != 0;
}

/**
 * Replaces the faults by those of `spec` in ZERO_FAULT's grammar and starts counting anew; NULL
 * and "": none. ZERO_E_INVALID (malformed; the message shows where): nothing changed. *Local*, any
 * thread.
 */
zero_result base_fault_set(const char *spec, struct base_error *error);

/** How often a fault was injected or an action done since they were set. *Local*, any thread. */
uint64_t base_fault_fired(void);

/**
 * Has `witness` called just before an action stops or ends this process, in the thread that does
 * it: for a test that wants to know when. NULL: none. *Local*; not while points are being hit.
 */
void base_fault_witness(void (*witness)(void *user), void *user);

#else

static inline int base_fault(const char *point)
{
    (void)point;
    return 0;
}

static inline bool base_fault_watched(void)
{
    return false;
}

#endif

/**
 * Whether what ZERO_FAULT asks for can be had. ZERO_E_INVALID: it is malformed, and has no effect.
 * ZERO_E_UNSUPPORTED: it is set, and this build has no points. zero_open() and zero_comm_open()
 * ask. *Local*, any thread.
 */
zero_result base_fault_check_environment(struct base_error *error);

#endif
