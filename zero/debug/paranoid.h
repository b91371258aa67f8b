/**
 * zero/debug/paranoid.h: windows that enforce when the program may touch what.
 */
#ifndef ZERO_DEBUG_PARANOID_H
#define ZERO_DEBUG_PARANOID_H

#include "zero/core/observers.h"

/** For paranoid=1: the program sees parameters and gradients through windows. */
extern const struct eng_observer eng_paranoid_observer;

/** If a fault at `address` is one of a window, says what was touched. Calls nothing that allocates
 * or locks. */
bool eng_paranoid_describe(const zero_ctx *z, const void *address, char *message, size_t bytes);

/** From here on a fault in this context's windows is described on standard error before it has its
 * effect; until eng_paranoid_unwatch(), which does nothing unless it was watched. ZERO_E_LIMIT,
 * ZERO_E_IO. */
zero_result eng_paranoid_watch(zero_ctx *z, struct base_error *error);
void eng_paranoid_unwatch(const zero_ctx *z);

#endif
