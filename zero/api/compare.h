/**
 * What ranks compare in zero_commit(): models (compare_model.c) and first values (first_values.c).
 */
#ifndef ZERO_API_COMPARE_H
#define ZERO_API_COMPARE_H

#include "zero/core/context.h"

/* ---- compare_model.c */

/** Collective. ZERO_E_DIVERGED: some rank has registered another model, and the message says what
 * of which tensor differs; ZERO_E_NOMEM. */
zero_result eng_compare_model(zero_ctx *z, struct base_error *error);
/** Bytes that takes. */
size_t eng_compare_model_bytes(const zero_ctx *z);

/* ---- first_values.c */

/** Compares what all ranks give as first values, before anything is written. *Collective.*
 * ZERO_E_DIVERGED, fatal and agreed, names tensor, element and ranks; what a fill callback fails
 * with, on all ranks; ZERO_E_INVALID, on all ranks: a callback gives other values when it is asked
 * again; ZERO_E_NOMEM. */
zero_result eng_first_compare(zero_ctx *z);
/** Bytes that it uses. */
size_t eng_first_bytes(const zero_ctx *z);

#endif
