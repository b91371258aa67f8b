/**
 * base/kernels/vector_avx2.h: vectors of AVX2 with FMA and F16C: 8 elements at a time. vector_ref.h
 * says what the functions do, and defines the bits.
 */
#ifndef BASE_KERNELS_VECTOR_AVX2_H
#define BASE_KERNELS_VECTOR_AVX2_H

#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"

#include <immintrin.h>

#define WIDTH 8
#define ISA_NAME "avx2"
#define INLINE static inline __attribute__((always_inline))

typedef __m256 vector;
typedef __m256i words;
typedef __m128i halves;
typedef __m256d doubles;
typedef __m256i packet, marks;
typedef uint32_t counts __attribute__((vector_size(32)));
typedef uint64_t bigs __attribute__((vector_size(32)));

#include "base/kernels/vector_plain.h"

INLINE bool runs_here(void)
{
    return base_cpu_detect().avx2;
}

/* ------------------------------------------------------------------ floats */

INLINE vector spread(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vector load(const float *x)
{
    base_prefetch(x);
    return _mm256_loadu_ps(x);
}

INLINE void store(float *x, vector value)
{
    _mm256_storeu_ps(x, value);
}

INLINE vector madd(vector a, vector b, vector c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vector nmadd(vector a, vector b, vector c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

INLINE vector root(vector x)
{
    return _mm256_sqrt_ps(x);
}

INLINE vector raised(vector peak, vector a, vector b)
{
    return madd(a, b, peak);
}

INLINE words bits_of(vector x)
{
    return _mm256_castps_si256(x);
}

INLINE vector float_of(words x)
{
    return _mm256_castsi256_ps(x);
}

INLINE vector sign(vector x)
{
    const vector minus = _mm256_set1_ps(-0.0f);
    const vector one = _mm256_or_ps(_mm256_and_ps(x, minus), _mm256_set1_ps(1));
    const vector kept = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_UQ);
    return _mm256_blendv_ps(one, x, kept);
}

INLINE vector canonical(vector x)
{
    const vector nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, float_of(_mm256_set1_epi32(BASE_NAN_F32)), nan);
}

INLINE bool all_finite(vector x)
{
    const vector zero_or_nan = _mm256_sub_ps(x, x);
    return _mm256_movemask_ps(_mm256_cmp_ps(zero_or_nan, zero_or_nan, _CMP_UNORD_Q)) == 0;
}

/** lane[k] + x[k] * x[k] for four of them. */
INLINE __m256d plus_squares(__m256d lane, __m128 x)
{
    const __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, lane);
}

INLINE void add_squares(double *lane, vector x)
{
    const __m128 low = _mm256_castps256_ps128(x), high = _mm256_extractf128_ps(x, 1);
    _mm256_storeu_pd(lane, plus_squares(_mm256_loadu_pd(lane), low));
    _mm256_storeu_pd(lane + 4, plus_squares(_mm256_loadu_pd(lane + 4), high));
}

struct squares {
    __m256d lane[BASE_SUM_LANES / 4];
};

INLINE struct squares no_squares(void)
{
    const __m256d zero = _mm256_setzero_pd();
    return (struct squares){{zero, zero, zero, zero}};
}

INLINE void add_to_squares(struct squares *lanes, size_t lane, vector x)
{
    __m256d *to = &lanes->lane[lane / 4];
    to[0] = plus_squares(to[0], _mm256_castps256_ps128(x));
    to[1] = plus_squares(to[1], _mm256_extractf128_ps(x, 1));
}

INLINE void load_to_squares(struct squares *lanes, size_t lane, const float *x)
{
    add_to_squares(lanes, lane, load(x));
}

INLINE void store_squares(double lane[BASE_SUM_LANES], const struct squares *lanes)
{
    for (size_t k = 0; k < BASE_SUM_LANES / 4; k++)
        _mm256_storeu_pd(lane + 4 * k, lanes->lane[k]);
}

INLINE double add_lanes(const struct squares *lanes)
{
    const __m256d low = _mm256_add_pd(lanes->lane[0], lanes->lane[2]);
    const __m256d high = _mm256_add_pd(lanes->lane[1], lanes->lane[3]);
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* ------------------------------------------------------------------ words */

INLINE words word(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

INLINE words lanes(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

INLINE words left(words x, int bits)
{
    return _mm256_slli_epi32(x, bits);
}

INLINE words right(words x, int bits)
{
    return _mm256_srli_epi32(x, bits);
}

INLINE words left_by(words x, words bits)
{
    return _mm256_sllv_epi32(x, bits);
}

INLINE words right_by(words x, words bits)
{
    return _mm256_srlv_epi32(x, bits);
}

INLINE words if_above(words a, words b, words yes, words no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(a, b));
}

INLINE words larger(words a, words b)
{
    return _mm256_max_epi32(a, b);
}

INLINE bool any_above(words a, uint32_t limit)
{
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, word(limit))) != 0;
}

