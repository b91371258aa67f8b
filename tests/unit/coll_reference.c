#include "tests/unit/coll_reference.h"

#include "base/bfloat16.h"
#include "tests/unit/coll_ranks.h"

#include <math.h>

static bool is_f32_sum(zero_dtype dtype)
{
    return dtype == ZERO_F32 || dtype == ZERO_BF16 || dtype == ZERO_F16;
}

size_t dtype_bytes(zero_dtype dtype)
{
    return dtype == ZERO_BF16 || dtype == ZERO_F16  ? 2
           : dtype == ZERO_F64 || dtype == ZERO_I64 ? 8
                                                    : 4;
}

size_t sum_bytes(zero_dtype dtype)
{
    return is_f32_sum(dtype) ? sizeof(float) : dtype_bytes(dtype);
}

/* ------------------------------------------------------------------ inputs */

/** Bits of a float of the given format: a quarter special, the others random or near one. */
static uint64_t some_bits(uint32_t seed, int exponent_bits, int fraction_bits, bool finite)
{
    const uint64_t one = UINT64_C(1), sign = one << (exponent_bits + fraction_bits);
    const uint64_t infinity = ((one << exponent_bits) - 1) << fraction_bits;
    const uint64_t quiet = one << (fraction_bits - 1);
    const uint64_t special[] = {0,
                                sign,
                                1,
                                sign | (quiet - 1),
                                one << fraction_bits,
                                infinity - 1,
                                sign | (infinity - 1),
                                (infinity >> 1) & infinity,
                                infinity,
                                sign | infinity,
                                infinity | quiet,
                                sign | infinity | quiet | 1,
                                infinity | 1};
    const uint32_t kind = mix(seed, 3, 4);
    if (kind % 4 == 0)
        return special[kind / 4 % (finite ? 8 : 13)];
    const uint64_t random =
        ((uint64_t)mix(kind, 5, 6) << 32 | mix(kind, 7, 8)) & (sign | (sign - 1));
    const bool wild = (random & infinity) == infinity || kind % 4 == 1;
    return wild ? ((infinity >> 1) & infinity) | (random & ~infinity) : random;
}

void fill_elements(zero_dtype dtype, void *to, size_t first, size_t n, uint32_t seed, bool finite)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = mix(seed, (uint32_t)(first + i), 1);
        if (dtype == ZERO_F32)
            ((uint32_t *)to)[i] = (uint32_t)some_bits(key, 8, 23, finite);
        else if (dtype == ZERO_BF16)
            ((uint16_t *)to)[i] = (uint16_t)some_bits(key, 8, 7, finite);
        else if (dtype == ZERO_F16)
            ((uint16_t *)to)[i] = (uint16_t)some_bits(key, 5, 10, finite);
        else if (dtype == ZERO_F64)
            ((uint64_t *)to)[i] = some_bits(key, 11, 52, finite);
        else if (dtype == ZERO_I32)
            ((uint32_t *)to)[i] = mix(key, 1, 1);
        else
            ((uint64_t *)to)[i] = (uint64_t)mix(key, 1, 1) << 32 | mix(key, 2, 2);
    }
}

/* ------------------------------------------------------------------ the loops */

static float widen(zero_dtype dtype, const void *from, size_t i)
{
    return dtype == ZERO_F32    ? ((const float *)from)[i]
           : dtype == ZERO_BF16 ? base_f32_from_bf16(((const uint16_t *)from)[i])
                                : base_f32_from_f16(((const uint16_t *)from)[i]);
}

bool is_finite(zero_dtype dtype, const void *from, size_t i)
{
    if (is_f32_sum(dtype))
        return isfinite(widen(dtype, from, i));
    return dtype != ZERO_F64 || isfinite(((const double *)from)[i]);
}

static double combine_floats(enum base_op op, double a, double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return op == BASE_SUM ? a + b : op == BASE_MIN ? (b < a ? b : a) : b > a ? b : a;
}

static float combine_f32(enum base_op op, float a, float b)
{
    // The sum of two floats in double precision, rounded, is their rounded sum.
    return (float)combine_floats(op, (double)a, (double)b);
}

static uint64_t combine_integers(enum base_op op, bool narrow, uint64_t a, uint64_t b)
{
    const int64_t left = narrow ? (int32_t)a : (int64_t)a, right = narrow ? (int32_t)b : (int64_t)b;
    return op == BASE_SUM ? a + b : (right < left) == (op == BASE_MIN) ? b : a;
}

void combine(enum base_op op, zero_dtype dtype, void *sum, const void *from, size_t n, bool store)
{
    for (size_t i = 0; i < n; i++)
        if (is_f32_sum(dtype)) {
            const float next = widen(dtype, from, i);
            float *to = (float *)sum + i;
            *to = store ? next : combine_f32(op, *to, next);
        } else if (dtype == ZERO_F64) {
            const double next = ((const double *)from)[i];
            double *to = (double *)sum + i;
            *to = store ? next : combine_floats(op, *to, next);
        } else if (dtype == ZERO_I32) {
            const uint32_t next = ((const uint32_t *)from)[i];
            uint32_t *to = (uint32_t *)sum + i;
            *to = store ? next : (uint32_t)combine_integers(op, true, *to, next);
        } else {
            const uint64_t next = ((const uint64_t *)from)[i];
            uint64_t *to = (uint64_t *)sum + i;
            *to = store ? next : combine_integers(op, false, *to, next);
        }
}

void finish(zero_dtype dtype, void *sum, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_f32_sum(dtype)) {
            if (isnan(((float *)sum)[i]))
                ((uint32_t *)sum)[i] = 0x7fc00000u;
        } else if (dtype == ZERO_F64) {
            if (isnan(((double *)sum)[i]))
                ((uint64_t *)sum)[i] = UINT64_C(0x7ff8000000000000);
        }
}

void narrow(zero_dtype dtype, void *out, const void *sum, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dtype == ZERO_BF16)
            ((uint16_t *)out)[i] = base_bf16_from_f32(((const float *)sum)[i]);
        else if (dtype == ZERO_F16)
            ((uint16_t *)out)[i] = base_f16_from_f32(((const float *)sum)[i]);
        else if (sum_bytes(dtype) == 4)
            ((uint32_t *)out)[i] = ((const uint32_t *)sum)[i];
        else
            ((uint64_t *)out)[i] = ((const uint64_t *)sum)[i];
}
