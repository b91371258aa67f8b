/**
 * zero/step/batch_size.h: changes the number of micro-batches between steps.
 */
#ifndef ZERO_STEP_BATCH_SIZE_H
#define ZERO_STEP_BATCH_SIZE_H

#include "zero/core/context.h"

/** Makes V another one, which a checkpoint has, from the next step on; `call` wants it. Collective.
 * Errors as of zero_set_micro_batches(). */
zero_result eng_batch_change(zero_ctx *z, int32_t micro_batches, const char *call);

/* ---- snapshot/save_state.c, snapshot/copy_on_write.c; see snapshot/snapshot.h for the rest of
 * state/ */

/** What this rank says of its save in a step's exchange. */
uint64_t eng_save_word(const zero_ctx *z);
/** Acts on what all ranks have said, rank r at words + r * stride. Collective. */
zero_result eng_save_advance(zero_ctx *z, const void *words, size_t stride);
/** To be called before weights or moments change: nothing of them is read any more by a save. Of
 * state in a file nothing is until a tile is given back: then it is eng_save_hold_tile(). */
void eng_save_hold(zero_ctx *z);
/** To be called before a changed tile of state is given back: a save does not read any more what it
 * is written over. How long that was waited for. *Local.* */
uint64_t eng_save_hold_tile(zero_ctx *z, size_t tile);
/** Whether it would return at once. */
bool eng_save_has_read(const zero_ctx *z, size_t tile);
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
