// Sixteen elements at a time; the rest under a mask. Compiled with the flags of AVX-512 and called
// only where the processor has it.

#include "collectives/sum/sum.h"

#include <immintrin.h>

enum { LANES = 16, NOT_FINITE = 0x99 /* quiet NaN, signalling NaN, the two infinities */ };

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load_f32(const void *source, size_t i, __mmask16 lanes)
{
    return _mm512_maskz_loadu_ps(lanes, (const float *)source + i);
}

INLINE __m512 load_bf16(const void *source, size_t i, __mmask16 lanes)
{
    const __m256i halves = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)source + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

typedef __m512 (*load_fn)(const void *source, size_t i, __mmask16 lanes);

/** The elements i .. of the sum; returns the lanes with a source that is not finite. */
INLINE __mmask16 add_lanes(float *sum, const void *const *sources, int count, size_t first,
                           size_t i, __mmask16 lanes, bool store, load_fn load)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    __m512 addend = load(sources[0], first + i, lanes);
    __mmask16 bad = _mm512_fpclass_ps_mask(addend, NOT_FINITE);
    __m512 value = store ? addend : _mm512_add_ps(load_f32(sum, i, lanes), addend);
    for (int k = 1; k < count; k++) {
        addend = load(sources[k], first + i, lanes);
        bad = _kor_mask16(bad, _mm512_fpclass_ps_mask(addend, NOT_FINITE));
        value = _mm512_add_ps(value, addend);
    }
    value = _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
    _mm512_mask_storeu_ps(sum + i, lanes, value);
    return bad;
}

INLINE bool add(float *sum, const void *const *sources, int count, size_t first, size_t n,
                bool store, load_fn load)
{
    __mmask16 bad = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        bad = _kor_mask16(bad, add_lanes(sum, sources, count, first, i, 0xffff, store, load));
    if (i < n) {
        const __mmask16 rest = (__mmask16)((1u << (n - i)) - 1);
        bad = _kor_mask16(bad, add_lanes(sum, sources, count, first, i, rest, store, load));
    }
    return bad == 0;
}

/** add() with a constant number of sources, so that the loop over them is unrolled and the sum
 * stays in a register. */
INLINE bool add_unrolled(float *sum, const void *const *sources, int count, size_t first, size_t n,
                         bool store, load_fn load)
{
    switch (count) {
    case 1:
        return store ? add(sum, sources, 1, first, n, true, load)
                     : add(sum, sources, 1, first, n, false, load);
    case 2:
        return store ? add(sum, sources, 2, first, n, true, load)
                     : add(sum, sources, 2, first, n, false, load);
    case 3:
        return store ? add(sum, sources, 3, first, n, true, load)
                     : add(sum, sources, 3, first, n, false, load);
    default:
        return store ? add(sum, sources, 4, first, n, true, load)
                     : add(sum, sources, 4, first, n, false, load);
    }
}

static bool sum_f32(float *sum, const void *const *sources, int count, size_t first, size_t n,
                    bool store)
{
    return add_unrolled(sum, sources, count, first, n, store, load_f32);
}

static bool sum_bf16(float *sum, const void *const *sources, int count, size_t first, size_t n,
                     bool store)
{
    return add_unrolled(sum, sources, count, first, n, store, load_bf16);
}

const struct coll_sum_kernels coll_sum_avx512 = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "avx512",
    .f32 = sum_f32,
    .bf16 = sum_bf16,
};
