/**
 * Element-wise optimizers: one file and one ops table each. Adding one is a file and a line in
 * optim.c's list.
 */
#ifndef ZERO_OPTIM_H
#define ZERO_OPTIM_H

#include "base/error.h"
#include "zero/kernels/kernels.h"
#include "zero/zero.h"

#define ENG_MAX_MOMENTS 2

/** Room for the scalars of any optimizer, so that a step allocates nothing. */
union eng_scalars {
    struct eng_adamw_scalars adamw;
};

/** What one update works on: `count` elements of one slice, all of one group. */
struct eng_update {
    size_t count;
    const float *gradient; /**< the canonical sum over micro-batches */
    float *moment[ENG_MAX_MOMENTS];
    float *weight;  /**< fp32 master */
    uint16_t *work; /**< bf16 working copy, or NULL */
};

struct eng_optimizer {
    size_t size;
    const char *name;
    int moments; /**< fp32 values of state an element, beside the master weight */

    /** Checks hyper-parameters; the message names field and value. ZERO_E_INVALID. */
    zero_result (*check)(const zero_hyper *hyper, struct base_error *error);

    /** Scalars of a step: `updates` counts this one (from 1); gradient_scale = scale * clip. hyper
     * has been checked. Like update(), expects the floating-point environment of eng_fp_enter(). */
    void (*prepare)(const zero_hyper *hyper, uint64_t updates, double gradient_scale,
                    union eng_scalars *scalars);

    /** Updates a run of elements with the kernels given. */
    void (*update)(const struct eng_kernels *kernels, const union eng_scalars *scalars,
                   const struct eng_update *run);
};

extern const struct eng_optimizer eng_optimizer_adamw;

/** The optimizer called `name`, NULL if there is none. */
const struct eng_optimizer *eng_optimizer_find(const char *name);

/** base^exponent by repeated squaring in fp64: the same bits everywhere, unlike pow(). */
double eng_power(double base, uint64_t exponent);

#endif
