/**
 * zero/snapshot/save_state.h: a save that is under way: what ranks tell each other of it, what it
 * makes wait, and what it takes.
 */
#ifndef ZERO_SNAPSHOT_SAVE_STATE_H
#define ZERO_SNAPSHOT_SAVE_STATE_H

#include "zero/core/overwrite.h"

/** How far each rank's save is: the last part of the exchange that ends a step, since ranks may go
 * on to the next phase together. */
extern const struct eng_exchange_part eng_save_part;
/** The guard that makes changes of the state wait for the save under way. */
extern const struct eng_overwrite_guard eng_save_guard;
/** Bytes that saving takes on a rank, with the options of the last zero_save(); of a context that
 * has not saved yet, with the default ones. */
size_t eng_save_bytes(const zero_ctx *z, int rank, const struct eng_tier_needs *needs);
/** Bytes that loading a checkpoint takes on a rank while it lasts, at most, if as many ranks have
 * saved it: what is attached is there twice until all else has been read. */
size_t eng_load_bytes(const zero_ctx *z, int rank);
/** Completes a save that is under way, with the other ranks, or gives it up where they can't be
 * waited for, and frees what saving has allocated. */
void eng_save_close(zero_ctx *z);

#endif
