/**
 * zero/step/update.h: the update of a step.
 */
#ifndef ZERO_STEP_UPDATE_H
#define ZERO_STEP_UPDATE_H

#include "zero/core/context.h"

/** Updates every unit with z->update.scalars and publishes it. Collective, ordered. A failure to
 * publish leaves nothing half updated on this rank, where state is in memory of the host. */
zero_result eng_update_all(zero_ctx *z);

#endif
