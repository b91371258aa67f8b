/**
 * zero/exec/stochastic.h: updates of what is stored in 16 bits, by stochastic rounding.
 */
#ifndef ZERO_EXEC_STOCHASTIC_H
#define ZERO_EXEC_STOCHASTIC_H

#include "zero/core/context.h"

/** The key of the random numbers of a slice's elements in an update: of the weight (purpose 0), or
 * of moment `purpose` - 1. */
uint64_t eng_rounding_key(const zero_ctx *z, const struct eng_slice *slice, uint64_t purpose,
                          uint64_t update);
/** Updates a segment that has no master weights or bf16 moments. */
void eng_update_rounded(zero_ctx *z, const struct eng_segment *segment);

#endif
