/**
 * zero/exec/local_accumulation.h: micro-batches of a rank are added up before they travel.
 */
#ifndef ZERO_EXEC_LOCAL_ACCUMULATION_H
#define ZERO_EXEC_LOCAL_ACCUMULATION_H

#include "zero/core/context.h"

/** Adds `count` elements in their own type. */
void eng_local_sum(const struct base_kernels *kernels, zero_dtype dtype, void *to, const void *from,
                   size_t count);

/** Whether a rank adds up micro-batches of its own, by as many as are planned for. */
bool eng_local_adds(const zero_ctx *z);
/** Whether gradients of the micro-batch under way begin what travels, and whether they complete it:
 * without reduction=local each does both. What is computed again (verify_micro) does not travel. */
bool eng_grad_begins_sum(const zero_ctx *z);
bool eng_grad_ends_sum(const zero_ctx *z);
/** The slot for a unit's gradient, where each unit has one: that of its sum, or, for one that a sum
 * must not see in it (raw: it overwrites) in a later micro-batch, a spare one of its class; -1:
 * none is free. */
int eng_local_slot(const zero_ctx *z, zero_unit unit, bool raw);
/** Whether a unit's gradient was written to a spare slot and is part of its sum. */
bool eng_local_spare(const zero_ctx *z, zero_unit unit);
/** Adds a gradient that was written to a spare slot to the unit's sum, in which it is. */
zero_result eng_local_add(const zero_ctx *z, zero_unit unit, struct base_error *error);

#endif
