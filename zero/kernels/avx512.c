// AVX-512 (F, BW, DQ, VL): 16 elements at a time; what does not fill a register is left to ref.c,
// so nothing past `count` is read or written. The bits are those of ref.c, which see.
#include "base/cpu.h"
#include "zero/kernels/tables.h"

#include <immintrin.h>

#define WIDTH 16

static bool usable(void)
{
    return base_cpu_detect().avx512;
}

// Elements that fill whole registers.
static size_t whole(size_t count)
{
    return count - count % WIDTH;
}

static __m512 canonical(__m512 x)
{
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(x, nan, _mm512_castsi512_ps(_mm512_set1_epi32(ENG_NAN_F32)));
}

// Integer arithmetic only: no floating-point mode plays a part.
static __m256i narrow(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(ENG_NAN_BF16)));
}

static void adamw(const struct eng_adamw_scalars *scalars, size_t count, const float *gradient,
                  float *m, float *v, float *weight, uint16_t *work)
{
    const __m512 gradient_scale = _mm512_set1_ps(scalars->gradient_scale);
    const __m512 beta1 = _mm512_set1_ps(scalars->beta1);
    const __m512 one_minus_beta1 = _mm512_set1_ps(scalars->one_minus_beta1);
    const __m512 beta2 = _mm512_set1_ps(scalars->beta2);
    const __m512 one_minus_beta2 = _mm512_set1_ps(scalars->one_minus_beta2);
    const __m512 decay = _mm512_set1_ps(scalars->decay);
    const __m512 step_size = _mm512_set1_ps(scalars->step_size);
    const __m512 correction = _mm512_set1_ps(scalars->inverse_sqrt_correction);
    const __m512 eps = _mm512_set1_ps(scalars->eps);
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        eng_prefetch(gradient + i);
        eng_prefetch(m + i);
        eng_prefetch(v + i);
        eng_prefetch(weight + i);
        const __m512 g = _mm512_mul_ps(_mm512_loadu_ps(gradient + i), gradient_scale);
        const __m512 m1 =
            _mm512_fmadd_ps(beta1, _mm512_loadu_ps(m + i), _mm512_mul_ps(one_minus_beta1, g));
        const __m512 v1 = _mm512_fmadd_ps(beta2, _mm512_loadu_ps(v + i),
                                          _mm512_mul_ps(_mm512_mul_ps(one_minus_beta2, g), g));
        const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(v1), correction, eps);
        const __m512 w = _mm512_loadu_ps(weight + i);
        const __m512 w1 =
            _mm512_fnmadd_ps(step_size, _mm512_div_ps(m1, d), _mm512_fnmadd_ps(decay, w, w));
        _mm512_storeu_ps(m + i, canonical(m1));
        _mm512_storeu_ps(v + i, canonical(v1));
        _mm512_storeu_ps(weight + i, canonical(w1));
        if (work)
            _mm256_storeu_si256((__m256i *)(void *)(work + i), narrow(w1));
    }
    eng_kernels_ref.adamw(scalars, count - end, gradient + end, m + end, v + end, weight + end,
                          work ? work + end : NULL);
}

static double sum_squares(size_t count, const float *x)
{
    const size_t end = whole(count);
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    for (size_t i = 0; i < end; i += WIDTH) {
        const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x + i));
        const __m512d b = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8));
        eng_prefetch(x + i);
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
    double lanes[ENG_SUM_LANES];
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
    eng_add_squares(lanes, end, count, x);
    return eng_add_lanes(lanes);
}

static void to_bf16(size_t count, const float *x, uint16_t *out)
{
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        eng_prefetch(x + i);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), narrow(_mm512_loadu_ps(x + i)));
    }
    eng_kernels_ref.to_bf16(count - end, x + end, out + end);
}

static void from_bf16(size_t count, const uint16_t *x, float *out)
{
    const size_t end = whole(count);
    for (size_t i = 0; i < end; i += WIDTH) {
        const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
        _mm512_storeu_ps(out + i, canonical(_mm512_castsi512_ps(bits)));
    }
    eng_kernels_ref.from_bf16(count - end, x + end, out + end);
}

const struct eng_kernels eng_kernels_avx512 = {
    .size = sizeof(struct eng_kernels),
    .name = "avx512",
    .usable = usable,
    .adamw = adamw,
    .sum_squares = sum_squares,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
};
