/**
 * bf16 by its meaning: values and distances in fp64, where both are exact.
 */
#ifndef TESTS_UNIT_BF16_REFERENCE_H
#define TESTS_UNIT_BF16_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/** What the bits of a bf16 mean. */
static inline double value_of_bf16(uint16_t half)
{
    const int sign = half >> 15 ? -1 : 1, exponent = half >> 7 & 0xff, fraction = half & 0x7f;
    if (exponent == 0xff)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return exponent ? sign * ldexp(128 + fraction, exponent - 134) : sign * ldexp(fraction, -133);
}

/**
 * The nearer of the two neighbours of the float with these bits, on a tie the even one. The
 * neighbour above the largest number stands for infinity, at the place of the next power of two.
 */
static inline uint16_t nearest_bf16(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    const uint16_t toward_zero = (uint16_t)(bits >> 16);
    if ((bits & 0xffffu) == 0)
        return toward_zero;
    const uint16_t away = (uint16_t)(toward_zero + 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    const double far = (away & 0x7fff) == 0x7f80 ? 0x1p128 : fabs(value_of_bf16(away));
    const double up = far - fabs((double)x);
    const double down = fabs((double)x) - fabs(value_of_bf16(toward_zero));
    if (up == down)
        return toward_zero & 1 ? away : toward_zero;
    return up < down ? away : toward_zero;
}

#endif
