/**
 * zero/debug/paranoid.h: windows that enforce when the program may touch what.
 */
#ifndef ZERO_DEBUG_PARANOID_H
#define ZERO_DEBUG_PARANOID_H

#include "zero/core/context.h"

zero_result eng_paranoid_make(zero_ctx *z, struct base_error *error);
void eng_paranoid_free(zero_ctx *z);
/** Bytes of its tables. */
size_t eng_paranoid_tables(const zero_ctx *z);
/** Bytes of addresses that windows have, open or not. */
size_t eng_paranoid_addresses(const zero_ctx *z);
/** If a fault at `address` is one of a window, says what was touched. Calls nothing that allocates
 * or locks. */
bool eng_paranoid_describe(const zero_ctx *z, const void *address, char *message, size_t bytes);
/** Opens a window with what is gathered; closes it. */
zero_result eng_paranoid_gathered(zero_ctx *z, zero_unit unit);
zero_result eng_paranoid_released(zero_ctx *z, zero_unit unit);
/** Opens a window with what the gradient's slot has, or with NaN; copies it back and closes it. */
zero_result eng_paranoid_grad_opened(zero_ctx *z, zero_unit unit, bool raw);
zero_result eng_paranoid_grad_done(zero_ctx *z, zero_unit unit);
/** Values of what persists may have changed: copies them to its windows. */
zero_result eng_paranoid_renew(zero_ctx *z);
/** A slice in the open window. */
const void *eng_paranoid_param(const zero_ctx *z, const struct eng_slice *slice);
void *eng_paranoid_grad(const zero_ctx *z, const struct eng_slice *slice);

/** From here on a fault in this context's windows is described on standard error before it has its
 * effect; until eng_paranoid_unwatch(), which does nothing unless it was watched. ZERO_E_LIMIT,
 * ZERO_E_IO. */
zero_result eng_paranoid_watch(zero_ctx *z, struct base_error *error);
void eng_paranoid_unwatch(const zero_ctx *z);

#endif
