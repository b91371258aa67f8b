/**
 * zero/exec/grad_is_sum.h: a step's only contribution to a bucket's sums is the sum, where it lies.
 */
#ifndef ZERO_EXEC_GRAD_IS_SUM_H
#define ZERO_EXEC_GRAD_IS_SUM_H

#include "zero/core/context.h"

/**
 * Whether a bucket's gradient is its sum: this rank is alone and gives one gradient a step, since
 * V is 1 or since it adds up its micro-batches itself (reduction=local). The gradient then stays
 * in its slot, which no other unit has at stages 0 and 1, and zero_step() updates from there. At
 * stages 2 and 3 slots pass from unit to unit, and sums have memory of their own. A gradient that
 * travels with 16 bits is widened by the update itself; where state is rounded to 16 bits, which
 * no such update does, it is summed as ever.
 */
bool eng_grad_is_sum(const zero_ctx *z, size_t bucket);
/** Adds the squares of such a gradient to those of the step, and remembers its first element that
 * is not finite. `gradient` is in the bucket's comm_dtype. A large one is dealt out over the pool's
 * threads. */
void eng_grad_measure(struct eng_bucket_io *io, const void *gradient);

#endif
