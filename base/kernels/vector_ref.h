/**
 * base/kernels/vector_ref.h: vectors of one element, in plain C: they define the bits. Compiled
 * with -ffp-contract=off: an expression is fused where it says madd and nowhere else.
 *
 * Formulas (rules.h, rounding.h, ordered.h) and loops are written once over these names, which
 * vector_avx2.h and vector_avx512.h have as well, and as far as formulas need them vector_cuda.h:
 *
 *     WIDTH                      elements of a vector: a power of two, at most ENG_DRAW_LANES
 *     ISA_NAME, runs_here        what tables are called; whether this processor has it
 *     vector, words              WIDTH floats; WIDTH times 32 bits
 *     counts, bigs               words as numbers of 32 bits; packets as numbers of 64 bits
 *     spread, load, store        of one float; of an array, unaligned, load asks ahead
 *     mul, madd, nmadd           a * b; fma(a, b, c); fma(-a, b, c)
 *     add, quotient, root        a + b; a / b; the square root
 *     sign                       -1 or 1; a zero and a NaN stay what they are
 *     all_finite                 whether all elements are
 *     add_squares                of the elements, to WIDTH doubles
 *     squares, no_squares        16 lanes of sums of squares; all zero
 *     add_to_squares             of the elements, to the lanes from one on
 *     load_to_squares            the same of an array's
 *     store_squares              the lanes, as doubles
 *     add_lanes                  eng_add_lanes() of lanes that are finite
 *     canonical                  the value, but one NaN for all
 *     bits_of, float_of          a vector's bits, and back
 *     word, lanes                one word everywhere; 0, 1, ..., WIDTH - 1
 *     sum, difference            modulo 2^32
 *     both, either, odd          and, or, exclusive or
 *     right                      shifted by a constant
 *     left_by, right_by          by a vector, unsigned: 32 and more give 0
 *     if_above                   a > b ? yes : no; a and b below 2^31
 *     raised                     the first one, 0 at first, made infinite or a NaN by two others of
 *                                which one is, or both are above ENG_ALARM, and else finite
 *     larger                     of each two words, below 2^31
 *     any_above                  whether a word, all below 2^31, is above a constant
 *     multiply                   the high and the low words of the products with a constant
 *     load_bf16                  bf16 of an array, as floats
 *     halves, f16_of             WIDTH times 16 bits: f16, nearest even,
 *     pack, pack_upper           and the low ones of words, the high ones
 *     store_halves               to an array, unaligned
 *     stream_halves              past the caches, aligned,
 *     fence                      and behind this one complete for other processors
 *     load_f16                   f16 of an array, as floats
 *
 * and for sums, whose numbers are f32, f64, i32 or i64:
 *
 *     packet, doubles            as many numbers as fit; as many f64
 *     load_packet, store_packet  of an array, unaligned; numbers have so many bytes
 *     stream_packet              past the caches, aligned
 *     floats_in, packet_of       a packet of f32, and back
 *     doubles_in, packet_of_doubles  of f64
 *     least, greatest            the second one if it is less, greater or a NaN; else the first
 *     add_doubles, least_doubles, greatest_doubles, add_i32 ... greatest_i64  the same of others
 *     marks                      which numbers of a packet have a property
 *     not_finite, not_a_number   of floats; not_finite_doubles, not_numbers of doubles
 *     marks_of_both, any_mark    one or the other; whether there is one
 *     f16_of_number              f16_of() of what is no NaN
 *     joined, packed             two halves as a packet; the low halves of two words
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
    return fabsf(a) <= ENG_ALARM && fabsf(b) <= ENG_ALARM ? peak : INFINITY;
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
    return isnan(x) ? float_of(ENG_NAN_F32) : x;
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
    double lane[ENG_SUM_LANES];
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

INLINE void store_squares(double lane[ENG_SUM_LANES], const struct squares *lanes)
{
    memcpy(lane, lanes->lane, sizeof lanes->lane);
}

INLINE double add_lanes(const struct squares *lanes)
{
    struct squares copy = *lanes;
    return eng_add_lanes(copy.lane);
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

// Of equal ones, such as the two zeros, the earlier; of a NaN and any other, the NaN.

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
