/**
 * collectives/host/live_cell.h: what a rank's liveness thread (liveness/) shows of itself in the
 * rank's block, for all that look at the block.
 */
#ifndef COLLECTIVES_HOST_LIVE_CELL_H
#define COLLECTIVES_HOST_LIVE_CELL_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** What the thread shows of itself, in its rank's block; zero before it starts. */
struct live_cell {
    _Atomic uint32_t word; /**< its number, and the flags of <linux/futex.h>; 0: not there */
    _Atomic uint32_t beat;
};

/** Whether the process of a thread that was there has ended without leaving, or runs another
 * program. One load. *Local*, any thread. */
static inline bool coll_live_ended(const struct live_cell *cell)
{
    return (atomic_load(&cell->word) & FUTEX_OWNER_DIED) != 0;
}

#endif
