/**
 * bf16.h: the upper half of a float.
 */
#ifndef GPT2_BF16_H
#define GPT2_BF16_H

#include <stdint.h>
#include <string.h>

/** Exact. */
static inline float bf16_widen(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/** To the nearest, ties to even; a NaN stays one. */
static inline uint16_t bf16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
