// Eight elements at a time; the rest by the definition. Compiled with the flags of AVX2 and called
// only where the processor has it.

#include "collectives/sum/sum.h"

#include <immintrin.h>

enum { LANES = 8 };

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load_f32(const void *source, size_t i)
{
    return _mm256_loadu_ps((const float *)source + i);
}

INLINE __m256 load_bf16(const void *source, size_t i)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)source + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

typedef __m256 (*load_fn)(const void *source, size_t i);

/** All ones in the lanes whose exponent is that of NaN and infinity. */
INLINE __m256i not_finite(__m256 value)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(value), exponent), exponent);
}

/** n is a multiple of LANES. */
INLINE bool add(float *sum, const void *const *sources, int count, size_t first, size_t n,
                bool store, load_fn load)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    __m256i bad = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += LANES) {
        __m256 addend = load(sources[0], first + i);
        bad = _mm256_or_si256(bad, not_finite(addend));
        __m256 value = store ? addend : _mm256_add_ps(_mm256_loadu_ps(sum + i), addend);
        for (int k = 1; k < count; k++) {
            addend = load(sources[k], first + i);
            bad = _mm256_or_si256(bad, not_finite(addend));
            value = _mm256_add_ps(value, addend);
        }
        value = _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        _mm256_storeu_ps(sum + i, value);
    }
    return _mm256_testz_si256(bad, bad) != 0;
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
    const size_t rest = n % LANES, whole = n - rest;
    const bool finite = add_unrolled(sum, sources, count, first, whole, store, load_f32);
    return coll_sum_ref.f32(sum + whole, sources, count, first + whole, rest, store) && finite;
}

static bool sum_bf16(float *sum, const void *const *sources, int count, size_t first, size_t n,
                     bool store)
{
    const size_t rest = n % LANES, whole = n - rest;
    const bool finite = add_unrolled(sum, sources, count, first, whole, store, load_bf16);
    return coll_sum_ref.bf16(sum + whole, sources, count, first + whole, rest, store) && finite;
}

const struct coll_sum_kernels coll_sum_avx2 = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "avx2",
    .f32 = sum_f32,
    .bf16 = sum_bf16,
};
