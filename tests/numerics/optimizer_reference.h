/**
 * Optimizers as their papers state them, in long double, and beside every value a bound on how far
 * an fp32 implementation of base/kernels/kernels.h may be from it.
 *
 * The bound is a running error analysis: every rounding of the fp32 formula adds 2^-24 times the
 * magnitude of its result (plus half the smallest denormal), and what was there before is carried
 * on. It assumes nothing about the data, so it holds for a single update and for a whole training.
 */
#ifndef TESTS_NUMERICS_OPTIMIZER_REFERENCE_H
#define TESTS_NUMERICS_OPTIMIZER_REFERENCE_H

#include <zero/zero.h>

#include <stdbool.h>

/** A number and the largest distance its fp32 counterpart may have. */
struct reference_value {
    long double value, error;
};

/** The state of one element; of optimizers with one moment it is m. */
struct reference_element {
    struct reference_value weight, m, v;
};

/** An optimizer in one of its forms. */
struct reference_optimizer {
    enum { REFERENCE_ADAM, REFERENCE_SGD, REFERENCE_LION, REFERENCE_ADAGRAD } formula;
    bool l2, nesterov;
};

/** a * b, rounded to fp32 once. */
struct reference_value reference_multiply(struct reference_value a, struct reference_value b);

/** A result known up to `error`, rounded to fp32. */
struct reference_value reference_round(long double value, long double error);

/** The same for a result that is known exactly. */
struct reference_value reference_rounded(double value);

/**
 * One update with the gradient sum * scale; the error of `scale` includes its rounding to fp32.
 * `updates` counts this one, from 1. Adagrad's eps is not 0.
 */
void reference_update(struct reference_element *element,
                      const struct reference_optimizer *optimizer, const zero_hyper *hyper,
                      uint64_t updates, struct reference_value sum, struct reference_value scale);

/** Whether `actual` is within the bound; *worst, if not NULL, is raised to distance / bound. */
bool reference_matches(struct reference_value expected, float actual, long double *worst);

#endif
