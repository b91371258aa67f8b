// The definition: one element after the other.

#include "base/bfloat16.h"
#include "collectives/sum/sum.h"

static bool finite(float value)
{
    return (base_f32_bits(value) & 0x7f800000u) != 0x7f800000u;
}

static float canonical(float value)
{
    return value == value ? value : base_f32_from_bits(0x7fc00000u);
}

static float load_f32(const void *source, size_t i)
{
    return ((const float *)source)[i];
}

static float load_bf16(const void *source, size_t i)
{
    return base_f32_from_bf16(((const uint16_t *)source)[i]);
}

static inline bool add(float *sum, const void *const *sources, int count, size_t first, size_t n,
                       bool store, float (*load)(const void *source, size_t i))
{
    bool all_finite = true;
    for (size_t i = 0; i < n; i++) {
        float addend = load(sources[0], first + i);
        all_finite &= finite(addend);
        float value = store ? addend : sum[i] + addend;
        for (int k = 1; k < count; k++) {
            addend = load(sources[k], first + i);
            all_finite &= finite(addend);
            value += addend;
        }
        sum[i] = canonical(value);
    }
    return all_finite;
}

static bool sum_f32(float *sum, const void *const *sources, int count, size_t first, size_t n,
                    bool store)
{
    return add(sum, sources, count, first, n, store, load_f32);
}

static bool sum_bf16(float *sum, const void *const *sources, int count, size_t first, size_t n,
                     bool store)
{
    return add(sum, sources, count, first, n, store, load_bf16);
}

const struct coll_sum_kernels coll_sum_ref = {
    .size = sizeof(struct coll_sum_kernels),
    .name = "ref",
    .f32 = sum_f32,
    .bf16 = sum_bf16,
};
