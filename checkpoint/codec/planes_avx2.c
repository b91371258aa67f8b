// What planes_loop.h needs of AVX2. Compiled with its flags and called only where the processor has
// it.

#include "checkpoint/codec/planes.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m256i vector;

INLINE vector load(const unsigned char *from)
{
    return _mm256_loadu_si256((const vector *)from);
}

INLINE void store(unsigned char *to, vector value)
{
    _mm256_storeu_si256((vector *)to, value);
}

/* ------------------------------------------------------------------ elements of 2 bytes */

INLINE vector left_2(vector v)
{
    return _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15));
}

INLINE vector right_2(vector v)
{
    return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15));
}

// A part is half of a vector.

INLINE vector parts_2(vector v)
{
    const vector bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, bytes), 0xd8);
}

INLINE vector whole_2(vector v)
{
    const vector bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(v, 0xd8), bytes);
}

INLINE void exchange_2(vector v[2])
{
    const vector first = v[0];
    v[0] = _mm256_permute2x128_si256(first, v[1], 0x20);
    v[1] = _mm256_permute2x128_si256(first, v[1], 0x31);
}

INLINE vector pick_2(const vector v[2], unsigned right)
{
    const __m128i down = _mm_cvtsi32_si128((int)right), up = _mm_cvtsi32_si128((int)(16 - right));
    vector low[2];
    for (int j = 0; j < 2; j++)
        low[j] = _mm256_and_si256(
            _mm256_or_si256(_mm256_srl_epi16(v[j], down), _mm256_sll_epi16(v[j], up)),
            _mm256_set1_epi16(0xff));
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(low[0], low[1]), 0xd8);
}

/* ------------------------------------------------------------------ elements of 4 bytes */

INLINE vector left_4(vector v)
{
    return _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31));
}

INLINE vector right_4(vector v)
{
    return _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31));
}

// A part is a quarter of a vector.

INLINE vector turn_4(vector v)
{
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                      0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

INLINE vector turn_lanes(vector v)
{
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE vector pick_4(const vector v[4], unsigned right)
{
    const __m128i down = _mm_cvtsi32_si128((int)right), up = _mm_cvtsi32_si128((int)(32 - right));
    vector low[4];
    for (int j = 0; j < 4; j++)
        low[j] = _mm256_and_si256(
            _mm256_or_si256(_mm256_srl_epi32(v[j], down), _mm256_sll_epi32(v[j], up)),
            _mm256_set1_epi32(0xff));
    return turn_lanes(_mm256_packus_epi16(_mm256_packus_epi32(low[0], low[1]),
                                          _mm256_packus_epi32(low[2], low[3])));
}

INLINE vector parts_4(vector v)
{
    return turn_lanes(turn_4(v));
}

INLINE vector whole_4(vector v)
{
    return turn_4(_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)));
}

INLINE void exchange_4(vector v[4])
{
    const vector even_01 = _mm256_unpacklo_epi64(v[0], v[1]);
    const vector even_23 = _mm256_unpacklo_epi64(v[2], v[3]);
    const vector odd_01 = _mm256_unpackhi_epi64(v[0], v[1]);
    const vector odd_23 = _mm256_unpackhi_epi64(v[2], v[3]);
    v[0] = _mm256_permute2x128_si256(even_01, even_23, 0x20);
    v[1] = _mm256_permute2x128_si256(odd_01, odd_23, 0x20);
    v[2] = _mm256_permute2x128_si256(even_01, even_23, 0x31);
    v[3] = _mm256_permute2x128_si256(odd_01, odd_23, 0x31);
}

#include "checkpoint/codec/planes_loop.h"

const struct ckpt_planes ckpt_planes_avx2 = {
    .size = sizeof(struct ckpt_planes),
    .name = "avx2",
    .split = split,
    .merge = merge,
};
