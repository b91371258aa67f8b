/**
 * zero/param/frozen.h: tensors that are not updated at present.
 */
#ifndef ZERO_PARAM_FROZEN_H
#define ZERO_PARAM_FROZEN_H

#include "zero/core/context.h"

/** Finds anew which buckets and units train, and tells the executor. */
void eng_frozen_refresh(zero_ctx *z);

#endif
