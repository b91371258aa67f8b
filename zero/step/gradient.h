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
/** Adds the sum of a granule's squares to those of the step. */
void eng_add_square_sum(zero_ctx *z, double squares);
/** Ranks whose micro-batch of this round counts: all but in a last round that is not full. */
int eng_contributors(const zero_ctx *z, int round);
/** Makes *to the earlier one of both. */
void eng_bad_min(struct eng_bad *to, const struct eng_bad *from);
/** Micro-batches of the step or evaluation under way, over all ranks and of each. */
int eng_micro_total(const zero_ctx *z);
int eng_micro_count(const zero_ctx *z);
/** Refuses if a unit is gathered, a gradient open, or it or a metric missing in the micro-batch
 * under way. */
zero_result eng_micro_check(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation. */
zero_result eng_not_inside(zero_ctx *z, const char *call);
/** The same, and all that a device knows of its steps is known here. Collective, ordered. */
zero_result eng_outside(zero_ctx *z, const char *call);
/** The same, and while a unit is gathered. */
zero_result eng_between_steps(zero_ctx *z, const char *call);

#endif
