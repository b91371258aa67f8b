// The definition of the arithmetic: kernels_loop.h with vectors of one element. The compiler may
// turn the loops into vectors, which changes no bit.
#include "base/kernels/vector_ref.h"

#define TABLE eng_kernels_ref

#include "base/kernels/kernels_loop.h"

uint16_t eng_round_bf16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_bf16(key, element, bits_of(x));
}

uint16_t eng_round_f16_one(uint64_t key, uint64_t element, float x)
{
    return (uint16_t)rounded_f16(key, element, bits_of(x));
}

size_t eng_add_contributions(const struct eng_contributions *from, size_t first, size_t count,
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

void eng_add_squares(double lane[ENG_SUM_LANES], size_t first, size_t count, const float *x)
{
    for (size_t i = first; i < count; i++)
        add_squares(&lane[i % ENG_SUM_LANES], x[i]);
}

double eng_add_lanes(double lane[ENG_SUM_LANES])
{
    for (size_t half = ENG_SUM_LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return isnan(lane[0]) ? (double)base_f32_from_bits(ENG_NAN_F32) : lane[0];
}
