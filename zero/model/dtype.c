#include "zero/model/dtype.h"

#include "base/bfloat16.h"

#include <assert.h>
#include <string.h>

size_t eng_dtype_size(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_F32:
        return 4;
    case ZERO_BF16:
    case ZERO_F16:
        return 2;
    default: // not for tensors
        return 0;
    }
}

const char *eng_dtype_name(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_F32:
        return "f32";
    case ZERO_BF16:
        return "bf16";
    case ZERO_F16:
        return "f16";
    default:
        return "?";
    }
}

void eng_widen(const struct base_kernels *kernels, zero_dtype dtype, const void *from, size_t count,
               float *to)
{
    assert(eng_dtype_size(dtype) > 0);
    if (dtype == ZERO_BF16)
        kernels->from_bf16(count, from, to);
    else if (dtype == ZERO_F16)
        kernels->from_f16(count, from, to);
    else
        memcpy(to, from, count * sizeof *to);
}

void eng_narrow(const struct base_kernels *kernels, zero_dtype dtype, const float *from,
                size_t count, void *to)
{
    assert(eng_dtype_size(dtype) > 0);
    if (dtype == ZERO_BF16)
        kernels->to_bf16(count, from, to);
    else if (dtype == ZERO_F16)
        kernels->to_f16(count, from, to);
    else
        memcpy(to, from, count * sizeof *from);
}

size_t eng_first_beyond(zero_dtype dtype, const float *values, size_t count)
{
    size_t i = 0;
    if (dtype == ZERO_BF16)
        while (i < count && !base_beyond_bf16(values[i]))
            i++;
    else if (dtype == ZERO_F16)
        while (i < count && !base_beyond_f16(values[i]))
            i++;
    else
        return count;
    return i;
}

float eng_largest(zero_dtype dtype)
{
    return dtype == ZERO_F16    ? base_f32_from_f16(0x7bff)
           : dtype == ZERO_BF16 ? base_f32_from_bf16(0x7f7f)
                                : base_f32_from_bits(0x7f7fffff);
}

void eng_round(const struct base_kernels *kernels, zero_dtype dtype, uint64_t key, uint64_t first,
               size_t count, const float *from, void *to)
{
    assert(dtype == ZERO_BF16 || dtype == ZERO_F16);
    if (dtype == ZERO_BF16)
        kernels->round_bf16(key, first, count, from, to);
    else
        kernels->round_f16(key, first, count, from, to);
}

void eng_convert(const struct base_kernels *kernels, zero_dtype from_dtype, const void *from,
                 zero_dtype to_dtype, void *to, size_t count)
{
    if (from_dtype == ZERO_F32) {
        eng_narrow(kernels, to_dtype, from, count, to);
        return;
    }
    if (to_dtype == ZERO_F32) {
        eng_widen(kernels, from_dtype, from, count, to);
        return;
    }
    float wide[BASE_GRANULE];
    const uint16_t *halves = from;
    uint16_t *out = to;
    for (size_t i = 0; i < count; i += BASE_GRANULE) {
        const size_t n = count - i < BASE_GRANULE ? count - i : BASE_GRANULE;
        eng_widen(kernels, from_dtype, halves + i, n, wide);
        eng_narrow(kernels, to_dtype, wide, n, out + i);
    }
}
