/**
 * base/kernels/vector_avx512.h: vectors of AVX-512 (F, BW, DQ, VL): 16 elements at a time.
 * vector_ref.h says what the functions do, and defines the bits.
 */
#ifndef BASE_KERNELS_VECTOR_AVX512_H
#define BASE_KERNELS_VECTOR_AVX512_H

#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"

#include <immintrin.h>

#define WIDTH 16
#define ISA_NAME "avx512"
#define INLINE static inline __attribute__((always_inline))

typedef __m512 vector;
typedef __m512i words;
typedef __m256i halves;
typedef __m512d doubles;
typedef __m512i packet;
typedef __mmask16 marks;
typedef uint32_t counts __attribute__((vector_size(64)));
typedef uint64_t bigs __attribute__((vector_size(64)));

#include "base/kernels/vector_plain.h"

INLINE bool runs_here(void)
{
    return base_cpu_detect().avx512;
}

/* ------------------------------------------------------------------ floats */

INLINE vector spread(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vector load(const float *x)
{
    base_prefetch(x);
    return _mm512_loadu_ps(x);
}

INLINE void store(float *x, vector value)
{
    _mm512_storeu_ps(x, value);
}

INLINE vector madd(vector a, vector b, vector c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vector nmadd(vector a, vector b, vector c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

INLINE vector root(vector x)
{
    return _mm512_sqrt_ps(x);
}

INLINE vector raised(vector peak, vector a, vector b)
{
    return madd(a, b, peak);
}

INLINE words bits_of(vector x)
{
    return _mm512_castps_si512(x);
}

INLINE vector float_of(words x)
{
    return _mm512_castsi512_ps(x);
}

INLINE vector sign(vector x)
{
    const vector minus = _mm512_set1_ps(-0.0f);
    const vector one = _mm512_or_ps(_mm512_and_ps(x, minus), _mm512_set1_ps(1));
    const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_EQ_UQ);
    return _mm512_mask_mov_ps(one, kept, x);
}

INLINE vector canonical(vector x)
{
    // Tokens QNAN and SNAN: the first operand; all others: the second one.
    return _mm512_fixupimm_ps(float_of(_mm512_set1_epi32(BASE_NAN_F32)), x,
                              _mm512_set1_epi32(0x11111100), 0);
}

INLINE bool all_finite(vector x)
{
    enum { NAN_OR_INFINITY = 0x99 };
    return _mm512_fpclass_ps_mask(x, NAN_OR_INFINITY) == 0;
}

INLINE void add_squares(double *lane, vector x)
{
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    _mm512_storeu_pd(lane, _mm512_fmadd_pd(a, a, _mm512_loadu_pd(lane)));
    _mm512_storeu_pd(lane + 8, _mm512_fmadd_pd(b, b, _mm512_loadu_pd(lane + 8)));
}

struct squares {
    __m512d low, high;
};

INLINE struct squares no_squares(void)
{
    return (struct squares){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

INLINE void add_to_squares(struct squares *lanes, size_t lane, vector x)
{
    (void)lane; // 0
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    lanes->low = _mm512_fmadd_pd(a, a, lanes->low);
    lanes->high = _mm512_fmadd_pd(b, b, lanes->high);
}

// Conversions from memory take half as much of the ports that add.
INLINE void load_to_squares(struct squares *lanes, size_t lane, const float *x)
{
    (void)lane;
    base_prefetch(x);
    const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x));
    const __m512d b = _mm512_cvtps_pd(_mm256_loadu_ps(x + 8));
    lanes->low = _mm512_fmadd_pd(a, a, lanes->low);
    lanes->high = _mm512_fmadd_pd(b, b, lanes->high);
}

INLINE void store_squares(double lane[BASE_SUM_LANES], const struct squares *lanes)
{
    _mm512_storeu_pd(lane, lanes->low);
    _mm512_storeu_pd(lane + 8, lanes->high);
}

INLINE double add_lanes(const struct squares *lanes)
{
    const __m512d eight = _mm512_add_pd(lanes->low, lanes->high);
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* ------------------------------------------------------------------ words */

INLINE words word(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

INLINE words lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

INLINE words right(words x, unsigned bits)
{
    return _mm512_srli_epi32(x, bits);
}

INLINE words left_by(words x, words bits)
{
    return _mm512_sllv_epi32(x, bits);
}

INLINE words right_by(words x, words bits)
{
    return _mm512_srlv_epi32(x, bits);
}

INLINE words if_above(words a, words b, words yes, words no)
{
    return _mm512_mask_mov_epi32(no, _mm512_cmpgt_epi32_mask(a, b), yes);
}

INLINE words larger(words a, words b)
{
    return _mm512_max_epi32(a, b);
}

INLINE bool any_above(words a, uint32_t limit)
{
    return _mm512_cmpgt_epi32_mask(a, word(limit)) != 0;
}

// The instruction multiplies every second word: even ones where they are, odd ones moved there.
INLINE void multiply(words x, uint32_t constant, words *high, words *low)
{
    const words factor = word(constant);
    const words even = _mm512_mul_epu32(x, factor);
    const words uneven = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), factor);
    *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, uneven);
    *low = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(uneven, 32));
}

