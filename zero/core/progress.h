/**
 * zero/core/progress.h: where a run is, as every part of the engine asks: which micro-batches there
 * are, what trains, and whether a step is under way.
 */
#ifndef ZERO_CORE_PROGRESS_H
#define ZERO_CORE_PROGRESS_H

#include "zero/core/context.h"

/** Micro-batches of the step or evaluation under way, over all ranks. */
int eng_micro_total(const zero_ctx *z);

/** Micro-batches of the step or evaluation under way that each rank computes. */
int eng_micro_count(const zero_ctx *z);

/** Bytes of a rank's values ([metric][local micro-batch]) of `metrics` metrics. */
size_t eng_metric_bytes(const zero_ctx *z, int metrics);

/** Bytes of what a rank tells the others at the end of an evaluation of `room` micro-batches each:
 * a hash, and values of metrics behind it. Bytes of all that, as there is room for at present. */
size_t eng_evaluation_part_bytes(int room);
size_t eng_evaluation_bytes(const zero_ctx *z);
/** Where the values of an evaluation's metrics are kept: [metric][local micro-batch]. */
double *eng_evaluation_metrics(const zero_ctx *z);

/** Ranks whose micro-batch of local round `round` counts: fewer in a last round that isn't full. */
int eng_contributors(const zero_ctx *z, int round);

/** Whether the micro-batch under way repeats another rank's, which an observer has asked for: its
 * gradients are compared, and go into no sum. */
bool eng_micro_repeats(const zero_ctx *z);

/** Whether gradients of the micro-batch under way are compared: it repeats another rank's, or is
 * repeated. */
bool eng_micro_compared(const zero_ctx *z);

/** Whether a tensor is not updated at present. */
bool eng_frozen(const zero_ctx *z, zero_param param);

/** Finds anew which buckets and units train. */
void eng_trains_refresh(zero_ctx *z);

/** Whether a bucket's new values need not be waited for. */
bool eng_publish_ended(const zero_ctx *z, size_t bucket);

/** Whether a bucket is updated before zero_step(), as soon as all ranks have handed its gradient
 * over: what persists may be read at any time. All ranks get one answer. */
static inline bool eng_updates_early(const zero_ctx *z, size_t bucket)
{
    return z->stepping.early && !z->layout.buckets[bucket].persistent;
}

/** Whether the step fails for what was seen in its gradients: no update makes a weight a NaN. */
static inline bool eng_step_hopeless(const zero_ctx *z)
{
    return z->gradients.bad.micro != UINT64_MAX || z->gradients.squares_overflow;
}

/** Makes *to the earlier one of both. */
void eng_bad_min(struct eng_bad *to, const struct eng_bad *from);

/** Adds the sum of a granule's squares to those of the step. */
void eng_add_square_sum(zero_ctx *z, double squares);

/** Remembers the first element that is not finite; `user` is the bucket's eng_bucket_io, and
 * `element` counts from this rank's shard on. */
void eng_grad_nonfinite(void *user, int contributor, size_t element);

/** Refuses inside a step or an evaluation: ZERO_E_STATE. */
zero_result eng_not_inside(zero_ctx *z, const char *call);

#endif
