/**
 * base/kernels/rounding.h: roundings to bf16 and f16, to nearest and stochastic, over vectors of
 * any length (vector_ref.h), for processors and GPUs. C, and C++ too.
 */
#ifndef BASE_KERNELS_ROUNDING_H
#define BASE_KERNELS_ROUNDING_H

// Integer arithmetic only: no floating-point mode plays a part.

/** The nearest bf16, ties to even, of what is canonical, in the upper half of each word: the one
 * NaN rounds to that of bf16. */
INLINE words nearest_bf16(words x)
{
    return sum(x, sum(word(0x7fff), both(right(x, 16), word(1))));
}

/** The bits of a neighbour, by 16 random ones, in the lower half. */
INLINE words stochastic_bf16(words x, words random)
{
    const words magnitude = both(x, word(0x7fffffff));
    return if_above(magnitude, word(0x7f800000), word(BASE_NAN_BF16), right(sum(x, random), 16));
}

/** The bits of a neighbour in f16, by the high 31 of 32 random bits. */
INLINE words stochastic_f16(words x, words random)
{
    const words magnitude = both(x, word(0x7fffffff)), exponent = right(magnitude, 23);
    // Bits to drop: 13, and one more for each binade below the normal halves.
    const words normal = difference(magnitude, word(112u << 23));
    const words denormal = either(both(magnitude, word(0x7fffff)), word(0x800000));
    const words kept = if_above(exponent, word(112), normal, denormal);
    const words drop = if_above(exponent, word(112), word(13), difference(word(126), exponent));
    // What is dropped, in units of 2^-31 of the last bit kept; a carry moves into the exponent.
    const words dropped = either(left_by(kept, difference(word(31), drop)),
                                 right_by(kept, difference(drop, word(31))));
    const words carry = right(sum(both(dropped, word(0x7fffffff)), right(random, 1)), 31);
    const words finite = sum(right_by(kept, drop), carry);
    const words rounded = if_above(magnitude, word(0x477fffff), word(0x7c00), finite);
    return if_above(magnitude, word(0x7f800000), word(BASE_NAN_F16),
                    either(both(right(x, 16), word(0x8000)), rounded));
}

/** Elements whose random numbers are drawn together: 8 halves of a block each, or 4 words. */
enum { DRAW_BF16 = BASE_DRAW_LANES * 8, DRAW_F16 = BASE_DRAW_LANES * 4 };

/** Random numbers of the blocks block .. block + WIDTH - 1 (zero/random.h: zero_philox()). block is
 * a multiple of WIDTH. */
INLINE void draw(uint64_t key, uint64_t block, words random[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    random[0] = sum(word((uint32_t)block), lanes());
    random[1] = word((uint32_t)(block >> 32));
    random[2] = word(0);
    random[3] = word(0);
    for (int round = 0; round < 10; round++) {
        words high0, low0, high1, low1;
        multiply(random[0], 0xD2511F53, &high0, &low0);
        multiply(random[2], 0xCD9E8D57, &high1, &low1);
        random[0] = odd(odd(high1, random[1]), word(k0));
        random[1] = low1;
        random[2] = odd(odd(high0, random[3]), word(k1));
        random[3] = low0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

#endif
