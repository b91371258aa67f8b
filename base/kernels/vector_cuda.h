/**
 * base/kernels/vector_cuda.h: vectors of one element, those of a thread of a GPU. Operations on
 * floats are asked for one by one, so that the compiler cannot fuse them, and round to nearest with
 * denormals.
 */
#ifndef BASE_KERNELS_VECTOR_CUDA_H
#define BASE_KERNELS_VECTOR_CUDA_H

#include "base/kernels/kernel_tables.h"

#include <cuda_fp16.h>

#define INLINE static __device__ __forceinline__

typedef float vector;
typedef uint32_t words, counts;

#include "base/kernels/vector_words.h"

/* ------------------------------------------------------------------ floats */

INLINE vector mul(vector a, vector b)
{
    return __fmul_rn(a, b);
}

INLINE vector madd(vector a, vector b, vector c)
{
    return __fmaf_rn(a, b, c);
}

INLINE vector nmadd(vector a, vector b, vector c)
{
    return __fmaf_rn(-a, b, c);
}

INLINE vector add(vector a, vector b)
{
    return __fadd_rn(a, b);
}

INLINE vector quotient(vector a, vector b)
{
    return __fdiv_rn(a, b);
}

INLINE vector root(vector x)
{
    return __fsqrt_rn(x);
}

INLINE vector sign(vector x)
{
    return x < 0 || x > 0 ? copysignf(1.0f, x) : x;
}

INLINE words bits_of(vector x)
{
    return __float_as_uint(x);
}

INLINE vector float_of(words x)
{
    return __uint_as_float(x);
}

INLINE vector canonical(vector x)
{
    return (bits_of(x) & 0x7fffffff) > 0x7f800000 ? float_of(BASE_NAN_F32) : x;
}

INLINE bool is_finite(vector x)
{
    return (bits_of(x) & 0x7f800000) != 0x7f800000;
}

#include "base/kernels/one.h"

INLINE uint16_t f16_of(vector x)
{
    const bool is_nan = (bits_of(x) & 0x7fffffff) > 0x7f800000;
    return is_nan ? BASE_NAN_F16 : __half_as_ushort(__float2half_rn(x));
}

INLINE vector from_f16(uint16_t x)
{
    return __half2float(__ushort_as_half(x));
}

#endif
