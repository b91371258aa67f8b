/**
 * zero/step/zero_step.h: arguments and result of a step.
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
/** The context is closed: steps whose verdict nobody has asked for are told of. */
void eng_step_close(zero_ctx *z);
/** Makes it the newest step whose verdict is known. */
struct eng_verdict;
void eng_step_record(zero_ctx *z, uint64_t step, const struct eng_verdict *verdict,
                     double max_norm);
/** With state on the device: takes in what is known of steps whose verdict is under way, or waits
 * for all of it. */
void eng_step_look(const zero_ctx *z, bool waits);
/** Makes z->update.scalars of z->stepping.hyper, for the update that comes next. */
void eng_step_prepare(zero_ctx *z, double gradient_scale);

#endif
