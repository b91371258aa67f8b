/**
 * zero/step/fused.h: the fused update: a fused step is updated while its sums are in
 * the cache.
 */
#ifndef ZERO_STEP_FUSED_H
#define ZERO_STEP_FUSED_H

#include "zero/core/context.h"

/** The arguments of the fused step; user's, if given, must be the same:
 * ZERO_E_INVALID. */
zero_result eng_fused_args(zero_ctx *z, const zero_step_args *user, zero_step_args *args);
/** Before a unit's gradient is handed over in a fused step: refuses if the unit is gathered,
 * and completes all this rank reads of others. */
zero_result eng_fused_hand_over(zero_ctx *z, zero_unit unit);
/** Whether its update belongs to its last reduction, which is about to start. */
bool eng_fused_begin(zero_ctx *z, size_t section);
/** Updates the elements first .. first+count-1 of this rank's run of a section. */
void eng_fused_tile(struct eng_section_io *io, size_t first, size_t count, const float *sum);
/** eng_fused_tile() for contributions: a coll_take_fn; user is the section's eng_section_io. */
size_t eng_fused_take(void *user, size_t first, size_t count,
                      const struct coll_contributions *from);

#endif
