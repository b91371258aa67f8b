// Whether GPUs have what their ranks need: those that share one together, on whatever host they are
// told to be.

#include "zero/budget/budget.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/plan/plan_values.h"

#include "base/arena.h"
#include "zero/exec/gpu.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ who shares one */

/** What each rank has found of its GPU; NULL where only a plan is made: one rank stands for all. */
typedef const struct base_device_memory *found_by_all;

/** Collective: without room for what the others tell, they are told that. A rank that `may_fail` to
 * look is told apart all the same if it can be, for the others' sake. */
static zero_result look(zero_ctx *z, bool may_fail, struct base_device_memory **all,
                        struct base_error *error)
{
    struct base_error unknown = {0};
    const size_t world = (size_t)z->config.world;
    struct base_device_memory mine = {0};
    *all = base_calloc(world, sizeof **all);
    if (!*all) {
        zero_fail(error, ZERO_E_NOMEM, "no memory to compare %zu GPUs", world);
        coll_abort(z->comm, error->result, error->message);
        return error->result;
    }
    eng_exec_memory(z, &mine, may_fail ? &unknown : error); // the others wait, come what may
    const zero_result r = coll_exchange(z->comm, &mine, sizeof mine, *all);
    return r ? eng_comm_failed(z, r) : error->result;
}

/** A GPU without an identity counts as this rank's alone. */
static bool shares(const zero_ctx *z, found_by_all all, int rank)
{
    static const unsigned char nothing[sizeof all->identity];
    const unsigned char *mine = all[z->config.rank].identity;
    const bool told = memcmp(mine, nothing, sizeof nothing) != 0;
    return rank == z->config.rank ||
           (told && memcmp(all[rank].identity, mine, sizeof nothing) == 0);
}

/** What the ranks that share this one's GPU need there, by a plan and found_by_all. */
static uint64_t needed_of(const zero_ctx *z, const void *found, const struct eng_plan *plan)
{
    const found_by_all all = found;
    uint64_t needed = all ? 0 : plan->gpu_total.most;
    for (int rank = 0; all && rank < z->config.world; rank++)
        needed += shares(z, all, rank) ? plan->gpu_ranks[rank] : 0;
    return needed;
}

/** By what all ranks have found; NULL: by what this process finds. */
static void judge(const zero_ctx *z, found_by_all all, const struct eng_plan *plan,
                  struct eng_gpu_fit *fit)
{
    struct base_error unknown = {0};
    struct base_device_memory mine = {0};
    const bool looks = z->config.memory_limit != 0;
    if (all)
        mine = all[z->config.rank];
    else if (looks)
        eng_exec_memory(z, &mine, &unknown);
    *fit = (struct eng_gpu_fit){.ranks = all ? 0 : 1, .free = mine.free, .total = mine.total};
    for (int rank = 0; all && rank < z->config.world; rank++) {
        if (!shares(z, all, rank))
            continue;
        fit->ranks++;
        fit->free = all[rank].free < fit->free ? all[rank].free : fit->free;
    }
    assert(fit->ranks >= 1); // this one is among them
    fit->needed = needed_of(z, all, plan);
    fit->verdict = !looks                     ? ENG_FITS_UNCHECKED
                   : unknown.result           ? ENG_FITS_UNKNOWN
                   : fit->needed <= fit->free ? ENG_FITS
                                              : ENG_FITS_NOT;
    snprintf(fit->reason, sizeof fit->reason, "%s", unknown.message);
}

static void explain(zero_ctx *z, found_by_all all, struct eng_gpu_fit *fit)
{
    char needed[32], free[32], total[32], others[256] = "";
    struct base_text text = {others, sizeof others, 0};
    eng_budget_suggest(z, &(struct eng_scarce){true, needed_of, all}, fit->needed, &text);
    snprintf(fit->reason, sizeof fit->reason,
             "GPU %d, %d rank%s at stage %d: %s needed there, but %s free of %s%s%s; "
             "memory_limit=off overrules this",
             z->config.device_number, fit->ranks, fit->ranks > 1 ? "s" : "", z->config.stage,
             eng_human(fit->needed, needed), eng_human(fit->free, free),
             eng_human(fit->total, total), others,
             fit->ranks > 1 ? "; fewer ranks on it need less" : "");
}

/* ------------------------------------------------------------------ verdicts */

zero_result eng_gpu_fit_compare(zero_ctx *z, struct base_error *error)
{
    struct eng_gpu_fit *fit = &z->plan.gpu_fit;
    struct base_device_memory *all = NULL;
    const bool looks = z->config.memory_limit != 0;
    if (z->plan.gpu_total.most == 0)
        return ZERO_OK;
    *fit = (struct eng_gpu_fit){.ranks = 1, .needed = z->plan.gpu_total.mine};
    zero_result r = z->comm ? look(z, !looks, &all, error) : ZERO_OK;
    if (!r && (looks || !z->comm))
        judge(z, all, &z->plan, fit);
    if (!r && fit->verdict == ENG_FITS_NOT) {
        explain(z, all, fit);
        r = zero_fail(error, ZERO_E_NOMEM, "%s", fit->reason);
    }
    base_free(all);
    return r;
}

/** What both ways take of the GPU, which has too little for that of the device. */
static void tell_room(zero_ctx *z, found_by_all all, struct eng_gpu_fit *fit)
{
    const struct eng_scarce memory = {true, needed_of, all};
    struct eng_config by_host = z->config;
    char free[32], total[32], device[32], host[32];
    eng_config_decide_update(&by_host, false);
    snprintf(fit->reason, sizeof fit->reason,
             "GPU %d has %s free of %s, and %d rank%s would need %s there if it updated, %s if the "
             "host did",
             z->config.device_number, eng_human(fit->free, free), eng_human(fit->total, total),
             fit->ranks, fit->ranks > 1 ? "s" : "", eng_human(fit->needed, device),
             eng_human(eng_budget_with(z, &memory, &by_host), host));
}

zero_result eng_gpu_fit_device(zero_ctx *z, struct eng_gpu_fit *fit, struct base_error *error)
{
    struct base_device_memory *all = NULL;
    struct eng_config config = z->config;
    struct eng_plan plan = {0};
    eng_config_decide_update(&config, true);
    zero_result r = z->comm ? look(z, false, &all, error) : ZERO_OK;
    if (!r)
        r = eng_budget_configured(z, &config, &plan, error);
    if (!r)
        judge(z, all, &plan, fit);
    if (!r && fit->verdict == ENG_FITS_NOT)
        tell_room(z, all, fit);
    eng_plan_free(&plan);
    base_free(all);
    return r;
}
