// What planes_loop.h needs of AVX-512. Compiled with its flags and called only where the processor
// has it.

#include "checkpoint/codec/planes.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m512i vector;

INLINE vector load(const unsigned char *from)
{
    return _mm512_loadu_si512(from);
}

INLINE void store(unsigned char *to, vector value)
{
    _mm512_storeu_si512(to, value);
}

/* ------------------------------------------------------------------ elements of 2 bytes */

INLINE vector left_2(vector v)
{
    return _mm512_or_si512(_mm512_slli_epi16(v, 1), _mm512_srli_epi16(v, 15));
}

INLINE vector right_2(vector v)
{
    return _mm512_or_si512(_mm512_srli_epi16(v, 1), _mm512_slli_epi16(v, 15));
}

// A part is half of a vector.

INLINE vector parts_2(vector v)
{
    const vector bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const vector order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(order, _mm512_shuffle_epi8(v, bytes));
}

INLINE vector whole_2(vector v)
{
    const vector bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const vector order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi64(order, v), bytes);
}

INLINE void exchange_2(vector v[2])
{
    const vector first = v[0];
    v[0] = _mm512_shuffle_i64x2(first, v[1], 0x44);
    v[1] = _mm512_shuffle_i64x2(first, v[1], 0xee);
}

INLINE vector pick_2(const vector v[2], unsigned right)
{
    const __m128i down = _mm_cvtsi32_si128((int)right), up = _mm_cvtsi32_si128((int)(16 - right));
    vector low[2];
    for (int j = 0; j < 2; j++)
        low[j] = _mm512_and_si512(
            _mm512_or_si512(_mm512_srl_epi16(v[j], down), _mm512_sll_epi16(v[j], up)),
            _mm512_set1_epi16(0xff));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                    _mm512_packus_epi16(low[0], low[1]));
}

/* ------------------------------------------------------------------ elements of 4 bytes */

INLINE vector left_4(vector v)
{
    return _mm512_rol_epi32(v, 1);
}

INLINE vector right_4(vector v)
{
    return _mm512_ror_epi32(v, 1);
}

// A part is a quarter of a vector, which is a lane.

INLINE vector turn_4(vector v)
{
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2,
                                                                       6, 10, 14, 3, 7, 11, 15)));
}

INLINE vector turn_lanes(vector v)
{
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
}

INLINE vector pick_4(const vector v[4], unsigned right)
{
    const vector by = _mm512_set1_epi32((int)right);
    vector low[4];
    for (int j = 0; j < 4; j++)
        low[j] = _mm512_and_si512(_mm512_rorv_epi32(v[j], by), _mm512_set1_epi32(0xff));
    return turn_lanes(_mm512_packus_epi16(_mm512_packus_epi32(low[0], low[1]),
                                          _mm512_packus_epi32(low[2], low[3])));
}

INLINE vector parts_4(vector v)
{
    return turn_lanes(turn_4(v));
}

INLINE vector whole_4(vector v)
{
    return turn_4(turn_lanes(v));
}

INLINE void exchange_4(vector v[4])
{
    const vector even_01 = _mm512_shuffle_i32x4(v[0], v[1], 0x88);
    const vector even_23 = _mm512_shuffle_i32x4(v[2], v[3], 0x88);
    const vector odd_01 = _mm512_shuffle_i32x4(v[0], v[1], 0xdd);
    const vector odd_23 = _mm512_shuffle_i32x4(v[2], v[3], 0xdd);
    v[0] = _mm512_shuffle_i32x4(even_01, even_23, 0x88);
    v[1] = _mm512_shuffle_i32x4(odd_01, odd_23, 0x88);
    v[2] = _mm512_shuffle_i32x4(even_01, even_23, 0xdd);
    v[3] = _mm512_shuffle_i32x4(odd_01, odd_23, 0xdd);
}

#include "checkpoint/codec/planes_loop.h"

const struct ckpt_planes ckpt_planes_avx512 = {
    .size = sizeof(struct ckpt_planes),
    .name = "avx512",
    .split = split,
    .merge = merge,
};
