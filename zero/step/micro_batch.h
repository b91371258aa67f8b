/**
 * zero/step/micro_batch.h: what must be true when a micro-batch ends, and between steps.
 */
#ifndef ZERO_STEP_MICRO_BATCH_H
#define ZERO_STEP_MICRO_BATCH_H

#include "zero/core/context.h"

/** Refuses if a unit is gathered, a gradient open, or it or a metric missing in the micro-batch
 * under way. */
zero_result eng_micro_check(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation; all that a device knows of its steps is known here then.
 * Collective, ordered. */
zero_result eng_outside(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation, and while a unit is gathered. Collective, ordered. */
zero_result eng_between_steps(zero_ctx *z, const char *call);

#endif
