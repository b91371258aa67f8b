/**
 * collectives/liveness/liveness.h: who of the ranks that are processes is still alive.
 *
 * Each rank has one thread, asleep. It owns a word in the rank's block and waits for the word of
 * the next rank, in a ring, until something happens there:
 *
 *   death    The word is the thread's number, and the only one in its list of robust futexes
 *            (set_robust_list(2)): when the thread ends, however its process does (a signal,
 *            exit(), exec(); not fork()), the kernel marks the word and wakes who waits for it,
 *            before it frees the process's memory.
 *   silence  At each tick the thread increments its beat and looks at the next rank's. If that has
 *            not changed for as many of its own ticks as make `stall_ns`, the process is stopped
 *            or gets no processor. Counted in ticks, because a job that is suspended as a whole
 *            has lost time, but no rank.
 *   leaving  A rank that closes the communicator clears its word; its watcher watches the next one
 *            on.
 *
 * The first thread to see a death or a silence fails the comm world (coll_poison()), which wakes
 * all ranks and the other ranks' threads. Each such thread brings its rank's thread to its own
 * processor, by setting that thread's affinity twice. The rank's thread may be queued behind the
 * dying process on another one. Then, and when no other rank is left, the threads sleep until they
 * are stopped.
 *
 * The list is the kernel's, set by this thread for itself in place of the one that libc has set for
 * its robust mutexes; this thread locks none of those, and libc does not look at its list again.
 *
 * Points of base/fault.h: live.thread (its creation, EIO).
 */
#ifndef COLLECTIVES_LIVENESS_LIVENESS_H
#define COLLECTIVES_LIVENESS_LIVENESS_H

#include "base/error.h"
#include "collectives/host/live_cell.h"

#include <stdint.h>

struct coll_comm;
struct coll_live;

/**
 * Starts this rank's thread, which takes its word and watches no rank yet. `root` has joined its
 * ranks; cells has one of every rank. stall_ns 0: silence is no matter. *Local.* *live is NULL
 * after an error: ZERO_E_NOMEM (no memory, no thread), _UNSUPPORTED (the kernel has no robust
 * futexes).
 */
zero_result coll_live_start(struct coll_live **live, struct coll_comm *root,
                            struct live_cell *const *cells, uint64_t stall_ns,
                            struct base_error *error);

/** Every rank has started its thread: watch from now on. *Local.* */
void coll_live_watch(struct coll_live *live);

/** Ends the thread, at once, and frees it. The rank has left, if it ever joined. *Local.* Accepts
 * NULL. */
void coll_live_stop(struct coll_live *live);

#endif
