/**
 * zero/exec/host_update.h: the update of the state that a rank owns, by the processors of the host.
 */
#ifndef ZERO_EXEC_HOST_UPDATE_H
#define ZERO_EXEC_HOST_UPDATE_H

#include "zero/core/context.h"

/** Updates what of a section was not updated before, in a fused step. */
zero_result eng_host_update_section(zero_ctx *z, size_t section);
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
/** The key of the random numbers of a slice's elements in an update: of the weight (purpose 0), or
 * of moment `purpose` - 1. */
uint64_t eng_rounding_key(const zero_ctx *z, const struct eng_slice *slice, uint64_t purpose,
                          uint64_t update);
/** Updates a segment that has no master weights or bf16 moments. */
void eng_update_rounded(zero_ctx *z, const struct eng_segment *segment);
zero_result eng_segments_make(zero_ctx *z);
struct eng_tiles;
/** Bytes of the tables of segments of a rank with this placement. */
size_t eng_segments_bytes(const zero_ctx *z, const struct eng_placement *placement,
                          const struct eng_tiles *tiles);

#endif
