#include "base/exact_digits.h"

#include <assert.h>
#include <string.h>

enum { LIMBS = BASE_EXACT_SUM_LIMBS };

void base_exact_sum_init(struct base_exact_sum *sum)
{
    memset(sum, 0, sizeof *sum);
}

void base_exact_sum_add(struct base_exact_sum *sum, double value)
{
    if (!isfinite(value) || value == 0)
        return;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const struct base_exact_addend addend = base_exact_split(bits);
    const int first = addend.first;
    const int64_t sign = bits >> 63 ? -1 : 1;
    assert(first >= 0 && first + 2 < LIMBS);
    int64_t carry = 0;
    for (int i = first; i < LIMBS && (i < first + 3 || carry != 0); i++) {
        const int64_t digit = i < first + 3 ? sign * (int64_t)addend.digit[i - first] : 0;
        const int64_t limb = sum->limb[i] + carry + digit;
        carry = i < LIMBS - 1 ? base_exact_carry(limb) : 0;
        sum->limb[i] = limb - carry * 0x100000000;
    }
}

void base_exact_sum_merge(struct base_exact_sum *to, const struct base_exact_sum *from)
{
    for (int i = 0; i < LIMBS; i++)
        to->limb[i] += from->limb[i];
}

double base_exact_sum_round(const struct base_exact_sum *sum)
{
    struct base_exact_sum digits = *sum;
    return base_exact_round(&digits);
}
