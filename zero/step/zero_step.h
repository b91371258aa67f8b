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
/** The arguments of the step that ends: the user's; those of a fused step are known, and the
 * user's, if given, must be the same. ZERO_E_INVALID. */
zero_result eng_fused_args(zero_ctx *z, const zero_step_args *user, zero_step_args *args);
/** A unit's gradient is about to be handed over. In a fused step that lets its owner write the
 * unit: refuses if the unit is gathered, and completes all this rank reads of others. */
zero_result eng_fused_hand_over(zero_ctx *z, zero_unit unit);
/** A context is opened: executors tell this part what becomes of steps. */
void eng_step_open(zero_ctx *z);

#endif
