/**
 * zero/exec/host_update.h: the update of the state that a rank owns, by the processors of the host.
 */
#ifndef ZERO_EXEC_HOST_UPDATE_H
#define ZERO_EXEC_HOST_UPDATE_H

#include "zero/core/context.h"

/** Updates what of a bucket was not updated before, in a fused step. */
zero_result eng_host_update_bucket(zero_ctx *z, size_t bucket);
/** Updates some of a bucket's segments, dealt out over the pool's threads. */
void eng_update_range(zero_ctx *z, size_t bucket, size_t first, size_t count);
/** Updates a run of elements. */
void eng_update_segment(zero_ctx *z, const struct eng_segment *segment);
/** Updates a run of elements with the sum of contributions as gradient, up to the first sum that is
 * not finite, and returns how many elements those are. If all are finite it adds their squares to
 * the step's. For buckets with io->sums. */
size_t eng_update_summed(zero_ctx *z, const struct eng_segment *segment,
                         const struct base_contributions *from);
/** Whether no rank keeps the sums of a bucket (the table in grad_is_sum.h): at stage 0, where the
 * model is small. No rank writes a line of memory then that others have read, and the arithmetic of
 * the update hides what it costs to add. All ranks get one answer. */
bool eng_adds_again(const zero_ctx *z, size_t bucket);
/** The optimizer's view of some elements of a segment, from element `first` of the bucket on, all
 * in memory; what is there with 16 bits only is left out. */
struct base_update eng_update_run(const zero_ctx *z, const struct eng_segment *segment,
                                  size_t first, size_t count, const float *gradient);
zero_result eng_segments_make(zero_ctx *z);
struct eng_tiles;
/** Bytes of the tables of segments of a rank with this placement. */
size_t eng_segments_bytes(const zero_ctx *z, const struct eng_placement *placement,
                          const struct eng_tiles *tiles);

#endif
