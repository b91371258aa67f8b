/**
 * zero/step/evaluation.h: passes without gradients, between steps.
 */
#ifndef ZERO_STEP_EVALUATION_H
#define ZERO_STEP_EVALUATION_H

#include "zero/core/context.h"

/** Where the values of its metrics are kept: [metric][local micro-batch]. */
double *eng_evaluation_metrics(const zero_ctx *z);
/** Bytes of that memory, which grows with the largest evaluation so far. */
size_t eng_evaluation_bytes(const zero_ctx *z);
void eng_evaluation_free(zero_ctx *z);
/** Between two micro-batches of an evaluation, and at its end: learns of requests to stop, if some
 * rank's program listens. Collective, ordered. */
zero_result eng_evaluation_listen(zero_ctx *z);

#endif
