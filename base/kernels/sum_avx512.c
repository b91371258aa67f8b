// What sum_loop.h needs of AVX-512: a block is two vectors, a line of each. Compiled with its flags
// and called only where the processor has it.

#include "base/kernels/sum.h"

#include <immintrin.h>
#include <string.h>

enum { VECTORS = 2, NAN_CLASS = 0x81, NOT_FINITE_CLASS = 0x99 /* and the two infinities */ };

#define INLINE static inline __attribute__((always_inline))

/** Elements of an accumulator. */
typedef __m512i vector;

INLINE vector load_line(const vector *line)
{
    return _mm512_load_si512(line);
}

INLINE void store_line(vector *line, vector value)
{
    _mm512_store_si512(line, value);
}

INLINE void stream_line(vector *line, vector value)
{
    _mm512_stream_si512(line, value);
}

/* ------------------------------------------------------------------ f32, bf16, f16 */

INLINE vector load_f32(const void *source, size_t i)
{
    return _mm512_loadu_si512((const float *)source + i);
}

INLINE vector load_bf16(const void *source, size_t i)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)((const uint16_t *)source + i));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

INLINE vector load_f16(const void *source, size_t i)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)((const uint16_t *)source + i));
    return _mm512_castps_si512(_mm512_cvtph_ps(halves));
}

INLINE vector add_f32(vector value, vector next)
{
    return _mm512_castps_si512(
        _mm512_add_ps(_mm512_castsi512_ps(value), _mm512_castsi512_ps(next)));
}

// The instructions give their second operand if the two are equal or one is NaN.

INLINE vector least_f32(vector value, vector next)
{
    const __m512 a = _mm512_castsi512_ps(value), b = _mm512_castsi512_ps(next);
    const __mmask16 nan = _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q);
    return _mm512_castps_si512(_mm512_mask_mov_ps(_mm512_min_ps(b, a), nan, b));
}

INLINE vector greatest_f32(vector value, vector next)
{
    const __m512 a = _mm512_castsi512_ps(value), b = _mm512_castsi512_ps(next);
    const __mmask16 nan = _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q);
    return _mm512_castps_si512(_mm512_mask_mov_ps(_mm512_max_ps(b, a), nan, b));
}

INLINE bool not_finite_f32(const vector *values)
{
    __mmask16 found = 0;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++)
        found = _kor_mask16(
            found, _mm512_fpclass_ps_mask(_mm512_castsi512_ps(values[j]), NOT_FINITE_CLASS));
    return found != 0;
}

INLINE bool nan_f32(const vector *values)
{
    __mmask16 found = 0;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++)
        found =
            _kor_mask16(found, _mm512_fpclass_ps_mask(_mm512_castsi512_ps(values[j]), NAN_CLASS));
    return found != 0;
}

/* ------------------------------------------------------------------ f64 */

INLINE vector load_f64(const void *source, size_t i)
{
    return _mm512_loadu_si512((const double *)source + i);
}

INLINE vector add_f64(vector value, vector next)
{
    return _mm512_castpd_si512(
        _mm512_add_pd(_mm512_castsi512_pd(value), _mm512_castsi512_pd(next)));
}

INLINE vector least_f64(vector value, vector next)
{
    const __m512d a = _mm512_castsi512_pd(value), b = _mm512_castsi512_pd(next);
    const __mmask8 nan = _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q);
    return _mm512_castpd_si512(_mm512_mask_mov_pd(_mm512_min_pd(b, a), nan, b));
}

INLINE vector greatest_f64(vector value, vector next)
{
    const __m512d a = _mm512_castsi512_pd(value), b = _mm512_castsi512_pd(next);
    const __mmask8 nan = _mm512_cmp_pd_mask(b, b, _CMP_UNORD_Q);
    return _mm512_castpd_si512(_mm512_mask_mov_pd(_mm512_max_pd(b, a), nan, b));
}

INLINE bool not_finite_f64(const vector *values)
{
    __mmask8 found = 0;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++)
        found = _kor_mask8(
            found, _mm512_fpclass_pd_mask(_mm512_castsi512_pd(values[j]), NOT_FINITE_CLASS));
    return found != 0;
}

INLINE bool nan_f64(const vector *values)
{
    __mmask8 found = 0;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++)
        found =
            _kor_mask8(found, _mm512_fpclass_pd_mask(_mm512_castsi512_pd(values[j]), NAN_CLASS));
    return found != 0;
}

