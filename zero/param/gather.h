/**
 * zero/param/gather.h: the working copy of a gathered slice.
 */
#ifndef ZERO_PARAM_GATHER_H
#define ZERO_PARAM_GATHER_H

#include "zero/core/context.h"

/** A slice's working copy; NULL if no slot has its unit. */
const unsigned char *eng_gathered(const zero_ctx *z, const struct eng_slice *slice);

#endif
