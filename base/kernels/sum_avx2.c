// What sum_loop.h needs of AVX2: a block is four vectors, two a line. Compiled with its flags and
// called only where the processor has it.

#include "base/kernels/sum.h"

#include <immintrin.h>
#include <string.h>

enum { VECTORS = 4 };

#define INLINE static inline __attribute__((always_inline))

/** Elements of an accumulator. */
typedef __m256i vector;

INLINE vector load_line(const vector *line)
{
    return _mm256_load_si256(line);
}

INLINE void store_line(vector *line, vector value)
{
    _mm256_store_si256(line, value);
}

INLINE void stream_line(vector *line, vector value)
{
    _mm256_stream_si256(line, value);
}

/** Whether `special` marks an element of a block. */
INLINE bool any(const vector *values, vector (*special)(vector value))
{
    vector found = special(values[0]);
#pragma GCC unroll 8
    for (int j = 1; j < VECTORS; j++)
        found = _mm256_or_si256(found, special(values[j]));
    return _mm256_testz_si256(found, found) == 0;
}

/* ------------------------------------------------------------------ f32, bf16, f16 */

INLINE vector load_f32(const void *source, size_t i)
{
    return _mm256_loadu_si256((const vector *)((const float *)source + i));
}

INLINE vector load_bf16(const void *source, size_t i)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)source + i));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
}

INLINE vector load_f16(const void *source, size_t i)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)source + i));
    return _mm256_castps_si256(_mm256_cvtph_ps(halves));
}

INLINE vector add_f32(vector value, vector next)
{
    return _mm256_castps_si256(
        _mm256_add_ps(_mm256_castsi256_ps(value), _mm256_castsi256_ps(next)));
}

// The instructions give their second operand if the two are equal or one is NaN.

INLINE vector least_f32(vector value, vector next)
{
    const __m256 a = _mm256_castsi256_ps(value), b = _mm256_castsi256_ps(next);
    const __m256 nan = _mm256_cmp_ps(b, b, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_min_ps(b, a), b, nan));
}

INLINE vector greatest_f32(vector value, vector next)
{
    const __m256 a = _mm256_castsi256_ps(value), b = _mm256_castsi256_ps(next);
    const __m256 nan = _mm256_cmp_ps(b, b, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_max_ps(b, a), b, nan));
}

INLINE vector mark_not_finite_f32(vector value)
{
    const vector exponent = _mm256_set1_epi32(0x7f800000);
    return _mm256_cmpeq_epi32(_mm256_and_si256(value, exponent), exponent);
}

INLINE bool not_finite_f32(const vector *values)
{
    return any(values, mark_not_finite_f32);
}

