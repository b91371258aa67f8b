/**
 * zero/core/overwrite.h: the guards that are asked before state is overwritten.
 *
 * A save reads weights and moments behind the next steps. Whatever changes them asks the guard
 * first, which waits until the save has read them or has made a copy (copy-on-write). The part that
 * saves sets z->update.guard; without a guard nothing waits.
 */
#ifndef ZERO_CORE_OVERWRITE_H
#define ZERO_CORE_OVERWRITE_H

#include "zero/core/context.h"

/** A guard that changes of the state have to wait for. Every function is *local*. */
struct eng_overwrite_guard {
    /** Weights or moments are about to change: returns when the guard reads none of them any more.
     * State in a file is read until a tile is given back: there `tile` is asked instead. */
    void (*all)(zero_ctx *z);
    /** A changed tile of state in a file is about to be given back: returns when the guard does not
     * read any more what the tile is written over. The time that took, in ns. */
    uint64_t (*tile)(zero_ctx *z, size_t tile);
    /** Whether `tile` would return at once. */
    bool (*tile_is_free)(const zero_ctx *z, size_t tile);
};

static inline void eng_before_overwrite(zero_ctx *z)
{
    if (z->update.guard)
        z->update.guard->all(z);
}

static inline uint64_t eng_before_tile_overwrite(zero_ctx *z, size_t tile)
{
    return z->update.guard ? z->update.guard->tile(z, tile) : 0;
}

static inline bool eng_tile_may_be_overwritten(const zero_ctx *z, size_t tile)
{
    return !z->update.guard || z->update.guard->tile_is_free(z, tile);
}

#endif
