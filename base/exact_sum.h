/**
 * base/exact_sum.h: sums of doubles without rounding, so that neither the order of the addends nor
 * how they are dealt out over ranks can change a bit.
 *
 * The sum is a fixed-point number as wide as all finite doubles, kept in int64 limbs of 32 bits
 * each. Additions leave every limb but the last in 0 .. 2^32-1; the upper half of a limb is room
 * to add the limbs of 2^31 sums (ranks exchange them with an all-reduce of integers) before
 * any rank carries. The last limb has room for 2^62 of the largest doubles.
 */
#ifndef BASE_EXACT_SUM_H
#define BASE_EXACT_SUM_H

#include <stdint.h>

#define BASE_EXACT_SUM_LIMBS 67
/** The exponent of the smallest double. */
#define BASE_EXACT_SUM_LOWEST (-1074)

/** The sum of limb[i] * 2^(32*i - 1074). All zero is 0; no pointers: may be sent to other ranks. */
struct base_exact_sum {
    int64_t limb[BASE_EXACT_SUM_LIMBS];
};

/** Sets the sum to 0. *Local.* */
void base_exact_sum_init(struct base_exact_sum *sum);

/** Adds a finite value; NaN and infinity are the caller's to keep out (they are ignored).
 * *Local.* */
void base_exact_sum_add(struct base_exact_sum *sum, double value);

/** to += from, limb by limb as int64; the limbs of at most 2^31 sums may be added up. *Local.* */
void base_exact_sum_merge(struct base_exact_sum *to, const struct base_exact_sum *from);

/** The sum, rounded once to the nearest double, ties to even; +-infinity if it is too large.
 * *Local.* */
double base_exact_sum_round(const struct base_exact_sum *sum);

#endif
