/**
 * f16.h: IEEE 754's half precision, without a type for it.
 */
#ifndef GPT2_F16_H
#define GPT2_F16_H

#include <stdint.h>
#include <string.h>

/** Exact; a NaN stays one. */
static inline float f16_widen(uint16_t half)
{
    // Exponent and mantissa at their places in a float, whose exponent counts from 127, not 15: the
    // product is exact, for denormals too.
    const uint32_t shifted = (half & 0x7fffu) << 13;
    float value;
    memcpy(&value, &shifted, sizeof value);
    value *= 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits |= (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/** To the nearest, ties to even; infinity from 65520 on; a NaN stays one. */
static inline uint16_t f16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    const uint32_t normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    // Adding 1/2 to what is below 2^-14 rounds it to a multiple of 2^-24.
    float small;
    memcpy(&small, &size, sizeof small);
    small += 0.5f;
    uint32_t denormal;
    memcpy(&denormal, &small, sizeof denormal);
    denormal -= 0x3f000000u;
    const uint32_t large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = size < 0x38800000u ? denormal : normal;
    half = size >= 0x47800000u ? large : half;
    return (uint16_t)(sign | half);
}

#endif
