/**
 * zero/step/batch_size.h: changes the number of micro-batches between steps.
 */
#ifndef ZERO_STEP_BATCH_SIZE_H
#define ZERO_STEP_BATCH_SIZE_H

#include "zero/core/context.h"

/** Makes V another one, which a checkpoint has, from the next step on; `call` wants it. Collective.
 * Errors as of zero_set_micro_batches(). */
zero_result eng_batch_change(zero_ctx *z, int32_t micro_batches, const char *call);

#endif
