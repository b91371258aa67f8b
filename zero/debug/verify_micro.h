/**
 * zero/debug/verify_micro.h: micro-batches that are computed twice and compared; does nothing
 * unless config.verify_micro.
 */
#ifndef ZERO_DEBUG_VERIFY_MICRO_H
#define ZERO_DEBUG_VERIFY_MICRO_H

#include "zero/core/context.h"

/** Bytes of its tables. */
size_t eng_verify_bytes(const zero_ctx *z);
zero_result eng_verify_make(zero_ctx *z, struct base_error *error);
void eng_verify_free(zero_ctx *z);
/** Whether the micro-batch under way is one that is computed again, and which that is. */
bool eng_verifying(const zero_ctx *z);
uint64_t eng_verify_index(const zero_ctx *z);
/** Whether the gradients of the micro-batch under way, which is none of an evaluation, are hashed.
 */
bool eng_verify_hashes(const zero_ctx *z);
/** Keeps the hashes of a unit's gradient if they are, and it is in memory of the host. */
void eng_verify_hash(zero_ctx *z, zero_unit unit, const unsigned char *gradient);
/** ZERO_E_DIVERGED, fatal and agreed, if a gradient was another one the second time. */
zero_result eng_verify_compare(zero_ctx *z);

#endif
