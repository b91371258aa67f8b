/**
 * zero/exec/caller_memory.h: working copies and gradients in memory of the caller.
 */
#ifndef ZERO_EXEC_CALLER_MEMORY_H
#define ZERO_EXEC_CALLER_MEMORY_H

#include "zero/core/context.h"

/** The slice in the caller's memory, NULL if the working copy is the engine's alone. */
void *eng_borrowed(const zero_ctx *z, const struct eng_slice *slice);
/** The slice's gradient in the caller's memory, NULL if it is the engine's. */
void *eng_own_gradient(const zero_ctx *z, const struct eng_slice *slice);
/** Copies values that have changed to the caller's memory. */
void eng_borrow_bucket(zero_ctx *z, size_t bucket);
void eng_borrow_unit(zero_ctx *z, zero_unit unit);
/** Copies the caller's gradients of a unit to its slot, or adds them where the slot has a sum, and
 * zeroes them. */
void eng_take_gradients(zero_ctx *z, zero_unit unit);

#endif
