/**
 * zero/budget/budget.h: what each rank of a job needs, and whether hosts and GPUs have what their
 * ranks need together.
 */
#ifndef ZERO_BUDGET_BUDGET_H
#define ZERO_BUDGET_BUDGET_H

#include "zero/config/alternatives.h"
#include "zero/plan/plan.h"
#include "zero/zero.h"

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- budget.c */

/** This rank's placement, and what each rank needs. */
zero_result eng_budget_make(zero_ctx *z, struct base_error *error);
/** The planner that the rest of the engine asks for more. */
extern const struct eng_planner eng_budget_planner;
/** Makes the plan's text and JSON, with what is known of the host by now. */
zero_result eng_budget_write(const zero_ctx *z, struct eng_plan *plan, struct base_error *error);
/** The plan for another configuration of this job and this world, which is the context's meanwhile:
 * what each rank needs, to be freed with eng_plan_free() also after a failure. */
zero_result eng_budget_configured(zero_ctx *z, const struct eng_config *config,
                                  struct eng_plan *plan, struct base_error *error);

/** Memory that there may be too little of. */
struct eng_scarce {
    bool of_gpu; /**< or of the host */
    /** Bytes of it that a plan needs, by what `user` tells. */
    uint64_t (*needed)(const zero_ctx *z, const void *user, const struct eng_plan *plan);
    const void *user;
};

/** Bytes that are needed with another configuration; UINT64_MAX: that can't be found out. */
uint64_t eng_budget_with(zero_ctx *z, const struct eng_scarce *of, const struct eng_config *config);
/** Tells of each setting that needs less than `least`, and less than those before it. */
void eng_budget_suggest(zero_ctx *z, const struct eng_scarce *of, uint64_t least,
                        struct base_text *text);

/* ---- host_fit.c */

/** ZERO_E_NOMEM if the host has not what `next` needs beyond the plan there is. *Local.* */
zero_result eng_fit_more(const zero_ctx *z, const struct eng_plan *next, struct base_error *error);
/** eng_fit_more() for what a checkpoint takes while it is loaded. *Local.* */
zero_result eng_fit_load(const zero_ctx *z, struct base_error *error);
/** Fills z->plan.fit and .gpu_fit by what this process finds. *Local.* */
void eng_fit_look(zero_ctx *z);
/** Collective: the same verdict on all ranks. ZERO_E_NOMEM: it does not fit; the last error says
 * on which rank and why. Nothing has been allocated. */
zero_result eng_fit_agree(zero_ctx *z);

/* ---- gpu_fit.c */

/** Fills z->plan.gpu_fit, if ranks compute on GPUs, by what all of them have found, which they tell
 * each other; in a plan that is only made, by what this process finds. Collective. In `error`:
 * ZERO_E_NOMEM, this rank's GPU has too little for those that share it; ZERO_E_DEVICE. Failures of
 * others are fatal, and not in it. */
zero_result eng_gpu_fit_compare(zero_ctx *z, struct base_error *error);
/** device_fit() of the planner. */
zero_result eng_gpu_fit_device(zero_ctx *z, struct eng_gpu_fit *fit, struct base_error *error);

#endif
