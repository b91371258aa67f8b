/**
 * Inputs of the kernel tests: floats of every kind, drawn by counter, and the tables to try.
 */
#ifndef TESTS_UNIT_KERNEL_INPUTS_H
#define TESTS_UNIT_KERNEL_INPUTS_H

#include "base/kernels/kernels.h"
#include "zero/random.h"

#include <string.h>

enum input_kind {
    INPUT_ORDINARY, /* 2^-10 .. 2^10 */
    INPUT_TINY,     /* the smallest normal numbers: products become denormal or 0 */
    INPUT_HUGE,     /* the largest ones: products overflow */
    INPUT_DENORMAL,
    INPUT_NONFINITE, /* infinities, quiet and signalling NaNs of any payload, among ordinary ones */
    INPUT_ZERO,      /* of both signs */
    INPUT_ANY,       /* any 32 bits */
    INPUT_KINDS
};

/** Bits of the float of this kind at a counter. */
static inline uint32_t input_bits(enum input_kind kind, uint64_t stream, uint64_t index)
{
    const uint64_t random = zero_random_bits(2024, stream, index);
    const uint32_t sign_and_fraction = (uint32_t)random & 0x807fffffu;
    const uint32_t choice = (uint32_t)(random >> 32);
    switch (kind) {
    case INPUT_ORDINARY:
        return sign_and_fraction | (117 + choice % 20) << 23;
    case INPUT_TINY:
        return sign_and_fraction | (1 + choice % 30) << 23;
    case INPUT_HUGE:
        return sign_and_fraction | (225 + choice % 30) << 23;
    case INPUT_DENORMAL:
        return (sign_and_fraction & 0x80000000u) | (sign_and_fraction & 0x7fffffu) >> choice % 23;
    case INPUT_NONFINITE:
        if (choice % 3 == 0)
            return input_bits(INPUT_ORDINARY, stream ^ 0x5555, index);
        return choice % 3 == 1 ? sign_and_fraction | 0x7f800000u
                               : (sign_and_fraction & 0x80000000u) | 0x7f800000u;
    case INPUT_ZERO:
        return sign_and_fraction & 0x80000000u;
    default:
        return (uint32_t)random;
    }
}

/** Writes `count` of them; through bits, so that no instruction quiets a signalling NaN. */
static inline void input_fill(enum input_kind kind, uint64_t stream, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = input_bits(kind, stream, i);
        memcpy(out + i, &bits, sizeof bits);
    }
}

/** Scalars as a step might have them. */
static inline struct base_rule_scalars input_scalars(enum base_rule rule, bool l2, bool nesterov)
{
    return (struct base_rule_scalars){
        .rule = rule,
        .gradient_scale = 0.125f,
        .beta1 = 0.9f,
        .one_minus_beta1 = 0.1f,
        .beta2 = 0.999f,
        .one_minus_beta2 = 0.001f,
        .decay = 1e-4f,
        .step_size = 1e-2f,
        .inverse_sqrt_correction = 31.6f,
        .eps = 1e-8f,
        .l2 = l2,
        .nesterov = nesterov,
    };
}

/** The i-th table that runs on this machine, NULL past the last; table 0 is the definition. */
static inline const struct base_kernels *usable_table(size_t i)
{
    static const struct base_kernels *usable[8];
    if (!usable[0])
        for (size_t k = 0, n = 0; base_kernels_at(k); k++)
            if (base_kernels_at(k)->usable())
                usable[n++] = base_kernels_at(k);
    return usable[i];
}

/** The table's sum of squares of at most a granule. */
static inline double squares_of(const struct base_kernels *table, size_t count, const float *x)
{
    const void *const source = x;
    double sum = 0;
    table->sum_squares(count, &(struct base_contributions){.sources = &source, .count = 1}, &sum);
    return sum;
}

#endif
