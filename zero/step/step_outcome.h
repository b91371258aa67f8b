/**
 * What a step comes to: what all ranks agree on (step_outcome.c), what follows if gradients are not
 * finite (nonfinite_policy.c), and the means of metrics (metric.c).
 */
#ifndef ZERO_STEP_STEP_OUTCOME_H
#define ZERO_STEP_STEP_OUTCOME_H

#include "zero/core/exchange.h"

/* ---- step_outcome.c */

/** What all ranks know after they have agreed on a step. */
struct eng_verdict {
    double norm;
    bool finite;
    struct eng_bad bad;
};
/** What ranks ask for, which is compared, and their sums' norm and finiteness: parts of every
 * exchange. */
extern const struct eng_exchange_part eng_request_part, eng_norm_part;
/** What a rank asks for, which must be the same on all. */
struct eng_step_request {
    const char *call;
    const zero_step_args *args; /**< hyper NULL: it has none; struct_size and so on don't matter */
    bool final;                 /**< it ends the step: metrics are part of it */
    bool later;                 /**< but gradients and metrics, which are not known yet */
};
/** Exchanges all parts of a request. ZERO_E_DIVERGED, fatal, names what differs in it. */
zero_result eng_step_agree(zero_ctx *z, const struct eng_step_request *request,
                           struct eng_verdict *verdict);
/** What follows where gradients and metrics were known later: of a step whose metrics are in
 * z->micro.values, their means and what was bad first, or wrong. Collective. */
zero_result eng_verdict_share(zero_ctx *z, struct eng_metrics *metrics, struct eng_bad *bad,
                              struct eng_wrong *wrong);

/* ---- nonfinite_policy.c */

/** Decides `auto` and the default policy, and starts the loss scale. ZERO_E_INVALID: values that
 * contradict each other, or that nothing would come of. */
zero_result eng_policy_resolve(struct eng_config *config, const struct eng_model *model,
                               struct base_scale *scale, struct base_error *error);
/** The step of z->stepping.result is not finite: an error that is fatal, or a skip; fused: a part
 * of its update may be made. */
zero_result eng_policy_nonfinite(zero_ctx *z, bool fused);
/** It is, and its update follows. */
void eng_policy_clean(zero_ctx *z);

/* ---- metric.c */

/** The values of a step's metrics: their means over all micro-batches. */
extern const struct eng_exchange_part eng_metric_part;
/** Enters the value of a metric of the micro-batch under way. */
void eng_metric_set(const zero_ctx *z, int metric, double value);
/** Hash of the metrics' names, on top of another one. */
uint64_t eng_metric_hash(const zero_ctx *z, uint64_t hash);
/** Means over all micro-batches from every rank's values. */
void eng_metric_reduce(zero_ctx *z, struct eng_metrics *metrics, const unsigned char *all,
                       size_t stride, size_t offset);
/** Writes the line of JSON of the step of z->stepping.result, or of the evaluation, to the
 * descriptor zero-run gave, if it gave one. */
void eng_metric_step_line(zero_ctx *z, double lr);
void eng_metric_evaluation_line(zero_ctx *z);

#endif
