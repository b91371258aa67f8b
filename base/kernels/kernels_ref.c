// The definition of the arithmetic: kernels_loop.h with vectors of one element. The compiler may
// turn the loops into vectors, which changes no bit.
#include "base/kernels/vector_ref.h"

#define TABLE base_kernels_ref

#include "base/kernels/kernels_loop.h"

uint16_t base_round_bf16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_bf16(key, element, bits_of(x));
}

uint16_t base_round_f16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_f16(key, element, bits_of(x));
}

size_t base_add_contributions(const struct base_contributions *from, size_t first, size_t count,
                              float *sum)
{
    size_t i = 0;
    for (; i < count; i++) {
        sum[i] = contributed(from, from->dtype, first + i);
        if (!all_finite(sum[i]))
            break;
    }
    return i;
}

void base_add_squares(double lane[BASE_SUM_LANES], size_t first, size_t count, const float *x)
{
    for (size_t i = first; i < count; i++)
        add_squares(&lane[i % BASE_SUM_LANES], x[i]);
}

double base_add_lanes(double lane[BASE_SUM_LANES])
{
    for (size_t half = BASE_SUM_LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return isnan(lane[0]) ? (double)base_f32_from_bits(BASE_NAN_F32) : lane[0];
}
