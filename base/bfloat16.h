/**
 * base/bfloat16.h: 16-bit floats as their bits, converted by integer arithmetic, so that no
 * floating-point mode (flush to zero, rounding) changes a bit. Inline, pure, *local*.
 *
 * Narrowing rounds to nearest, ties to even, keeps denormals, overflows to infinity, and writes
 * every NaN as the one positive quiet NaN (0x7fc0, 0x7e00). Widening is exact and keeps the
 * payload of NaNs.
 */
#ifndef BASE_BFLOAT16_H
#define BASE_BFLOAT16_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/** The bits of a float. */
static inline uint32_t base_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/** The float with these bits. */
static inline float base_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float base_f32_from_bf16(uint16_t half)
{
    return base_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t base_bf16_from_f32(float value)
{
    const uint32_t bits = base_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/** Whether a finite value becomes an infinity in bf16. */
static inline bool base_beyond_bf16(float value)
{
    const uint32_t magnitude = base_f32_bits(value) & 0x7fffffffu;
    return magnitude >= 0x7f7f8000u && magnitude < 0x7f800000u;
}

static inline float base_f32_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0x1f)
        return base_f32_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return base_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return base_f32_from_bits(sign);
    // A denormal is fraction * 2^-24: its leading bit becomes the implicit one.
    const uint32_t lead = 31u - (uint32_t)__builtin_clz(fraction);
    return base_f32_from_bits(sign | (lead + 103) << 23 | (fraction << (23 - lead) & 0x7fffffu));
}

static inline uint16_t base_f16_from_f32(float value)
{
    const uint32_t bits = base_f32_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7e00;
    if (magnitude >= 0x477ff000u) // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x33000000u) // below half of the smallest denormal, 2^-25
        return (uint16_t)sign;
    // Bits to drop: 13, and one more for each binade below the normal halves. A carry out of the
    // fraction moves into the exponent, as it should.
    const uint32_t exponent = magnitude >> 23;
    const uint32_t normal = exponent >= 113;
    const uint32_t drop = normal ? 13 : 126 - exponent;
    const uint32_t kept = normal ? magnitude - (112u << 23) : (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t half = UINT32_C(1) << (drop - 1);
    return (uint16_t)(sign | (kept + half - 1 + (kept >> drop & 1u)) >> drop);
}

/** Whether a finite value becomes an infinity in f16. */
static inline bool base_beyond_f16(float value)
{
    const uint32_t magnitude = base_f32_bits(value) & 0x7fffffffu;
    return magnitude >= 0x477ff000u && magnitude < 0x7f800000u; // from 65520 on
}

#endif