/* ------------------------------------------------------------------ i32, i64 */

INLINE bool never(const vector *values)
{
    (void)values;
    return false;
}

INLINE vector load_i32(const void *source, size_t i)
{
    return _mm512_loadu_si512((const int32_t *)source + i);
}

INLINE vector add_i32(vector value, vector next)
{
    return _mm512_add_epi32(value, next);
}

INLINE vector least_i32(vector value, vector next)
{
    return _mm512_min_epi32(value, next);
}

INLINE vector greatest_i32(vector value, vector next)
{
    return _mm512_max_epi32(value, next);
}

INLINE vector load_i64(const void *source, size_t i)
{
    return _mm512_loadu_si512((const int64_t *)source + i);
}

INLINE vector add_i64(vector value, vector next)
{
    return _mm512_add_epi64(value, next);
}

INLINE vector least_i64(vector value, vector next)
{
    return _mm512_min_epi64(value, next);
}

INLINE vector greatest_i64(vector value, vector next)
{
    return _mm512_max_epi64(value, next);
}

/* ------------------------------------------------------------------ more places */

// There is no NaN among these: blocks that have one are left to the definition.

INLINE void put(void *to, vector value, enum coll_sum_to where)
{
    if (where == COLL_SUM_MEMORY && (uintptr_t)to % sizeof value == 0)
        _mm512_stream_si512(to, value);
    else
        _mm512_storeu_si512(to, value);
}

INLINE void spread_wide(const struct coll_pass *pass, size_t i, size_t bytes, const vector *values)
{
    for (int k = 0; k < pass->also_count; k++) {
        unsigned char *to = (unsigned char *)pass->also[k] + (pass->also_first + i) * bytes;
        for (size_t j = 0; j < VECTORS; j++)
            put(to + j * sizeof *values, values[j], pass->to);
    }
}

static void spread_wide4(const struct coll_pass *pass, size_t i, const vector *values)
{
    spread_wide(pass, i, 4, values);
}

static void spread_wide8(const struct coll_pass *pass, size_t i, const vector *values)
{
    spread_wide(pass, i, 8, values);
}

INLINE vector narrow_bf16(vector bits)
{
    const vector odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const vector half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
    return _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
}

/** A block of sums is a line of halves. */
static void spread_bf16(const struct coll_pass *pass, size_t i, const vector *values)
{
    const __m256i low = _mm512_cvtepi32_epi16(narrow_bf16(values[0]));
    const __m256i high = _mm512_cvtepi32_epi16(narrow_bf16(values[1]));
    const vector line = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    if (!pass->narrow)
        spread_wide4(pass, i, values);
    for (int k = 0; k < pass->also_count && pass->narrow; k++)
        put((uint16_t *)pass->also[k] + pass->also_first + i, line, pass->to);
}

static void spread_f16(const struct coll_pass *pass, size_t i, const vector *values)
{
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    const __m256i low = _mm512_cvtps_ph(_mm512_castsi512_ps(values[0]), MODE);
    const __m256i high = _mm512_cvtps_ph(_mm512_castsi512_ps(values[1]), MODE);
    const vector line = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    if (!pass->narrow)
        spread_wide4(pass, i, values);
    for (int k = 0; k < pass->also_count && pass->narrow; k++)
        put((uint16_t *)pass->also[k] + pass->also_first + i, line, pass->to);
}

/* ------------------------------------------------------------------ the loop */

#include "base/kernels/sum_loop.h"

static void copy(void *to, const void *from, size_t bytes, enum coll_sum_to where)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t i = where == COLL_SUM_MEMORY ? coll_sum_head(to, bytes, 1) : bytes;
    if (i > 0)
        memcpy(out, in, i);
    for (; i + sizeof(__m512i) <= bytes; i += sizeof(__m512i))
        _mm512_stream_si512((__m512i *)(out + i), _mm512_loadu_si512(in + i));
    if (i < bytes)
        memcpy(out + i, in + i, bytes - i);
}

const struct coll_sum_kernels coll_sum_avx512 = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "avx512",
    .sum = {[ZERO_F32] = sum_f32,
            [ZERO_BF16] = sum_bf16,
            [ZERO_F16] = sum_f16,
            [ZERO_F64] = sum_f64,
            [ZERO_I32] = sum_i32,
            [ZERO_I64] = sum_i64},
    .copy = copy,
};
