/**
 * real.h: the model's number, and arithmetic on it that every compiler and ISA does alike.
 *
 * The model is compiled twice: with float for training, with double (GPT2_DOUBLE) for tests
 * against finite differences.
 */
#ifndef GPT2_REAL_H
#define GPT2_REAL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef GPT2_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/**
 * A function so marked is compiled for several instruction sets, and the best one the CPU has is
 * taken when the program starts. All give the same bits: nothing is contracted to fused
 * multiply-adds (-ffp-contract=off), and sums have lanes of their own (lanes.h). Sanitizers can't
 * be entered as early as the choice is made, and clang 14 mixes up static functions of one name.
 */
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__clang__) &&                         \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BEST_ISA __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define BEST_ISA
#endif

/** What BEST_ISA functions call must be compiled into them. */
#define INLINED static inline __attribute__((always_inline))

/**
 * e^x. In float: Cody and Waite's reduction and the polynomial of Cephes' expf (Moshier), within 2
 * units in the last place; 0 below -87, so that nothing becomes denormal (which is very slow), and
 * e^87 above 87; NaN stays NaN.
 */
INLINED real real_exp(real x)
{
#ifdef GPT2_DOUBLE
    return exp(x);
#else
    const float x_in = x;
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x_in < -87.0f ? 0.0f : p * power;
#endif
}

/** The square root of a number that is not negative. */
INLINED real real_sqrt(real x)
{
#ifdef GPT2_DOUBLE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

#endif
