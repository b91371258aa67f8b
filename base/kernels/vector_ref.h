/**
 * base/kernels/vector_ref.h: vectors of one element, in plain C: they define the bits. Compiled
 * with -ffp-contract=off: an expression is fused where it says madd and nowhere else.
 *
 * Formulas (rules.h, rounding.h, ordered.h) and loops are written once over these names, which
 * vector_avx2.h and vector_avx512.h have as well, and as far as formulas need them vector_cuda.h:
 *
 *     WIDTH               elements of a vector: a power of two, at most BASE_DRAW_LANES.
 *     ISA_NAME            what tables are called.
 *     runs_here           whether this processor has the instructions.
 *     vector, words       WIDTH floats, WIDTH times 32 bits.
 *     counts, bigs        words as numbers of 32 bits, packets as numbers of 64 bits.
 *     load, store         a vector from and to an array, unaligned; load prefetches further on.
 *     mul, add, quotient  a * b, a + b, a / b.
 *     madd, nmadd         fma(a, b, c), fma(-a, b, c).
 *     root                the square root.
 *     sign                -1 or 1; a zero and a NaN stay what they are.
 *     all_finite          whether all elements are finite.
 *     add_squares         adds the elements' squares to WIDTH doubles.
 *     squares, no_squares 16 lanes of sums of squares; lanes that are all zero.
 *     add_to_squares      adds the elements' squares to the lanes from one on; load_to_squares()
 *                         those of an array's elements.
 *     store_squares       the lanes, as doubles.
 *     add_lanes           base_add_lanes() of lanes that are finite.
 *     canonical           the value, but one NaN for all NaNs.
 *     bits_of, float_of   a vector's bits, and the vector that has these bits.
 *     spread, word, lanes one float, one word everywhere; 0, 1, ..., WIDTH - 1.
 *     sum, difference     a + b, a - b, modulo 2^32.
 *     both, either, odd   and, or, exclusive or.
 *     right               shifted right by a constant.
 *     left_by, right_by   shifted by a vector, unsigned: 32 and more give 0.
 *     if_above            a > b ? yes : no; a and b are below 2^31.
 *     raised              peak, which is 0 or not finite; it becomes infinite or a NaN if a or b is
 *                         above BASE_ALARM or is a NaN.
 *     larger              the larger of each two words, which are below 2^31.
 *     any_above           whether a word is above a constant; all words are below 2^31.
 *     multiply            the high and the low words of the products with a constant.
 *     load_bf16, load_f16 bf16, f16 of an array, as floats.
 *     halves              WIDTH times 16 bits.
 *     f16_of              f16, rounded to nearest even; f16_of_number(): of no NaN.
 *     pack, pack_upper    the low, the high halves of words.
 *     store_halves        halves to an array, unaligned; stream_halves(): aligned, past the caches.
 *     fence               other processors see all that was streamed before.
 *
 * and for sums, whose numbers are f32, f64, i32 or i64:
 *
 *     packet, doubles     as many numbers, as many f64 as fit.
 *     load_packet         as load, and so on for store and stream; numbers have `bytes` bytes.
 *     floats_in           the floats of a packet; packet_of() makes a packet of floats.
 *     doubles_in          the doubles of a packet; packet_of_doubles() makes a packet of doubles.
 *     least, greatest     b if it is less, greater than a, or a NaN; else a.
 *     add_doubles, least_doubles, greatest_doubles, and so on for i32 and i64
 *                         a + b, least and greatest of f64, i32 and i64.
 *     marks               which numbers of a packet have a property.
 *     not_finite          marks the floats that are not finite; not_finite_doubles the doubles.
 *     not_a_number        marks the floats that are NaNs; not_numbers the doubles.
 *     marks_of_both       what one or the other marks; any_mark(): whether there is a mark.
 *     joined, packed      two halves as a packet; the low halves of two words.
 */
#ifndef BASE_KERNELS_VECTOR_REF_H
#define BASE_KERNELS_VECTOR_REF_H

#include "base/bfloat16.h"
#include "base/kernels/kernel_tables.h"

#include <math.h>
#include <string.h>

#define WIDTH 1
#define ISA_NAME "ref"
#define INLINE static inline __attribute__((always_inline))

typedef float vector;
typedef uint32_t words;
typedef uint16_t halves;
typedef double doubles;
typedef uint64_t packet;
typedef bool marks;
typedef uint32_t counts;
typedef uint64_t bigs;

#include "base/kernels/vector_plain.h"

INLINE bool runs_here(void)
{
    return true;
}

/* ------------------------------------------------------------------ floats */

INLINE vector spread(float x)
{
    return x;
}

INLINE vector load(const float *x)
{
    return *x;
}

INLINE void store(float *x, vector value)
{
    *x = value;
}

INLINE vector madd(vector a, vector b, vector c)
{
    return fmaf(a, b, c);
}

INLINE vector nmadd(vector a, vector b, vector c)
{
    return fmaf(-a, b, c);
}

