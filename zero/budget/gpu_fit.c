// Whether GPUs have what their ranks need: those that share one together, on whatever host they are
// told to be.

#include "zero/budget/budget.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"

#include "base/arena.h"
#include "base/text.h"
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

/** What the ranks that share this one's GPU need there, by a plan. */
static uint64_t needed_of(const zero_ctx *z, found_by_all all, const struct eng_plan *plan)
{
    uint64_t needed = all ? 0 : plan->gpu_total.most;
    for (int rank = 0; all && rank < z->config.world; rank++)
        needed += shares(z, all, rank) ? plan->gpu_ranks[rank] : 0;
    return needed;
}

static void judge(const zero_ctx *z, found_by_all all, const struct eng_plan *plan,
                  struct eng_gpu_fit *fit)
{
    assert(all);
    const struct base_device_memory *mine = &all[z->config.rank];
    *fit = (struct eng_gpu_fit){.free = mine->free, .total = mine->total};
    for (int rank = 0; rank < z->config.world; rank++) {
        if (!shares(z, all, rank))
            continue;
        fit->ranks++;
        fit->free = all[rank].free < fit->free ? all[rank].free : fit->free;
    }
    assert(fit->ranks >= 1); // this one is among them
    fit->needed = needed_of(z, all, plan);
    fit->verdict = z->config.memory_limit == 0 ? ENG_FITS_UNCHECKED
                   : fit->needed <= fit->free  ? ENG_FITS
                                               : ENG_FITS_NOT;
}

/* ------------------------------------------------------------------ what would need less */

/** With another configuration; UINT64_MAX: that can't be found out. */
static uint64_t needed_with(zero_ctx *z, found_by_all all, const struct eng_config *config)
{
    struct eng_plan plan;
    const zero_result r = eng_budget_configured(z, config, &plan, NULL);
    const uint64_t needed = r ? UINT64_MAX : needed_of(z, all, &plan);
    eng_plan_free(&plan);
    return needed;
}

static uint64_t needed_at(zero_ctx *z, found_by_all all, int stage)
{
    struct eng_config config = z->config;
    config.stage = stage;
    return needed_with(z, all, &config);
}

/** With state that is offloaded, and updated by the device or the host. */
static uint64_t needed_by(zero_ctx *z, found_by_all all, bool device)
{
    struct eng_config config = z->config;
    if (strcmp(config.offload_optimizer, "none") == 0)
        config.offload_optimizer = "host";
    if (device && eng_config_bound_updater(&z->config, &z->model))
        return UINT64_MAX;
    eng_config_decide_update(&config, device);
    return needed_with(z, all, &config);
}

/** The bytes needed with the updater that takes less. */
static uint64_t needed_offloaded(zero_ctx *z, found_by_all all)
{
    const uint64_t host = needed_by(z, all, false), device = needed_by(z, all, true);
    return host < device ? host : device;
}

/** Tells it if it is less than all before. */
static void add(struct base_text *text, uint64_t *least, const char *setting, uint64_t needed)
{
    char size[32];
    if (needed >= *least)
        return;
    *least = needed;
    base_text_add(text, "; %s would need %s", setting, eng_human(needed, size));
}

/** Settings that would need less, with their numbers: the mildest first. */
static void suggest(zero_ctx *z, found_by_all all, uint64_t least, struct base_text *text)
{
    const struct eng_config *config = &z->config;
    const int last = eng_fit_last_stage(z);
    char setting[32];
    for (int stage = config->stage + 1; stage <= last; stage++) {
        snprintf(setting, sizeof setting, "stage=%d", stage);
        add(text, &least, setting, needed_at(z, all, stage));
    }
    if (config->local && config->world > 1) // its bits depend on who adds up
        return;
    if (strcmp(config->offload_optimizer, "none") == 0)
        add(text, &least, "offload_optimizer=host", needed_offloaded(z, all));
    else if (config->streamed)
        add(text, &least, "offload_update=host", needed_by(z, all, false));
    else
        add(text, &least, "offload_update=device", needed_by(z, all, true));
}

static void explain(zero_ctx *z, found_by_all all, struct eng_gpu_fit *fit)
{
    char needed[32], free[32], total[32], others[256] = "";
    suggest(z, all, fit->needed, &(struct base_text){others, sizeof others, 0});
    snprintf(fit->reason, sizeof fit->reason,
             "GPU %d, %d rank%s at stage %d: %s needed there, but %s free of %s%s%s; "
             "memory_limit=off overrules this",
             z->config.device_number, fit->ranks, fit->ranks > 1 ? "s" : "", z->config.stage,
             eng_human(fit->needed, needed), eng_human(fit->free, free),
             eng_human(fit->total, total), others,
             fit->ranks > 1 ? "; fewer ranks on it need less" : "");
}

/* ------------------------------------------------------------------ verdicts */

/** By a plan of ranks that are not there: one of them stands for all. */
static void judge_alone(const zero_ctx *z, const struct eng_plan *plan, struct eng_gpu_fit *fit)
{
    struct base_device_memory there;
    struct base_error error = {0};
    *fit = (struct eng_gpu_fit){.ranks = 1, .needed = plan->gpu_total.most};
    if (z->config.memory_limit == 0)
        return;
    if (eng_exec_memory(z, &there, &error)) {
        fit->verdict = ENG_FITS_UNKNOWN;
        snprintf(fit->reason, sizeof fit->reason, "%s", error.message);
        return;
    }
    fit->free = there.free;
    fit->total = there.total;
    fit->verdict = fit->needed <= fit->free ? ENG_FITS : ENG_FITS_NOT;
}

void eng_gpu_fit_look(zero_ctx *z)
{
    struct eng_gpu_fit *fit = &z->plan.gpu_fit;
    if (!z->config.on_device)
        return;
    judge_alone(z, &z->plan, fit);
    if (fit->verdict == ENG_FITS_NOT)
        explain(z, NULL, fit);
}

zero_result eng_gpu_fit_compare(zero_ctx *z, struct base_error *error)
{
    struct eng_gpu_fit *fit = &z->plan.gpu_fit;
    struct base_device_memory *all;
    const bool looks = z->config.memory_limit != 0;
    if (!z->config.on_device)
        return ZERO_OK;
    *fit = (struct eng_gpu_fit){.ranks = 1, .needed = z->plan.gpu_total.mine};
    zero_result r = look(z, !looks, &all, error);
    if (!r && looks)
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
    char free[32], total[32], device[32], host[32];
    snprintf(fit->reason, sizeof fit->reason,
             "GPU %d has %s free of %s, and %d rank%s would need %s there if it updated, %s if the "
             "host did",
             z->config.device_number, eng_human(fit->free, free), eng_human(fit->total, total),
             fit->ranks, fit->ranks > 1 ? "s" : "", eng_human(fit->needed, device),
             eng_human(needed_by(z, all, false), host));
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
    if (!r && z->comm)
        judge(z, all, &plan, fit);
    else if (!r)
        judge_alone(z, &plan, fit);
    if (!r && fit->verdict == ENG_FITS_NOT)
        tell_room(z, all, fit);
    eng_plan_free(&plan);
    base_free(all);
    return r;
}
