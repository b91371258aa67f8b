/**
 * zero/step/evaluation.h: passes without gradients, between steps.
 */
#ifndef ZERO_STEP_EVALUATION_H
#define ZERO_STEP_EVALUATION_H

#include "zero/core/context.h"

/** Frees the memory of evaluations. */
void eng_evaluation_free(zero_ctx *z);
/** Between two micro-batches of an evaluation, and at its end: learns of requests to stop, if some
 * rank's program listens. Collective, ordered. */
zero_result eng_evaluation_listen(zero_ctx *z);

#endif
