/**
 * gpt2_numbers.h: elements of both types, GPT2_PACK at a time, and where a thread is.
 */
#ifndef GPT2_CUDA_NUMBERS_H
#define GPT2_CUDA_NUMBERS_H

#include "gpt2_kernels.h"
#include "warp.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static __device__ __forceinline__
#define FLOAT_MAX 3.402823466e+38f
#define LOG2_E 1.4426950408889634f

struct bf16 {
    uint16_t bits;
};

/* ------------------------------------------------------------------ places */

INLINE int lane(void)
{
    return (int)(threadIdx.x % GPT2_WARP);
}

INLINE size_t thread_of_grid(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

INLINE size_t warp_of_grid(void)
{
    return thread_of_grid() / GPT2_WARP;
}

/* ------------------------------------------------------------------ elements */

/** Of two bf16 in a word. */
INLINE float low_half(uint32_t word)
{
    return __uint_as_float(word << 16);
}

INLINE float high_half(uint32_t word)
{
    return __uint_as_float(word & 0xffff0000);
}

INLINE float load_one(const float *from)
{
    return *from;
}

INLINE float load_one(const bf16 *from)
{
    return low_half(from->bits);
}

INLINE void store_one(float *to, float x)
{
    *to = x;
}

INLINE void store_one(bf16 *to, float x)
{
    to->bits = (uint16_t)pack_bf16(x, 0);
}

INLINE void load(const float *from, float x[GPT2_PACK])
{
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

INLINE void load(const bf16 *from, float x[GPT2_PACK])
{
    const uint4 words = *(const uint4 *)from;
    x[0] = low_half(words.x), x[1] = high_half(words.x);
    x[2] = low_half(words.y), x[3] = high_half(words.y);
    x[4] = low_half(words.z), x[5] = high_half(words.z);
    x[6] = low_half(words.w), x[7] = high_half(words.w);
}

/** Loads fewer elements, with zeros behind them. */
template <typename T> INLINE void load_some(const T *from, int count, float x[GPT2_PACK])
{
    if (count >= GPT2_PACK)
        return load(from, x);
    for (int j = 0; j < GPT2_PACK; j++)
        x[j] = j < count ? load_one(from + j) : 0;
}

INLINE void store(float *to, const float x[GPT2_PACK])
{
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

INLINE void store(bf16 *to, const float x[GPT2_PACK])
{
    *(uint4 *)to = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                              pack_bf16(x[6], x[7]));
}

/* ------------------------------------------------------------------ a warp's */

INLINE float warp_sum(float x)
{
    for (int mask = GPT2_WARP / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

INLINE float warp_max(float x)
{
    for (int mask = GPT2_WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

#endif
