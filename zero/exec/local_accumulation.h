/**
 * zero/exec/local_accumulation.h: micro-batches of a rank are added up before they travel.
 */
#ifndef ZERO_EXEC_LOCAL_ACCUMULATION_H
#define ZERO_EXEC_LOCAL_ACCUMULATION_H

#include "zero/core/context.h"

/** Adds `count` elements in their own type. */
void eng_local_sum(const struct eng_kernels *kernels, zero_dtype dtype, void *to, const void *from,
                   size_t count);

/** Whether a rank adds up micro-batches of its own, by as many as are planned for. */
bool eng_local_adds(const zero_ctx *z);
/** The slot for a unit's gradient: that of its sum, or, for one that overwrites (raw) in a later
 * micro-batch, a spare one of its class; -1: none is free. */
int eng_local_slot(const zero_ctx *z, zero_unit unit, bool raw);
/** Adds a gradient that was written to a spare slot to the unit's sum. */
void eng_local_add(zero_ctx *z, zero_unit unit);

#endif
