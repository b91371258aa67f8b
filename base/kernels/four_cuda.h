/**
 * base/kernels/four_cuda.h: loads and stores of a thread of a GPU, four elements at a time, of any
 * dtype.
 */
#ifndef BASE_KERNELS_FOUR_CUDA_H
#define BASE_KERNELS_FOUR_CUDA_H

#include "base/kernels/vector_cuda.h"

enum { FOUR = 4 };

/** Elements i .. i+n-1, i a multiple of 4 and n at most 4, of an array. */
INLINE void load_floats(const void *from, size_t i, unsigned n, vector x[FOUR])
{
    const float *floats = (const float *)from + i;
    if (n == FOUR) {
        const float4 all = *(const float4 *)floats;
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
        return;
    }
    for (unsigned j = 0; j < FOUR; j++)
        x[j] = j < n ? floats[j] : 0;
}

INLINE void store_floats(void *to, size_t i, unsigned n, const vector x[FOUR])
{
    float *floats = (float *)to + i;
    if (n == FOUR) {
        *(float4 *)floats = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    for (unsigned j = 0; j < FOUR; j++)
        if (j < n)
            floats[j] = x[j];
}

INLINE void load_halves(const void *from, size_t i, unsigned n, words x[FOUR])
{
    const uint16_t *halves = (const uint16_t *)from + i;
    if (n == FOUR) {
        const uint2 all = *(const uint2 *)halves;
        x[0] = all.x & 0xffff, x[1] = all.x >> 16, x[2] = all.y & 0xffff, x[3] = all.y >> 16;
        return;
    }
    for (unsigned j = 0; j < FOUR; j++)
        x[j] = j < n ? halves[j] : 0;
}

INLINE void store_halves(void *to, size_t i, unsigned n, const words x[FOUR])
{
    uint16_t *halves = (uint16_t *)to + i;
    if (n == FOUR) {
        *(uint2 *)halves = make_uint2(x[0] | x[1] << 16, x[2] | x[3] << 16);
        return;
    }
    for (unsigned j = 0; j < FOUR; j++)
        if (j < n)
            halves[j] = (uint16_t)x[j];
}

/** Of any dtype, widened. */
INLINE void load_any(unsigned dtype, const void *from, size_t i, unsigned n, vector x[FOUR])
{
    words halves[FOUR];
    if (dtype == ZERO_F32) {
        load_floats(from, i, n, x);
        return;
    }
    load_halves(from, i, n, halves);
    for (int j = 0; j < FOUR; j++)
        x[j] = dtype == ZERO_BF16 ? float_of(halves[j] << 16) : from_f16((uint16_t)halves[j]);
}

/** A bit each of the first n that is an infinity or a NaN. */
INLINE unsigned which_wrong(unsigned dtype, const vector floats[FOUR], const words halves[FOUR],
                            unsigned n)
{
    const words ones = dtype == ZERO_BF16 ? 0x7f80 : 0x7c00;
    unsigned wrong = 0;
    for (unsigned j = 0; j < FOUR; j++) {
        const bool finite = dtype == ZERO_F32 ? is_finite(floats[j]) : (halves[j] & ones) != ones;
        wrong |= j < n && !finite ? 1u << j : 0;
    }
    return wrong;
}

/** To any dtype, to nearest even; NaN as one. Returns which of those that are stored are not
 * finite, here and below. */
INLINE unsigned store_nearest(unsigned dtype, void *to, size_t i, unsigned n, const vector x[FOUR])
{
    words halves[FOUR];
    vector floats[FOUR];
    for (int j = 0; j < FOUR; j++) {
        floats[j] = canonical(x[j]);
        halves[j] = dtype == ZERO_BF16 ? nearest_bf16(bits_of(floats[j])) >> 16 : f16_of(x[j]);
    }
    if (dtype == ZERO_F32)
        store_floats(to, i, n, floats);
    else
        store_halves(to, i, n, halves);
    return which_wrong(dtype, floats, halves, n);
}

/** Long: once for all who round. */
static __device__ __noinline__ words rounded(unsigned dtype, uint64_t key, uint64_t element,
                                             words x)
{
    return (dtype == ZERO_BF16 ? rounded_bf16(key, element, x) : rounded_f16(key, element, x)) &
           0xffff;
}

/** Rounds stochastically to 16 bits; `first` is the element of the slice that i = 0 is. */
INLINE unsigned store_rounded(unsigned dtype, uint64_t key, uint64_t first, void *to, size_t i,
                              unsigned n, const vector x[FOUR])
{
    words halves[FOUR];
    for (unsigned j = 0; j < FOUR; j++)
        halves[j] = rounded(dtype, key, first + i + j, bits_of(x[j]));
    store_halves(to, i, n, halves);
    return which_wrong(dtype, x, halves, n);
}

#endif
