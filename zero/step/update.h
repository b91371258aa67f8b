/**
 * zero/step/update.h: the update of the state that a rank owns.
 */
#ifndef ZERO_STEP_UPDATE_H
#define ZERO_STEP_UPDATE_H

#include "zero/core/context.h"

/** Updates every unit with z->update.scalars and publishes it. A failure meanwhile leaves nothing
 * half updated on this rank, where state is in memory: it only stops the publishing. */
zero_result eng_update_all(zero_ctx *z);
/** Updates some of a section's segments, dealt out over the pool's threads. */
void eng_update_range(zero_ctx *z, size_t section, size_t first, size_t count);
/** Updates a run of elements. */
void eng_update_segment(zero_ctx *z, const struct eng_segment *segment);
/** The same with the sum of contributions as gradient, whose squares are added to the step's, as
 * far as sums are finite: returns how many elements. Where io->sums of its section. */
size_t eng_update_summed(zero_ctx *z, const struct eng_segment *segment,
                         const struct eng_contributions *from);
/**
 * Whether nobody keeps the sums of a section's reduction: they are looked at, for norm and verdict,
 * and each rank adds all contributions up again while it updates. At stage 0, where the model is
 * small: no line of memory is written that others have read, and the arithmetic of the update hides
 * what it costs to add. The same on all ranks.
 */
bool eng_adds_again(const zero_ctx *z, size_t section);
/** The optimizer's view of some elements of a segment, from element `first` of the section on, all
 * in memory; what is there with 16 bits only is left out. */
struct eng_update eng_update_run(const zero_ctx *z, const struct eng_segment *segment, size_t first,
                                 size_t count, const float *gradient);
zero_result eng_segments_make(zero_ctx *z);
struct eng_tiles;
size_t eng_segments_bytes(const zero_ctx *z, const struct eng_tiles *tiles, int stage, int rank);

#endif
