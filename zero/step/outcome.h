/**
 * Whether what updates have made is finite: what kernels raise an alarm about is looked at, and all
 * ranks are told. outcome.c says why that ends a context.
 *
 * Ranks tell each other nothing behind an update that is not expected to overflow. All of them know
 * gradient and hyper-parameters, and each tells in the step's verdict whether its weights and
 * moments are small. From these every rank decides what to expect. If an update overflows all the
 * same, its rank tells the others, whose next call fails.
 */
#ifndef ZERO_STEP_OUTCOME_H
#define ZERO_STEP_OUTCOME_H

#include "zero/core/exchange.h"
#include "zero/exec/update_alarm.h"

/** Whether some rank's weights or moments may be large: a part of the exchange that ends a step. */
extern const struct eng_exchange_part eng_outcome_part;
/** An update follows: `gradient` is the norm that optimizers see. Equal on all ranks. */
void eng_outcome_begin(zero_ctx *z, double gradient);
/** It is over: ZERO_E_NONFINITE, fatal and agreed, if a value of it is not finite. Collective, if
 * the update could overflow; else a failure is this rank's, which tells the others. */
zero_result eng_outcome_agree(zero_ctx *z, uint64_t step);
/** eng_outcome_agree() of a value that the caller has found. Collective. */
zero_result eng_outcome_all(zero_ctx *z, struct eng_wrong first, uint64_t step);
/** Fails by this; agreed: all ranks do. */
zero_result eng_outcome_fail(zero_ctx *z, const struct eng_wrong *wrong, uint64_t step,
                             bool agreed);

#endif
