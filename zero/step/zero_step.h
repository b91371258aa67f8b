/**
 * zero/step/zero_step.h: arguments and result of a step, fused (fused.c) or not.
 */
#ifndef ZERO_STEP_ZERO_STEP_H
#define ZERO_STEP_ZERO_STEP_H

#include "zero/core/context.h"

/** Takes over a step's arguments, after a look at them: ZERO_E_INVALID. */
zero_result eng_step_args(zero_ctx *z, const char *call, const zero_step_args *user,
                          zero_step_args *args);
/** Hyper-parameters of a group. */
const zero_hyper *eng_step_hyper(const zero_step_args *args, size_t group);
/** Keeps them, as those of the last step. */
void eng_step_keep(zero_ctx *z, const zero_step_args *args);
/** The kind of every step that is not a fused one: step_kind.h. */
extern const struct eng_step_kind eng_step_after_backward;
/** A context is opened: executors tell this part what becomes of steps. */
void eng_step_open(zero_ctx *z);

#endif
