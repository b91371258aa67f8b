/**
 * zero/step/gradient.h: gradients of a micro-batch, their reduction, and what may happen between
 * steps.
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
/** Refuses if a unit is gathered, a gradient open, or it or a metric missing in the micro-batch
 * under way. */
zero_result eng_micro_check(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation; all that a device knows of its steps is known here then.
 * Collective, ordered. */
zero_result eng_outside(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation, and while a unit is gathered. Collective, ordered. */
zero_result eng_between_steps(zero_ctx *z, const char *call);

#endif
