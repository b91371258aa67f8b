/**
 * zero/debug/verify_micro.h: micro-batches that are computed twice and compared.
 */
#ifndef ZERO_DEBUG_VERIFY_MICRO_H
#define ZERO_DEBUG_VERIFY_MICRO_H

#include "zero/core/observers.h"

/** For verify_micro=1. */
extern const struct eng_observer eng_verify_observer;

#endif
