/**
 * zero/core/state_cut.h: the tiles of a context's state.
 */
#ifndef ZERO_CORE_STATE_CUT_H
#define ZERO_CORE_STATE_CUT_H

#include "zero/core/context.h"
#include "zero/model/state_tiles.h"

/** How the state of the rank with this placement is cut into tiles, in a file, and in memory where
 * it passes through a device. To be freed; ZERO_E_NOMEM: *tiles is empty. */
zero_result eng_state_cut(const zero_ctx *z, const struct eng_placement *placement,
                          struct eng_tiles *tiles, struct base_error *error);

#endif
