/**
 * The arithmetic of a step, one table an instruction set.
 *
 * ref.c defines every function: scalar, explicit fma, nothing left to the compiler. Every other
 * table gives the same bits for every input, NaN, infinities and denormals included, at any count
 * and alignment. NaN results are written as 0x7fc00000 (bf16: 0x7fc0). All functions are local,
 * allocate nothing, and expect the floating-point environment of eng_fp_enter().
 */
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H

#include "zero/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Elements of a granule: the unit of layout, norm and fingerprint. */
#define ENG_GRANULE 1024

/** Scalars of one AdamW update, computed once a group and step in fp64, rounded once to fp32. */
struct eng_adamw_scalars {
    float gradient_scale; /**< scale * clip coefficient */
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;                   /**< lr * weight_decay */
    float step_size;               /**< lr / (1 - beta1^updates) */
    float inverse_sqrt_correction; /**< 1 / sqrt(1 - beta2^updates) */
    float eps;
};

struct eng_kernels {
    size_t size;
    const char *name; /**< "ref", "avx2", "avx512" */

    /** Whether this machine can run the table. */
    bool (*usable)(void);

    /**
     * AdamW (Loshchilov, Hutter 2019, algorithm 2), one pass over memory, elements 0 .. count-1:
     *   g = gradient * gradient_scale
     *   m = fma(beta1, m, one_minus_beta1 * g)
     *   v = fma(beta2, v, (one_minus_beta2 * g) * g)
     *   d = fma(sqrt(v), inverse_sqrt_correction, eps)
     *   w = fma(-step_size, m / d, fma(-decay, weight, weight))
     * Decay is subtracted instead of multiplied by 1 - lr * weight_decay, which fp32 rounds to
     * multiples of 2^-24: as much as the decay itself where the learning rate is small.
     * weight is the fp32 master. work, if not NULL, receives w rounded to bf16.
     */
    void (*adamw)(const struct eng_adamw_scalars *scalars, size_t count, const float *gradient,
                  float *m, float *v, float *weight, uint16_t *work);

    /**
     * Sum of squares of count <= ENG_GRANULE elements in fp64: lane i mod 16 adds the squares of
     * elements i in ascending order (fma(x, x, lane)), then lanes are added as a tree:
     * 16 to 8 (k + (k+8)), to 4, to 2, to 1. x * x is exact. A NaN is 0x7ff8000000000000.
     */
    double (*sum_squares)(size_t count, const float *x);

    /** fp32 to bf16, nearest even, denormals kept. */
    void (*to_bf16)(size_t count, const float *x, uint16_t *out);
    /** bf16 to fp32, exact; NaN canonical. */
    void (*from_bf16)(size_t count, const uint16_t *x, float *out);
};

/** The table called `name`, or for "auto" the best this machine can run; NULL if there is none or
 * the machine can't run it. *Local*; reads system files, so once a context. */
const struct eng_kernels *eng_kernels_find(const char *name);

/** The i-th table built in (0 is "ref"), NULL past the end. For tests. */
const struct eng_kernels *eng_kernels_at(size_t i);

/** Floating-point state of the calling thread, saved. */
struct eng_fp_state {
    uint32_t control;
};

/** Sets round to nearest, denormals kept, no traps; saves what was. */
void eng_fp_enter(struct eng_fp_state *saved);
/** Puts the saved state back. */
void eng_fp_leave(const struct eng_fp_state *saved);

#endif
