/**
 * base/kernels/sum_numbers.h: what there is to know of the numbers of a sum (sum.h), by the dtype
 * of its sources, over vectors of any length (vector_ref.h).
 */
#ifndef BASE_KERNELS_SUM_NUMBERS_H
#define BASE_KERNELS_SUM_NUMBERS_H

#include "base/kernels/ordered.h"
#include "base/kernels/rounding.h"
#include "base/kernels/sum.h"

typedef marks (*mark_fn)(packet value);

struct numbers {
    zero_dtype dtype;
    size_t bytes;        /**< of an accumulator's element */
    size_t source_bytes; /**< of a source's element */
    combine_fn add, least, greatest;
    mark_fn not_finite, nan; /**< NULL for integers */
};

INLINE packet add_f32(packet value, packet next)
{
    return packet_of(add(floats_in(value), floats_in(next)));
}

INLINE packet least_f32(packet value, packet next)
{
    return packet_of(least(floats_in(value), floats_in(next)));
}

INLINE packet greatest_f32(packet value, packet next)
{
    return packet_of(greatest(floats_in(value), floats_in(next)));
}

INLINE packet add_f64(packet value, packet next)
{
    return packet_of_doubles(add_doubles(doubles_in(value), doubles_in(next)));
}

INLINE packet least_f64(packet value, packet next)
{
    return packet_of_doubles(least_doubles(doubles_in(value), doubles_in(next)));
}

INLINE packet greatest_f64(packet value, packet next)
{
    return packet_of_doubles(greatest_doubles(doubles_in(value), doubles_in(next)));
}

INLINE marks not_finite_f32(packet value)
{
    return not_finite(floats_in(value));
}

INLINE marks nan_f32(packet value)
{
    return not_a_number(floats_in(value));
}

INLINE marks not_finite_f64(packet value)
{
    return not_finite_doubles(doubles_in(value));
}

INLINE marks nan_f64(packet value)
{
    return not_numbers(doubles_in(value));
}

static const struct numbers of_f32 = {ZERO_F32,       4,      4, add_f32, least_f32, greatest_f32,
                                      not_finite_f32, nan_f32};
static const struct numbers of_bf16 = {ZERO_BF16,      4,      2, add_f32, least_f32, greatest_f32,
                                       not_finite_f32, nan_f32};
static const struct numbers of_f16 = {ZERO_F16,       4,      2, add_f32, least_f32, greatest_f32,
                                      not_finite_f32, nan_f32};
static const struct numbers of_f64 = {ZERO_F64,       8,      8, add_f64, least_f64, greatest_f64,
                                      not_finite_f64, nan_f64};
static const struct numbers of_i32 = {ZERO_I32, 4, 4, add_i32, least_i32, greatest_i32, NULL, NULL};
static const struct numbers of_i64 = {ZERO_I64, 8, 8, add_i64, least_i64, greatest_i64, NULL, NULL};

/** Whether `mark`, if there is one, marks a number of some packets. */
INLINE bool any_marked(const packet *values, int packets, mark_fn mark)
{
    if (!mark)
        return false;
    marks found = mark(values[0]);
#pragma GCC unroll 8
    for (int j = 1; j < packets; j++)
        found = marks_of_both(found, mark(values[j]));
    return any_mark(found);
}

#endif