// The instruction multiplies every second word: even ones where they are, odd ones moved there.
INLINE void multiply(words x, uint32_t constant, words *high, words *low)
{
    const words factor = word(constant);
    const words even = _mm256_mul_epu32(x, factor);
    const words uneven = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), uneven, 0xaa);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(uneven, 32), 0xaa);
}

/* ------------------------------------------------------------------ halves */

INLINE words load_halves(const uint16_t *x)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
}

INLINE vector load_bf16(const uint16_t *x)
{
    return float_of(left(load_halves(x), 16));
}

INLINE halves pack(words x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

INLINE halves pack_upper(words x)
{
    return pack(right(x, 16));
}

/** Rounds to f16; no element is a NaN. */
INLINE halves f16_of_number(vector x)
{
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm256_cvtps_ph(x, MODE);
}

INLINE halves f16_of(vector x)
{
    return f16_of_number(canonical(x));
}

INLINE void store_halves(uint16_t *x, halves value)
{
    _mm_storeu_si128((halves *)(void *)x, value);
}

INLINE void stream_halves(uint16_t *x, halves value)
{
    _mm_stream_si128((halves *)(void *)x, value);
}

INLINE void fence(void)
{
    _mm_sfence();
}

INLINE vector load_f16(const uint16_t *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
}

/* ------------------------------------------------------------------ numbers of sums */

INLINE packet load_packet(const void *x, size_t bytes)
{
    (void)bytes;
    return _mm256_loadu_si256(x);
}

INLINE void store_packet(void *x, packet value, size_t bytes)
{
    (void)bytes;
    _mm256_storeu_si256(x, value);
}

INLINE void stream_packet(void *x, packet value)
{
    _mm256_stream_si256(x, value);
}

INLINE vector floats_in(packet x)
{
    return _mm256_castsi256_ps(x);
}

INLINE packet packet_of(vector x)
{
    return _mm256_castps_si256(x);
}

INLINE doubles doubles_in(packet x)
{
    return _mm256_castsi256_pd(x);
}

INLINE packet packet_of_doubles(doubles x)
{
    return _mm256_castpd_si256(x);
}

// The instructions give their second operand if the two are equal or one is NaN.

INLINE vector least(vector a, vector b)
{
    return _mm256_blendv_ps(_mm256_min_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}

INLINE vector greatest(vector a, vector b)
{
    return _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}

INLINE doubles least_doubles(doubles a, doubles b)
{
    return _mm256_blendv_pd(_mm256_min_pd(b, a), b, _mm256_cmp_pd(b, b, _CMP_UNORD_Q));
}

INLINE doubles greatest_doubles(doubles a, doubles b)
{
    return _mm256_blendv_pd(_mm256_max_pd(b, a), b, _mm256_cmp_pd(b, b, _CMP_UNORD_Q));
}

INLINE packet least_i32(packet a, packet b)
{
    return _mm256_min_epi32(a, b);
}

INLINE packet greatest_i32(packet a, packet b)
{
    return _mm256_max_epi32(a, b);
}

INLINE packet least_i64(packet a, packet b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b));
}

INLINE packet greatest_i64(packet a, packet b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(b, a));
}

INLINE marks not_finite(vector x)
{
    const words exponent = _mm256_set1_epi32(0x7f800000);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), exponent), exponent);
}

INLINE marks not_a_number(vector x)
{
    return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE marks not_finite_doubles(doubles x)
{
    const words exponent = _mm256_set1_epi64x(0x7ff0000000000000);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_castpd_si256(x), exponent), exponent);
}

INLINE marks not_numbers(doubles x)
{
    return _mm256_castpd_si256(_mm256_cmp_pd(x, x, _CMP_UNORD_Q));
}

INLINE marks marks_of_both(marks a, marks b)
{
    return _mm256_or_si256(a, b);
}

INLINE bool any_mark(marks x)
{
    return _mm256_testz_si256(x, x) == 0;
}

INLINE packet packed(words low, words high)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

INLINE packet joined(halves low, halves high)
{
    return _mm256_set_m128i(high, low);
}

#endif