INLINE vector mark_nan_f32(vector value)
{
    const __m256 a = _mm256_castsi256_ps(value);
    return _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

INLINE bool nan_f32(const vector *values)
{
    return any(values, mark_nan_f32);
}

/* ------------------------------------------------------------------ f64 */

INLINE vector load_f64(const void *source, size_t i)
{
    return _mm256_loadu_si256((const vector *)((const double *)source + i));
}

INLINE vector add_f64(vector value, vector next)
{
    return _mm256_castpd_si256(
        _mm256_add_pd(_mm256_castsi256_pd(value), _mm256_castsi256_pd(next)));
}

INLINE vector least_f64(vector value, vector next)
{
    const __m256d a = _mm256_castsi256_pd(value), b = _mm256_castsi256_pd(next);
    const __m256d nan = _mm256_cmp_pd(b, b, _CMP_UNORD_Q);
    return _mm256_castpd_si256(_mm256_blendv_pd(_mm256_min_pd(b, a), b, nan));
}

INLINE vector greatest_f64(vector value, vector next)
{
    const __m256d a = _mm256_castsi256_pd(value), b = _mm256_castsi256_pd(next);
    const __m256d nan = _mm256_cmp_pd(b, b, _CMP_UNORD_Q);
    return _mm256_castpd_si256(_mm256_blendv_pd(_mm256_max_pd(b, a), b, nan));
}

INLINE vector mark_not_finite_f64(vector value)
{
    const vector exponent = _mm256_set1_epi64x(0x7ff0000000000000);
    return _mm256_cmpeq_epi64(_mm256_and_si256(value, exponent), exponent);
}

INLINE bool not_finite_f64(const vector *values)
{
    return any(values, mark_not_finite_f64);
}

INLINE vector mark_nan_f64(vector value)
{
    const __m256d a = _mm256_castsi256_pd(value);
    return _mm256_castpd_si256(_mm256_cmp_pd(a, a, _CMP_UNORD_Q));
}

INLINE bool nan_f64(const vector *values)
{
    return any(values, mark_nan_f64);
}

/* ------------------------------------------------------------------ i32, i64 */

INLINE bool never(const vector *values)
{
    (void)values;
    return false;
}

INLINE vector load_i32(const void *source, size_t i)
{
    return _mm256_loadu_si256((const vector *)((const int32_t *)source + i));
}

INLINE vector add_i32(vector value, vector next)
{
    return _mm256_add_epi32(value, next);
}

INLINE vector least_i32(vector value, vector next)
{
    return _mm256_min_epi32(value, next);
}

INLINE vector greatest_i32(vector value, vector next)
{
    return _mm256_max_epi32(value, next);
}

INLINE vector load_i64(const void *source, size_t i)
{
    return _mm256_loadu_si256((const vector *)((const int64_t *)source + i));
}

INLINE vector add_i64(vector value, vector next)
{
    return _mm256_add_epi64(value, next);
}

INLINE vector least_i64(vector value, vector next)
{
    return _mm256_blendv_epi8(value, next, _mm256_cmpgt_epi64(value, next));
}

INLINE vector greatest_i64(vector value, vector next)
{
    return _mm256_blendv_epi8(value, next, _mm256_cmpgt_epi64(next, value));
}

/* ------------------------------------------------------------------ more places */

// There is no NaN among these: blocks that have one are left to the definition.

INLINE void put(void *to, vector value, enum coll_sum_to where)
{
    if (where == COLL_SUM_MEMORY && (uintptr_t)to % sizeof value == 0)
        _mm256_stream_si256(to, value);
    else
        _mm256_storeu_si256(to, value);
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
    const vector odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const vector half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

static void spread_bf16(const struct coll_pass *pass, size_t i, const vector *values)
{
    if (!pass->narrow)
        spread_wide4(pass, i, values);
    for (size_t j = 0; j < VECTORS && pass->narrow; j += 2) {
        const vector mixed =
            _mm256_packus_epi32(narrow_bf16(values[j]), narrow_bf16(values[j + 1]));
        const vector halves = _mm256_permute4x64_epi64(mixed, 0xd8);
        for (int k = 0; k < pass->also_count; k++)
            put((uint16_t *)pass->also[k] + pass->also_first + i + j * 8, halves, pass->to);
    }
}

static void spread_f16(const struct coll_pass *pass, size_t i, const vector *values)
{
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    if (!pass->narrow)
        spread_wide4(pass, i, values);
    for (size_t j = 0; j < VECTORS && pass->narrow; j += 2) {
        const __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(values[j]), MODE);
        const __m128i high = _mm256_cvtps_ph(_mm256_castsi256_ps(values[j + 1]), MODE);
        const vector halves = _mm256_set_m128i(high, low);
        for (int k = 0; k < pass->also_count; k++)
            put((uint16_t *)pass->also[k] + pass->also_first + i + j * 8, halves, pass->to);
    }
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
    for (; i + COLL_SUM_LINE <= bytes; i += COLL_SUM_LINE) {
        const vector *line = (const vector *)(in + i);
        const vector low = _mm256_loadu_si256(line), high = _mm256_loadu_si256(line + 1);
        _mm256_stream_si256((vector *)(out + i), low);
        _mm256_stream_si256((vector *)(out + i) + 1, high);
    }
    if (i < bytes)
        memcpy(out + i, in + i, bytes - i);
}

const struct coll_sum_kernels coll_sum_avx2 = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "avx2",
    .sum = {[ZERO_F32] = sum_f32,
            [ZERO_BF16] = sum_bf16,
            [ZERO_F16] = sum_f16,
            [ZERO_F64] = sum_f64,
            [ZERO_I32] = sum_i32,
            [ZERO_I64] = sum_i64},
    .copy = copy,
};
