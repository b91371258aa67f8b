/**
 * zero/step/gradient.h: gradients of a micro-batch, and their reduction.
 */
#ifndef ZERO_STEP_GRADIENT_H
#define ZERO_STEP_GRADIENT_H

#include "zero/core/context.h"

/** Waits until every reduction of this step is complete here. */
zero_result eng_grad_finish(zero_ctx *z);
/** Gradients were not finite: the next ones find zeros around them, whatever has been written. */
void eng_grad_doubt(zero_ctx *z);
/** Sends what still comes from a device on its way. Collective, ordered. */
zero_result eng_grad_flush(zero_ctx *z);

#endif
