/**
 * base/exact_digits.h: the arithmetic of an exact sum (base/exact_sum.h), for processors and GPUs:
 * what an addend adds to which limbs, and how limbs are rounded to a double.
 */
#ifndef BASE_EXACT_DIGITS_H
#define BASE_EXACT_DIGITS_H

#include "base/exact_sum.h"
#include "base/formula.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/** What |value| adds to the limbs from `first` on: 32 bits each. */
struct base_exact_addend {
    int first;
    uint64_t digit[3];
};

/** Takes the bits of a finite double apart; its sign plays no part. |value| is mantissa *
 * 2^exponent, so bit 0 of the mantissa is bit `position` of the sum. */
BASE_FORMULA struct base_exact_addend base_exact_split(uint64_t bits)
{
    const int exponent = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & 0xfffffffffffff;
    const uint64_t mantissa = exponent > 0 ? fraction | 0x10000000000000 : fraction;
    const int position = exponent > 0 ? exponent - 1 : 0, shift = position % 32;
    const uint64_t low = (mantissa & 0xffffffff) << shift, high = (mantissa >> 32) << shift;
    const uint64_t middle = (low >> 32) + (high & 0xffffffff);
    struct base_exact_addend addend;
    addend.first = position / 32;
    addend.digit[0] = low & 0xffffffff;
    addend.digit[1] = middle & 0xffffffff;
    addend.digit[2] = (high >> 32) + (middle >> 32);
    return addend;
}

/** The part of a limb that belongs to the next one: floor(limb / 2^32), for negative limbs too. */
BASE_FORMULA int64_t base_exact_carry(int64_t limb)
{
    return (limb - (limb & 0xffffffff)) / 0x100000000;
}

/** Makes every limb but the last a digit of 32 bits, each multiplied by `sign` before. */
BASE_FORMULA void base_exact_carry_all(struct base_exact_sum *sum, int64_t sign)
{
    int64_t carry = 0;
    for (int i = 0; i < BASE_EXACT_SUM_LIMBS; i++) {
        const int64_t limb = sign * sum->limb[i] + carry;
        carry = i < BASE_EXACT_SUM_LIMBS - 1 ? base_exact_carry(limb) : 0;
        sum->limb[i] = limb - carry * 0x100000000;
    }
}

/** How many of the upper bits are zero; x is not 0. */
BASE_FORMULA int base_exact_room(uint64_t x)
{
#ifdef __CUDA_ARCH__
    return __clzll((long long)x);
#else
    return __builtin_clzll(x);
#endif
}

/** base_exact_sum_round(); makes digits of the limbs. */
BASE_FORMULA double base_exact_round(struct base_exact_sum *sum)
{
    enum { DROP = 11 };
    const int64_t *digit = sum->limb;
    base_exact_carry_all(sum, 1);
    const bool negative = digit[BASE_EXACT_SUM_LIMBS - 1] < 0;
    if (negative)
        base_exact_carry_all(sum, -1);
    int top = BASE_EXACT_SUM_LIMBS - 1;
    while (top >= 0 && digit[top] == 0)
        top--;
    if (top < 0)
        return 0;
    // The leading 64 bits; `cut` tells whether there is anything below, which decides ties.
    const int room = base_exact_room((uint64_t)digit[top]);
    int next = top - 1;
    uint64_t below = 0; // the next 64 bits
    for (int i = 0; i < 2; i++, next--)
        below = below << 32 | (next >= 0 ? (uint64_t)digit[next] : 0);
    const uint64_t leading =
        (uint64_t)digit[top] << room | (room > 0 ? below >> (64 - room) : (uint64_t)0);
    bool cut = below << room != 0;
    for (; next >= 0; next--)
        cut = cut || digit[next] != 0;
    // 53 bits are kept. A denormal result has fewer, but nothing is cut from it: the sum has no
    // bits below the smallest denormal.
    uint64_t kept = leading >> DROP;
    const uint64_t rest = leading & ((1u << DROP) - 1), tie = 1u << (DROP - 1);
    if (rest > tie || (rest == tie && (cut || (kept & 1))))
        kept++;
    const double value = ldexp((double)kept, 32 * top + BASE_EXACT_SUM_LOWEST - room + DROP);
    return negative ? -value : value;
}

#endif
