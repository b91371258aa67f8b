/**
 * zero/core/state_fields.h: the fields that a tensor's state consists of. Field 0 is its weights,
 * field 1 + k its moment k.
 */
#ifndef ZERO_CORE_STATE_FIELDS_H
#define ZERO_CORE_STATE_FIELDS_H

#include "checkpoint/tensor_digest.h"
#include "zero/core/context.h"

/** Fields of a tensor: its weights, and its moments if it trains. */
int eng_state_fields(const zero_ctx *z, zero_param param);

/** Type of a field. */
zero_dtype eng_state_dtype(const zero_ctx *z, zero_param param, int field);

/** Where a field of the slice is at element `first`, which this rank has: in memory, or, outside of
 * visits, on its device. */
void *eng_state_memory(const zero_ctx *z, const struct eng_slice *slice, int field, uint64_t first);

/** How a fingerprint names a field of a slice. */
struct ckpt_digest_place eng_digest_place(const zero_ctx *z, const struct eng_slice *slice,
                                          int field);

#endif
