/**
 * zero/budget/updater_choice.h: who updates state that is offloaded from a GPU to memory of the
 * host, where that is left to zero_commit() (offload_update=auto).
 *
 * Where only one way can be gone, or has room on every GPU, it is that; where there is no room to
 * measure, the host's. Else what each way cannot be faster than is estimated: what moves between
 * host and GPU, over what was measured both ways at once, and what the host reads and writes, over
 * what its threads copy, all ranks at the same time, sums included, which one of them adds up; of
 * what goes on side by side the longest. The same way for all ranks: the one of which the slowest
 * rank has the less. No bit depends on it.
 */
#ifndef ZERO_BUDGET_UPDATER_CHOICE_H
#define ZERO_BUDGET_UPDATER_CHOICE_H

#include "zero/plan/plan.h"

/** Bytes of a rank in a step. */
struct eng_updater_work {
    double state;     /**< moments and master weights, in and out again */
    double gradients; /**< of all its micro-batches, as far as they travel */
    double params;    /**< working copies, all of them */
    double written;   /**< of these by this rank's update */
    double sums;      /**< of gradients: stored, read and stored by each further round of
                           micro-batches, read by the update */
    bool staged;      /**< a device that updates moves gradients and parameters like that, too */
};

/** What both ways take a rank, at least. *Pure.* */
struct eng_updater_seconds eng_updater_estimate(const struct eng_updater_work *work,
                                                const struct eng_updater_rates *rates);
/** Whether the device is to update. *Pure.* */
bool eng_updater_takes_device(const struct eng_updater_seconds *seconds);

/** Why it is the host whatever is faster; NULL: for no reason that is known before somebody looks.
 */
const char *eng_updater_bound(const zero_ctx *z);
/** Bytes of the rank, with a model that is complete. */
struct eng_updater_work eng_updater_work(const zero_ctx *z);
/** Decides, where that is undecided and the ranks are there, with a layout that is made.
 * Collective. ZERO_E_NOMEM, ZERO_E_DEVICE; failures of others are fatal, and not in `error`. */
zero_result eng_updater_decide(zero_ctx *z, struct base_error *error);
/** Bytes of memory of the host that deciding takes, and gives back, as the plan has them. */
size_t eng_updater_bytes(const zero_ctx *z);

#endif
