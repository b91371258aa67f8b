/**
 * What a step comes to: what all ranks agree on (step_outcome.c), what follows if gradients are not
 * finite (nonfinite_policy.c), and the means of metrics (metric.c).
 */
#ifndef ZERO_STEP_STEP_OUTCOME_H
#define ZERO_STEP_STEP_OUTCOME_H

#include "zero/core/context.h"

/* ---- step_outcome.c */

/** What all ranks know after they have agreed on a step. */
struct eng_verdict {
    double norm;
    bool finite;
    bool stop;  /**< some rank knows of a request to stop */
    bool large; /**< some weights or moments may be large */
    struct eng_bad bad;
};
size_t eng_verdict_bytes(const zero_ctx *z);
/** Where this step's metrics are kept: [metric][local micro-batch]. */
double *eng_verdict_metrics(const zero_ctx *z);
/** What a rank asks for, which must be the same on all. */
struct eng_motion {
    const char *call;
    const zero_step_args *args; /**< hyper NULL: it has none; struct_size and so on don't matter */
    bool final;                 /**< it ends the step: metrics are part of it */
    bool later;                 /**< but gradients and metrics, which are not known yet */
};
/** Exchanges norm, finiteness, metrics and the hash of the motion. ZERO_E_DIVERGED, fatal, names
 * what differs. */
zero_result eng_verdict(zero_ctx *z, const struct eng_motion *motion, struct eng_verdict *verdict);
/** What follows where gradients and metrics were known later: of a step whose metrics are in
 * eng_verdict_metrics(), their means and what was bad first, or wrong. Collective. */
zero_result eng_verdict_share(zero_ctx *z, struct eng_metrics *metrics, struct eng_bad *bad,
                              struct eng_wrong *wrong);

/* ---- nonfinite_policy.c */

/** Decides `auto` and the default policy, and starts the loss scale. ZERO_E_INVALID: values that
 * contradict each other, or that nothing would come of. */
zero_result eng_policy_resolve(struct eng_config *config, const struct eng_model *model,
                               struct eng_scale *scale, struct base_error *error);
/** The step of z->stepping.result is not finite: an error that is fatal, or a skip; fused: a part
 * of its update may be made. */
zero_result eng_policy_nonfinite(zero_ctx *z, bool fused);
/** It is, and its update follows. */
void eng_policy_clean(zero_ctx *z);

/* ---- metric.c */

/** Enters the value of a metric of the micro-batch under way. */
void eng_metric_set(const zero_ctx *z, int metric, double value);
/** Hash of the metrics' names, on top of another one. */
uint64_t eng_metric_hash(const zero_ctx *z, uint64_t hash);
/** Bytes of a rank's values ([metric][local micro-batch]) of `metrics` metrics. */
size_t eng_metric_bytes(const zero_ctx *z, int metrics);
/** Means over all micro-batches from every rank's values. */
void eng_metric_reduce(zero_ctx *z, struct eng_metrics *metrics, const unsigned char *all,
                       size_t stride, size_t offset);
/** Writes the line of JSON of the step of z->stepping.result, or of the evaluation, to the
 * descriptor zero-run gave, if it gave one. */
void eng_metric_step_line(zero_ctx *z, double lr);
void eng_metric_evaluation_line(zero_ctx *z);

#endif
