#include "base/exact_sum.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LIMBS = BASE_EXACT_SUM_LIMBS, LOWEST_EXPONENT = -1074 };

static const int64_t digit_mask = INT64_C(0xffffffff);

void base_exact_sum_init(struct base_exact_sum *sum)
{
    memset(sum, 0, sizeof *sum);
}

// The part of a limb that belongs to the next one: floor(limb / 2^32), for negative limbs too.
static int64_t carry_of(int64_t limb)
{
    return (limb - (limb & digit_mask)) / (digit_mask + 1);
}

void base_exact_sum_add(struct base_exact_sum *sum, double value)
{
    if (!isfinite(value) || value == 0)
        return;
    // |value| = mantissa * 2^exponent, so bit 0 of the mantissa is bit `position` of the sum.
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent > 0)
        mantissa |= UINT64_C(1) << 52;
    const int position = exponent > 0 ? exponent - 1 : 0;
    const int first = position / 32, shift = position % 32;

    const uint64_t low = (mantissa & 0xffffffffu) << shift;
    const uint64_t high = (mantissa >> 32) << shift;
    const uint64_t middle = (low >> 32) + (high & 0xffffffffu);
    const int64_t digit[3] = {
        (int64_t)(low & 0xffffffffu),
        (int64_t)(middle & 0xffffffffu),
        (int64_t)((high >> 32) + (middle >> 32)),
    };
    const int64_t sign = bits >> 63 ? -1 : 1;
    int64_t carry = 0;
    for (int i = first; i < LIMBS && (i < first + 3 || carry != 0); i++) {
        const int64_t limb = sum->limb[i] + carry + (i < first + 3 ? sign * digit[i - first] : 0);
        carry = i < LIMBS - 1 ? carry_of(limb) : 0;
        sum->limb[i] = limb - carry * (digit_mask + 1);
    }
}

void base_exact_sum_merge(struct base_exact_sum *to, const struct base_exact_sum *from)
{
    for (int i = 0; i < LIMBS; i++)
        to->limb[i] += from->limb[i];
}

// Writes |sum| as digits of 32 bits, the last one wider; returns true if the sum is negative.
static bool magnitude_of(const struct base_exact_sum *sum, int64_t digit[LIMBS])
{
    const int64_t *limb = sum->limb;
    int64_t carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        digit[i] = limb[i] + carry;
        carry = i < LIMBS - 1 ? carry_of(digit[i]) : 0;
        digit[i] -= carry * (digit_mask + 1);
    }
    if (digit[LIMBS - 1] >= 0)
        return false;
    carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        digit[i] = carry - digit[i];
        carry = i < LIMBS - 1 ? carry_of(digit[i]) : 0;
        digit[i] -= carry * (digit_mask + 1);
    }
    return true;
}

double base_exact_sum_round(const struct base_exact_sum *sum)
{
    int64_t digit[LIMBS];
    const bool negative = magnitude_of(sum, digit);
    int top = LIMBS - 1;
    while (top >= 0 && digit[top] == 0)
        top--;
    if (top < 0)
        return 0;

    // The leading 64 bits; `cut` tells whether there is anything below, which decides ties.
    uint64_t leading = (uint64_t)digit[top];
    int lowest = 32 * top + LOWEST_EXPONENT; // exponent of bit 0 of leading
    int next = top - 1;
    uint64_t below = 0; // the next 64 bits
    for (int i = 0; i < 2; i++, next--)
        below = below << 32 | (next >= 0 ? (uint64_t)digit[next] : 0);
    const int room = __builtin_clzll(leading);
    leading = leading << room | (room > 0 ? below >> (64 - room) : 0);
    lowest -= room;
    bool cut = room < 64 && (below << room) != 0;
    for (; next >= 0; next--)
        cut = cut || digit[next] != 0;

    // 53 bits are kept. A denormal result has fewer, but nothing is cut from it: the sum has no
    // bits below the smallest denormal.
    enum { DROP = 11 };
    uint64_t kept = leading >> DROP;
    const uint64_t rest = leading & ((UINT64_C(1) << DROP) - 1), half = UINT64_C(1) << (DROP - 1);
    if (rest > half || (rest == half && (cut || (kept & 1))))
        kept++;
    const double value = ldexp((double)kept, lowest + DROP);
    return negative ? -value : value;
}
