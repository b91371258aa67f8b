/**
 * base/kernels/norm.h: sums of squares of granules, over vectors of any length (vector_ref.h).
 */
#ifndef BASE_KERNELS_NORM_H
#define BASE_KERNELS_NORM_H

#include "base/kernels/ordered.h"

#include <assert.h>
#include <math.h>

/** How often the loop over a block's vectors is unrolled: as often as it runs, so that all lanes
 * are registers. Vectors of one element have none to gain, and clang takes minutes to unroll them.
 */
enum { SQUARE_UNROLL = WIDTH > 1 ? BASE_SUM_LANES / WIDTH : 1 };

/** What is added up and squared; the first two sources have their addresses in registers. few, if
 * it is not 0, is how many there are, and nothing is before them. `before` is that of `from`: a
 * NULL that the compiler knows saves a register. */
struct addends {
    const struct base_contributions *from;
    zero_dtype dtype;
    int few;
    const void *pair[2];
    const float *before;
};

/** Their sum at element i of the run. */
INLINE vector sum_of(const struct addends *a, size_t i)
{
    const struct base_contributions *from = a->from;
    const void *one = a->pair[0];
    if (a->few)
        return sum_in_order(a->dtype, NULL, 0, one, a->pair, a->few, from->first + i);
    return sum_in_order(a->dtype, a->before, i, one, from->sources, from->count, from->first + i);
}

/** Adds the squares of the sums at i .. i+15 of a granule. */
INLINE void square_block(const struct addends *a, size_t i, struct squares *lanes)
{
#pragma GCC unroll SQUARE_UNROLL
    for (size_t lane = 0; lane < BASE_SUM_LANES; lane += WIDTH) {
        if (a->few == 1 && a->dtype == ZERO_F32)
            load_to_squares(lanes, lane, (const float *)a->pair[0] + a->from->first + i + lane);
        else
            add_to_squares(lanes, lane, sum_of(a, i + lane));
    }
}

/** The sum of all lanes. */
INLINE double squares_of(const struct squares *lanes)
{
    const double sum = add_lanes(lanes);
    if (__builtin_expect(isfinite(sum), true))
        return sum;
    double lane[BASE_SUM_LANES];
    store_squares(lane, lanes);
    return base_add_lanes(lane);
}

/** The granules at i and at j, side by side: an addition waits for the one before it in the same
 * granule only. */
INLINE void square_two(const struct addends *a, size_t i, size_t j, double *at_i, double *at_j)
{
    assert(i % BASE_GRANULE == 0 && j % BASE_GRANULE == 0);
    struct squares one = no_squares(), other = no_squares();
    for (size_t k = 0; k < BASE_GRANULE; k += BASE_SUM_LANES) {
        square_block(a, i + k, &one);
        square_block(a, j + k, &other);
    }
    *at_i = squares_of(&one);
    *at_j = squares_of(&other);
}

/** A granule, or what there is of it. */
INLINE double square_one(const struct addends *a, size_t i, size_t end)
{
    assert(i <= end && end - i <= BASE_GRANULE);
    struct squares lanes = no_squares();
    for (; end - i >= BASE_SUM_LANES; i += BASE_SUM_LANES)
        square_block(a, i, &lanes);
    double lane[BASE_SUM_LANES];
    float total[BASE_SUM_LANES];
    store_squares(lane, &lanes);
    const size_t done = base_add_contributions(a->from, i, end - i, total);
    base_add_squares(lane, 0, done + (done < end - i), total);
    return base_add_lanes(lane);
}

INLINE void square_sums(size_t elements, const struct base_contributions *from, zero_dtype dtype,
                        int few, const float *before, double *squares)
{
    const struct base_contributions parts = *from;
    const struct addends a = {
        &parts, dtype, few, {from->sources[0], from->sources[few > 1]}, before};
    // One of the two goes through the first half and the other one through the second: what either
    // asks for ahead is its own next.
    const size_t half = elements / BASE_GRANULE / 2;
    for (size_t k = 0; k < half; k++)
        square_two(&a, k * BASE_GRANULE, (half + k) * BASE_GRANULE, &squares[k],
                   &squares[half + k]);
    for (size_t k = 2 * half, i; (i = k * BASE_GRANULE) < elements; k++) {
        const size_t left = elements - i;
        squares[k] = square_one(&a, i, left < BASE_GRANULE ? elements : i + BASE_GRANULE);
    }
}

INLINE void square_some(size_t elements, const struct base_contributions *from, zero_dtype dtype,
                        double *squares)
{
    assert(from->count >= 1);
    if (from->before)
        square_sums(elements, from, dtype, 0, from->before, squares);
    else if (from->count == 1)
        square_sums(elements, from, dtype, 1, NULL, squares);
    else if (from->count == 2)
        square_sums(elements, from, dtype, 2, NULL, squares);
    else
        square_sums(elements, from, dtype, 0, NULL, squares);
}

static void sum_squares(size_t count, const struct base_contributions *from, double *squares)
{
    switch (from->dtype) {
    case ZERO_BF16:
        square_some(count, from, ZERO_BF16, squares);
        break;
    case ZERO_F16:
        square_some(count, from, ZERO_F16, squares);
        break;
    default:
        square_some(count, from, ZERO_F32, squares);
    }
}

#endif
