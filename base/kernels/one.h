/**
 * base/kernels/one.h: vectors of one element, for files whose `vector` is a float and whose `words`
 * is a uint32_t. These are the definition (vector_ref.h) and the threads of a GPU (vector_cuda.h).
 * Both include it behind their operations on floats. It is C, and C++ too.
 */
#ifndef BASE_KERNELS_ONE_H
#define BASE_KERNELS_ONE_H

/* ------------------------------------------------------------------ words */

INLINE words word(uint32_t x)
{
    return x;
}

INLINE words lanes(void)
{
    return 0;
}

INLINE words right(words x, int bits)
{
    return x >> bits;
}

INLINE words left_by(words x, words bits)
{
    return bits < 32 ? x << bits : 0;
}

INLINE words right_by(words x, words bits)
{
    return bits < 32 ? x >> bits : 0;
}

INLINE words if_above(words a, words b, words yes, words no)
{
    return a > b ? yes : no;
}

INLINE words larger(words a, words b)
{
    return a > b ? a : b;
}

INLINE bool any_above(words a, uint32_t limit)
{
    return a > limit;
}

INLINE void multiply(words x, uint32_t constant, words *high, words *low)
{
    const uint64_t product = (uint64_t)x * constant;
    *high = (words)(product >> 32);
    *low = (words)product;
}

#include "base/kernels/rounding.h"

/* ------------------------------------------------------------------ rounding by itself */

/** The bits of element `element`, rounded as round_bf16() of kernels.h does; x has its own. */
INLINE words rounded_bf16(uint64_t key, uint64_t element, words x)
{
    words random[4];
    const uint64_t turn = element % DRAW_BF16 / BASE_DRAW_LANES;
    draw(key, element / DRAW_BF16 * BASE_DRAW_LANES + element % BASE_DRAW_LANES, random);
    return stochastic_bf16(x, turn % 2 ? random[turn / 2] >> 16 : random[turn / 2] & 0xffff);
}

/** The bits of element `element`, rounded as round_f16() of kernels.h does. */
INLINE words rounded_f16(uint64_t key, uint64_t element, words x)
{
    words random[4];
    draw(key, element / DRAW_F16 * BASE_DRAW_LANES + element % BASE_DRAW_LANES, random);
    return stochastic_f16(x, random[element % DRAW_F16 / BASE_DRAW_LANES]);
}

#endif