INLINE vector root(vector x)
{
    return sqrtf(x);
}

INLINE vector sign(vector x)
{
    return x < 0 || x > 0 ? copysignf(1, x) : x;
}

INLINE vector raised(vector peak, vector a, vector b)
{
    return fabsf(a) <= BASE_ALARM && fabsf(b) <= BASE_ALARM ? peak : INFINITY;
}

INLINE words bits_of(vector x)
{
    return base_f32_bits(x);
}

INLINE vector float_of(words x)
{
    return base_f32_from_bits(x);
}

INLINE vector canonical(vector x)
{
    return isnan(x) ? float_of(BASE_NAN_F32) : x;
}

INLINE bool all_finite(vector x)
{
    return isfinite(x);
}

INLINE void add_squares(double *lane, vector x)
{
    *lane = fma(x, x, *lane);
}

struct squares {
    double lane[BASE_SUM_LANES];
};

INLINE struct squares no_squares(void)
{
    return (struct squares){{0}};
}

INLINE void add_to_squares(struct squares *lanes, size_t lane, vector x)
{
    add_squares(&lanes->lane[lane], x);
}

INLINE void load_to_squares(struct squares *lanes, size_t lane, const float *x)
{
    add_to_squares(lanes, lane, load(x));
}

INLINE void store_squares(double lane[BASE_SUM_LANES], const struct squares *lanes)
{
    memcpy(lane, lanes->lane, sizeof lanes->lane);
}

INLINE double add_lanes(const struct squares *lanes)
{
    struct squares copy = *lanes;
    return base_add_lanes(copy.lane);
}

#include "base/kernels/one.h"

/* ------------------------------------------------------------------ halves */

INLINE words load_halves(const uint16_t *x)
{
    return *x;
}

INLINE vector load_bf16(const uint16_t *x)
{
    return float_of((words)load_halves(x) << 16);
}

INLINE halves pack(words x)
{
    return (halves)x;
}

INLINE halves pack_upper(words x)
{
    return (halves)(x >> 16);
}

INLINE halves f16_of(vector x)
{
    return base_f16_from_f32(x);
}

INLINE void store_halves(uint16_t *x, halves value)
{
    *x = value;
}

INLINE void stream_halves(uint16_t *x, halves value)
{
    *x = value;
}

INLINE void fence(void)
{
}

INLINE vector load_f16(const uint16_t *x)
{
    return base_f32_from_f16(*x);
}

/* ------------------------------------------------------------------ numbers of sums */

INLINE packet load_packet(const void *x, size_t bytes)
{
    uint32_t four;
    uint64_t eight;
    if (bytes == sizeof eight)
        memcpy(&eight, x, sizeof eight);
    else
        memcpy(&four, x, sizeof four);
    return bytes == sizeof eight ? eight : four;
}

INLINE void store_packet(void *x, packet value, size_t bytes)
{
    const uint32_t four = (uint32_t)value;
    if (bytes == sizeof value)
        memcpy(x, &value, sizeof value);
    else
        memcpy(x, &four, sizeof four);
}

INLINE vector floats_in(packet x)
{
    return float_of((words)x);
}

INLINE packet packet_of(vector x)
{
    return bits_of(x);
}

INLINE doubles doubles_in(packet x)
{
    doubles value;
    memcpy(&value, &x, sizeof value);
    return value;
}

INLINE packet packet_of_doubles(doubles x)
{
    packet bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Both return the earlier one of equal values, such as the two zeros, and the NaN if there is one.

INLINE vector least(vector a, vector b)
{
    return b < a || b != b ? b : a;
}

INLINE vector greatest(vector a, vector b)
{
    return b > a || b != b ? b : a;
}

INLINE doubles least_doubles(doubles a, doubles b)
{
    return b < a || b != b ? b : a;
}

INLINE doubles greatest_doubles(doubles a, doubles b)
{
    return b > a || b != b ? b : a;
}

INLINE packet least_i32(packet a, packet b)
{
    return (int32_t)b < (int32_t)a ? b : a;
}

INLINE packet greatest_i32(packet a, packet b)
{
    return (int32_t)b > (int32_t)a ? b : a;
}

INLINE packet least_i64(packet a, packet b)
{
    return (int64_t)b < (int64_t)a ? b : a;
}

INLINE packet greatest_i64(packet a, packet b)
{
    return (int64_t)b > (int64_t)a ? b : a;
}

INLINE marks not_finite(vector x)
{
    return (bits_of(x) & 0x7f800000) == 0x7f800000;
}

INLINE marks not_a_number(vector x)
{
    return x != x;
}

INLINE marks not_finite_doubles(doubles x)
{
    return (packet_of_doubles(x) >> 52 & 0x7ff) == 0x7ff;
}

INLINE marks not_numbers(doubles x)
{
    return x != x;
}

INLINE marks marks_of_both(marks a, marks b)
{
    return a || b;
}

INLINE bool any_mark(marks x)
{
    return x;
}

#endif
