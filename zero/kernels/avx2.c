// AVX2 with FMA: 8 elements at a time; what does not fill a register is left to ref.c, so nothing
// past `count` is read or written. The bits are those of ref.c, which see.
#include "base/cpu.h"
#include "zero/kernels/tables.h"

#include <immintrin.h>

#define WIDTH 8

static bool usable(void)
{
    return base_cpu_detect().avx2;
}

// Elements that fill whole registers.
static size_t whole(size_t count)
{
    return count - count % WIDTH;
}

static __m256 canonical(__m256 x)
{
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(ENG_NAN_F32)), nan);
}

// Integer arithmetic only: no floating-point mode plays a part.
static __m128i narrow(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i words = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(ENG_NAN_BF16), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static void adamw(const struct eng_adamw_scalars *scalars, size_t count, const float *gradient,
                  float *m, float *v, float *weight, uint16_t *work)
{
    const __m256 gradient_scale = _mm256_set1_ps(scalars->gradient_scale);
    const __m256 beta1 = _mm256_set1_ps(scalars->beta1);
    const __m256 one_minus_beta1 = _mm256_set1_ps(scalars->one_minus_beta1);
    const __m256 beta2 = _mm256_set1_ps(scalars->beta2);
    const __m256 one_minus_beta2 = _mm256_set1_ps(scalars->one_minus_beta2);
    const __m256 decay = _mm256_set1_ps(scalars->decay);
    const __m256 step_size = _mm256_set1_ps(scalars->step_size);
    const __m256 correction = _mm256_set1_ps(scalars->inverse_sqrt_correction);
    const __m256 eps = _mm256_set1_ps(scalars->eps);
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        eng_prefetch(gradient + i);
        eng_prefetch(m + i);
        eng_prefetch(v + i);
        eng_prefetch(weight + i);
        const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(gradient + i), gradient_scale);
        const __m256 m1 =
            _mm256_fmadd_ps(beta1, _mm256_loadu_ps(m + i), _mm256_mul_ps(one_minus_beta1, g));
        const __m256 v1 = _mm256_fmadd_ps(beta2, _mm256_loadu_ps(v + i),
                                          _mm256_mul_ps(_mm256_mul_ps(one_minus_beta2, g), g));
        const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(v1), correction, eps);
        const __m256 w = _mm256_loadu_ps(weight + i);
        const __m256 w1 =
            _mm256_fnmadd_ps(step_size, _mm256_div_ps(m1, d), _mm256_fnmadd_ps(decay, w, w));
        _mm256_storeu_ps(m + i, canonical(m1));
        _mm256_storeu_ps(v + i, canonical(v1));
        _mm256_storeu_ps(weight + i, canonical(w1));
        if (work)
            _mm_storeu_si128((__m128i *)(void *)(work + i), narrow(w1));
    }
    eng_kernels_ref.adamw(scalars, count - end, gradient + end, m + end, v + end, weight + end,
                          work ? work + end : NULL);
}

// lane[k] += x[k] * x[k] for four of them.
static __m256d add_squares(__m256d lanes, const float *x)
{
    const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x));
    return _mm256_fmadd_pd(wide, wide, lanes);
}

static double sum_squares(size_t count, const float *x)
{
    __m256d a = _mm256_setzero_pd(), b = a, c = a, d = a;
    const size_t end = count - count % ENG_SUM_LANES;
    for (size_t i = 0; i < end; i += ENG_SUM_LANES) {
        eng_prefetch(x + i);
        a = add_squares(a, x + i);
        b = add_squares(b, x + i + 4);
        c = add_squares(c, x + i + 8);
        d = add_squares(d, x + i + 12);
    }
    double lanes[ENG_SUM_LANES];
    _mm256_storeu_pd(lanes, a);
    _mm256_storeu_pd(lanes + 4, b);
    _mm256_storeu_pd(lanes + 8, c);
    _mm256_storeu_pd(lanes + 12, d);
    eng_add_squares(lanes, end, count, x);
    return eng_add_lanes(lanes);
}

static void to_bf16(size_t count, const float *x, uint16_t *out)
{
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        eng_prefetch(x + i);
        _mm_storeu_si128((__m128i *)(void *)(out + i), narrow(_mm256_loadu_ps(x + i)));
    }
    eng_kernels_ref.to_bf16(count - end, x + end, out + end);
}

static void from_bf16(size_t count, const uint16_t *x, float *out)
{
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        const __m128i words = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
        _mm256_storeu_ps(out + i, canonical(_mm256_castsi256_ps(bits)));
    }
    eng_kernels_ref.from_bf16(count - end, x + end, out + end);
}

const struct eng_kernels eng_kernels_avx2 = {
    .size = sizeof(struct eng_kernels),
    .name = "avx2",
    .usable = usable,
    .adamw = adamw,
    .sum_squares = sum_squares,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
};
