/**
 * zero/exec/grad_is_sum.h: a step's only contribution to a bucket's sums is the sum, where it lies.
 *
 * Which sums the host keeps (link/bucket_reduce.c). The first line that holds counts:
 *
 *     a bucket is                 sums     squares by            the update reads
 *     fused, 1 round or local     none     update_tile()         the tile, in the cache
 *     fused                       kept     update_tile()         the last round's tile
 *     eng_grad_is_sum()           none     eng_grad_measure()    the gradient in its slot
 *     eng_adds_again()            none     square_tile()         all ranks' gradients, again
 *     anything else               kept     sum_tile()            the sums
 *
 * In a fused bucket with io->sums add_and_update() goes before update_tile().
 */
#ifndef ZERO_EXEC_GRAD_IS_SUM_H
#define ZERO_EXEC_GRAD_IS_SUM_H

#include "zero/core/context.h"

/** Whether a bucket's gradient is its sum: this rank is alone and gives one gradient a step, since
 * V is 1 or with reduction=local. At stages 2 and 3 it never is, for slots pass from unit to unit.
 * The update widens a gradient that travels with 16 bits, but not where state is rounded to 16
 * bits: there it is summed. */
bool eng_grad_is_sum(const zero_ctx *z, size_t bucket);
/** Adds the squares of such a gradient to those of the step, and remembers its first element that
 * is not finite. `gradient` is in the bucket's comm_dtype. A large one is dealt out over the pool's
 * threads. */
void eng_grad_measure(struct eng_bucket_io *io, const void *gradient);

#endif
