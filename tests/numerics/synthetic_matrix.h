/**
 * Synthetic models for sweeps: every optimizer, and two in one model, in every precision, under
 * every policy for steps that update nothing; and the fingerprint of each after MATRIX_STEPS steps.
 */
#ifndef TESTS_NUMERICS_SYNTHETIC_MATRIX_H
#define TESTS_NUMERICS_SYNTHETIC_MATRIX_H

#include "tests/numerics/synthetic.h"

enum {
    MATRIX_OPTIMIZERS = SYNTHETIC_OPTIMIZERS + 1, /**< as these, and "two" in one model */
    MATRIX_PRECISIONS = 8,
    MATRIX_POLICIES = 4,
    MATRIX_STEPS = 8
};

/** Policies: nothing but zero_step(), clipped or not; some steps are skipped because they are not
 * finite; or by the program, whether or not they are, and then nothing is clipped. */
enum { MATRIX_CLIPPED, MATRIX_UNCLIPPED, MATRIX_SKIPS, MATRIX_PASSES };

/** What they are called in messages and on command lines. */
extern const char *const matrix_optimizers[MATRIX_OPTIMIZERS];
extern const char *const matrix_precisions[MATRIX_PRECISIONS];
extern const char *const matrix_policies[MATRIX_POLICIES];

/** The place of a name in one of these; -1: it is not there. */
int matrix_find(const char *const *names, int count, const char *name);

/** Sets what makes a model one of these optimizers, precisions, policies; the last for the number
 * of micro-batches that it has. */
void matrix_set_optimizer(struct synthetic *model, int optimizer);
void matrix_set_precision(struct synthetic *model, int precision);
void matrix_set_policy(struct synthetic *model, int policy);

/** The whole model: 5 micro-batches, f16 with a loss scale. */
struct synthetic matrix_model(int optimizer, int precision, int policy);

/** Its fingerprint, as hex; NULL: none is written down. "ranks.equivalence golden <optimizer>"
 * prints an optimizer's, as synthetic_matrix.c has them. */
const char *matrix_golden(int optimizer, int precision, int policy);

#endif
