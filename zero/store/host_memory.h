/**
 * zero/store/host_memory.h: allocates what the placement says; where the bytes of a bucket are.
 */
#ifndef ZERO_STORE_HOST_MEMORY_H
#define ZERO_STORE_HOST_MEMORY_H

#include "zero/core/context.h"
#include "zero/plan/plan.h"

zero_result eng_memory_allocate(zero_ctx *z);
void eng_memory_free(zero_ctx *z);
/** Bytes of a rank's tables beside tensors with this placement; needs the layout only. */
size_t eng_memory_tables(const zero_ctx *z, const struct eng_placement *placement,
                         const struct eng_tier_needs *needs);
/** Whether peers map what a row of the plan is for. */
bool eng_memory_is_mapped(const zero_ctx *z, enum eng_purpose purpose);
/** Where the placement has a working copy, from a granule of its bucket on. */
void *eng_memory_home(const zero_ctx *z, size_t bucket, size_t granule);
/** Where the placement has field `field` (0: weights, 1 + k: moment k) of an element. */
void *eng_memory_field(const zero_ctx *z, int field, size_t bucket, size_t element);
/** Where the placement has this rank's sums, and its unfinished blocks. */
float *eng_memory_own_sums(const zero_ctx *z, size_t bucket, size_t element);
float *eng_memory_own_blocks(const zero_ctx *z, size_t bucket);

#endif