/* ------------------------------------------------------------------ halves */

/** Moved to the upper halves at once; the lower ones come from where there are zeros. */
INLINE vector load_bf16(const uint16_t *x)
{
    static const uint16_t from[32] = {16, 0, 16, 1, 16, 2,  16, 3,  16, 4,  16, 5,  16, 6,  16, 7,
                                      16, 8, 16, 9, 16, 10, 16, 11, 16, 12, 16, 13, 16, 14, 16, 15};
    const __m256i in = _mm256_loadu_si256((const __m256i *)(const void *)x);
    return float_of(_mm512_permutexvar_epi16(_mm512_loadu_si512(from), _mm512_zextsi256_si512(in)));
}

INLINE halves pack(words x)
{
    return _mm512_cvtepi32_epi16(x);
}

INLINE halves pack_upper(words x)
{
    static const uint16_t from[16] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i order =
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)from));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, x));
}

/** Rounds to f16; no element is a NaN. */
INLINE halves f16_of_number(vector x)
{
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm512_cvtps_ph(x, MODE);
}

INLINE halves f16_of(vector x)
{
    return f16_of_number(canonical(x));
}

INLINE void store_halves(uint16_t *x, halves value)
{
    _mm256_storeu_si256((halves *)(void *)x, value);
}

INLINE void stream_halves(uint16_t *x, halves value)
{
    _mm256_stream_si256((halves *)(void *)x, value);
}

INLINE void fence(void)
{
    _mm_sfence();
}

INLINE vector load_f16(const uint16_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x));
}

/* ------------------------------------------------------------------ numbers of sums */

enum { NAN_CLASS = 0x81, NOT_FINITE_CLASS = 0x99 /* and the two infinities */ };

INLINE packet load_packet(const void *x, size_t bytes)
{
    (void)bytes;
    return _mm512_loadu_si512(x);
}

INLINE void store_packet(void *x, packet value, size_t bytes)
{
    (void)bytes;
    _mm512_storeu_si512(x, value);
}

INLINE void stream_packet(void *x, packet value)
{
    _mm512_stream_si512(x, value);
}

INLINE vector floats_in(packet x)
{
    return _mm512_castsi512_ps(x);
}

INLINE packet packet_of(vector x)
{
    return _mm512_castps_si512(x);
}

INLINE doubles doubles_in(packet x)
{
    return _mm512_castsi512_pd(x);
}

INLINE packet packet_of_doubles(doubles x)
{
    return _mm512_castpd_si512(x);
}

// The instructions give their second operand if the two are equal or one is NaN.

INLINE vector least(vector a, vector b)
{
    return _mm512_mask_mov_ps(_mm512_min_ps(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}

INLINE vector greatest(vector a, vector b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}

INLINE doubles least_doubles(doubles a, doubles b)
{
    return _mm512_mask_mov_pd(_mm512_min_pd(b, a), _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q), b);
}

INLINE doubles greatest_doubles(doubles a, doubles b)
{
    return _mm512_mask_mov_pd(_mm512_max_pd(b, a), _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q), b);
}

INLINE packet least_i32(packet a, packet b)
{
    return _mm512_min_epi32(a, b);
}

INLINE packet greatest_i32(packet a, packet b)
{
    return _mm512_max_epi32(a, b);
}

INLINE packet least_i64(packet a, packet b)
{
    return _mm512_min_epi64(a, b);
}

INLINE packet greatest_i64(packet a, packet b)
{
    return _mm512_max_epi64(a, b);
}

INLINE marks not_finite(vector x)
{
    return _mm512_fpclass_ps_mask(x, NOT_FINITE_CLASS);
}

INLINE marks not_a_number(vector x)
{
    return _mm512_fpclass_ps_mask(x, NAN_CLASS);
}

INLINE marks not_finite_doubles(doubles x)
{
    return _mm512_fpclass_pd_mask(x, NOT_FINITE_CLASS);
}

INLINE marks not_numbers(doubles x)
{
    return _mm512_fpclass_pd_mask(x, NAN_CLASS);
}

INLINE marks marks_of_both(marks a, marks b)
{
    return _kor_mask16(a, b);
}

INLINE bool any_mark(marks x)
{
    return x != 0;
}

INLINE packet joined(halves low, halves high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE packet packed(words low, words high)
{
    return joined(pack(low), pack(high));
}

#endif
