// Whether the host has what its ranks need: all of them together, for what limits all of them.

#include "zero/budget/budget.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/observers.h"
#include "zero/plan/plan_values.h"
#include "zero/store/host_memory.h"

#include "base/arena.h"
#include "base/hash.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** What the ranks of this host, or those in this rank's control group, need together, and what this
 * process needs of its addresses. */
struct demand {
    uint64_t host, group, addresses;
};

/** Bytes of this host that a plan needs. */
static uint64_t host_demand(const zero_ctx *z, const void *none, const struct eng_plan *plan)
{
    assert(!none);
    return eng_plan_of_host(&z->plan, plan->peaks[eng_plan_worst(plan)].sum);
}

static const struct eng_scarce host_memory = {false, host_demand, NULL};

/** Address space that this process will use for arenas, private memory and windows. A rank maps all
 * of shared parameters, slots and sums, twice; one that is a process maps the arenas of its host's
 * others, too. */
static uint64_t addresses(const zero_ctx *z)
{
    const struct eng_spread *rows = z->plan.rows;
    const struct eng_spread *peak = &z->plan.peaks[eng_plan_worst(&z->plan)];
    const struct eng_spread *windows = &rows[ENG_FOR_WINDOWS];
    uint64_t view = 0;
    if (z->config.shared)
        view += eng_plan_of_host(&z->plan, rows[ENG_FOR_PARAMS].sum);
    if (z->config.host_slots)
        view += eng_plan_of_host(&z->plan, rows[ENG_FOR_GATHERED].sum);
    if (eng_config_shares_sums(&z->config, z->config.stage))
        view += eng_plan_of_host(&z->plan, rows[ENG_FOR_SUMS].sum);
    const uint64_t each = 2 * view + eng_observers_addresses(z);
    if (z->config.team)
        return peak->sum - windows->sum - view + (uint64_t)z->config.world * each;
    uint64_t arenas = 0, mine = 0;
    for (int i = 0; i < ENG_PURPOSES; i++) {
        if (!eng_memory_is_mapped(z, (enum eng_purpose)i))
            continue;
        arenas += eng_plan_of_host(&z->plan, rows[i].sum);
        mine += rows[i].mine;
    }
    return peak->mine - windows->mine - mine + arenas - view + each;
}

static const char of_addresses[] = "address space of a process (ulimit -v)";

/** Takes a limit for the one that counts if it leaves less beyond what is needed. */
static void consider(struct eng_fit *fit, uint64_t limit, uint64_t left, uint64_t needed,
                     const char *source)
{
    assert(left <= limit);
    if (limit == UINT64_MAX)
        return;
    const bool first = !*fit->source;
    const bool fits = needed <= left, fitted = fit->needed <= fit->left;
    if (!first && fits != fitted && fits)
        return;
    // Among several that hold it is the one with the least to spare, else the most exceeded one.
    if (!first && fits == fitted &&
        (fits ? left - needed >= fit->left - fit->needed
              : needed - left <= fit->needed - fit->left))
        return;
    fit->limit = limit;
    fit->left = left;
    fit->needed = needed;
    snprintf(fit->source, sizeof fit->source, "%s", source);
}

/** The one number that was given. */
static void consider_given(const zero_ctx *z, struct eng_fit *fit, uint64_t needed)
{
    const uint64_t limit = (uint64_t)z->config.memory_limit;
    consider(fit, limit, limit, needed, "memory_limit");
}

/** Everything that was found. */
static void consider_found(struct eng_fit *fit, const struct demand *demand)
{
    const struct base_memory_limits *host = &fit->host;
    char source[256];
    consider(fit, host->total, host->available == UINT64_MAX ? host->total : host->available,
             demand->host, "this host's memory");
    snprintf(source, sizeof source, "control group %.200s", host->group);
    consider(fit, host->group_limit, base_memory_left(host->group_limit, host->group_used),
             demand->group, source);
    consider(fit, host->address_limit, base_memory_left(host->address_limit, host->address_used),
             demand->addresses, of_addresses);
}

/** What paranoid=1 takes, where addresses are short. True: they would do without it. */
static bool blame_paranoid(const zero_ctx *z, const struct eng_fit *fit, struct base_text *text)
{
    const uint64_t each = eng_observers_addresses(z);
    const uint64_t taken = z->config.team ? (uint64_t)z->config.world * each : each;
    char size[32], rest[32];
    if (strcmp(fit->source, of_addresses) != 0 || taken == 0)
        return false;
    base_text_add(text, "; paranoid=1 takes %s of these addresses, all else %s",
                  eng_human(taken, size), eng_human(fit->needed - taken, rest));
    return fit->needed - taken <= fit->left;
}

static void explain(zero_ctx *z, struct eng_fit *fit)
{
    char needed[32], left[32], limit[32], others[160] = "";
    struct base_text text = {others, sizeof others, 0};
    const bool all_is_paranoid = blame_paranoid(z, fit, &text);
    const bool fewer = fit->host_ranks > 1 && !all_is_paranoid;
    if (!all_is_paranoid)
        eng_budget_suggest(z, &host_memory, host_demand(z, NULL, &z->plan), &text);
    snprintf(fit->reason, sizeof fit->reason,
             "%d rank%s at stage %d: %s needed, but %s left of %s (%s)%s%s; memory_limit overrules "
             "this",
             fit->host_ranks, fit->host_ranks > 1 ? "s" : "", z->config.stage,
             eng_human(fit->needed, needed), eng_human(fit->left, left),
             eng_human(fit->limit, limit), fit->source, others,
             fewer ? "; fewer ranks need less" : "");
}

/** True also where the free bytes are not known. */
static bool disk_fits(const struct eng_plan *plan)
{
    return !plan->disk.known || eng_plan_of_host(plan, plan->in_files.sum) <= plan->disk.found;
}

/** Files that don't fit are told before memory. */
static bool judge_disk(zero_ctx *z)
{
    struct eng_fit *fit = &z->plan.fit;
    const struct eng_plan_disk *disk = &z->plan.disk;
    char needed[32], found[32];
    z->store->files->disk(z, &z->plan.disk);
    if (disk_fits(&z->plan))
        return true;
    fit->verdict = ENG_FITS_NOT;
    snprintf(fit->reason, sizeof fit->reason,
             "%d rank%s at stage %d: %s needed in %.200s, but %s free there", fit->host_ranks,
             fit->host_ranks > 1 ? "s" : "", z->config.stage,
             eng_human(eng_plan_of_host(&z->plan, z->plan.in_files.sum), needed), disk->directory,
             eng_human(disk->found, found));
    return false;
}

/** The verdict of this rank, whose group's ranks are known. */
static void judge(zero_ctx *z, const struct demand *demand)
{
    struct eng_fit *fit = &z->plan.fit;
    if (!judge_disk(z))
        return;
    if (z->config.memory_limit == 0) {
        fit->verdict = ENG_FITS_UNCHECKED;
        return;
    }
    if (z->config.memory_limit != ENG_KEY_AUTO)
        consider_given(z, fit, demand->host);
    else
        consider_found(fit, demand);
    fit->verdict = !*fit->source || fit->needed <= fit->left ? ENG_FITS : ENG_FITS_NOT;
    if (fit->verdict == ENG_FITS_NOT)
        explain(z, fit);
}

static int ranks_here(const zero_ctx *z)
{
    const char *host = coll_host(z->comm, z->config.rank);
    int here = 0;
    for (int rank = 0; rank < z->config.world; rank++)
        here += strcmp(coll_host(z->comm, rank), host) == 0;
    assert(here >= 1); // this one is among them
    return here;
}

/** Collective: which control group of which host limits each rank; to be freed also after a
 * failure. */
static zero_result tell(zero_ctx *z, const char *group, uint64_t **all, struct base_error *error)
{
    const size_t world = (size_t)z->config.world;
    const char *host = coll_host(z->comm, z->config.rank);
    const uint64_t mine = base_hash64(group, strlen(group), base_hash64(host, strlen(host), 0));
    *all = base_calloc(world, sizeof **all);
    if (!*all) { // the others wait for it
        zero_fail(error, ZERO_E_NOMEM, "no memory to compare %zu control groups", world);
        coll_abort(z->comm, error->result, error->message);
        return error->result;
    }
    const zero_result r = coll_exchange(z->comm, &mine, sizeof mine, *all);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

/** Who is limited by the same control group as this rank needs memory beside it. */
static uint64_t group_demand(zero_ctx *z, const uint64_t *groups)
{
    int together = 0;
    uint64_t bytes = 0;
    for (int rank = 0; rank < z->config.world; rank++) {
        const bool in_group = groups[rank] == groups[z->config.rank];
        together += in_group;
        bytes += in_group ? z->plan.ranks[rank] : 0;
    }
    assert(together >= 1);
    z->plan.fit.group_ranks = together;
    return together == z->config.world ? host_demand(z, NULL, &z->plan) : bytes;
}

/** Bytes that a host with so many ranks needs; 0: it is not known. */
static uint64_t host_with(zero_ctx *z, int ranks)
{
    struct eng_config config = z->config;
    struct eng_plan plan;
    config.local_world = ranks;
    const zero_result r = eng_budget_configured(z, &config, &plan, NULL);
    const uint64_t world = (uint64_t)config.world,
                   sum = r ? 0 : plan.peaks[eng_plan_worst(&plan)].sum;
    assert(ranks >= 1 && ranks <= config.world);
    eng_plan_free(&plan);
    return (sum + world - 1) / world * (uint64_t)ranks;
}

/** Hosts with different numbers of ranks need different memory. */
static void compare_hosts(zero_ctx *z)
{
    struct eng_fit *fit = &z->plan.fit;
    const int least = z->config.least_here, most = z->config.most_here;
    if (least == 0 || least == most)
        return;
    fit->least_ranks = least;
    fit->most_ranks = most;
    fit->least_needed = host_with(z, least);
    fit->most_needed = host_with(z, most);
}

/** By the plan there is; `groups` NULL: of ranks that are not there. */
static void judge_plan(zero_ctx *z, const uint64_t *groups)
{
    const uint64_t host = host_demand(z, NULL, &z->plan);
    const struct demand demand = {
        .host = host, .group = groups ? group_demand(z, groups) : host, .addresses = addresses(z)};
    struct eng_fit *fit = &z->plan.fit;
    *fit->source = *fit->reason = '\0';
    compare_hosts(z);
    judge(z, &demand);
}

void eng_fit_look(zero_ctx *z)
{
    // The launcher will start the ranks on this process's host: all of them, or so many.
    const int here = z->config.local_world;
    z->plan.fit.host_ranks = here ? here : z->config.world;
    base_memory_limits(&z->plan.fit.host, "");
    judge_plan(z, NULL);
    (void)eng_gpu_fit_compare(z, NULL); // a plan that does not fit is a plan: it says so
}

zero_result eng_fit_agree(zero_ctx *z)
{
    struct base_error error = {0};
    uint64_t *groups;
    z->plan.fit.host_ranks = ranks_here(z);
    base_memory_limits(&z->plan.fit.host, "");
    zero_result r = tell(z, z->plan.fit.host.group, &groups, &error);
    if (!r)
        judge_plan(z, groups);
    base_free(groups);
    if (r)
        return error.result ? eng_fail_from(z, &error) : r;
    if (z->plan.fit.verdict == ENG_FITS_NOT)
        zero_fail(&error, disk_fits(&z->plan) ? ZERO_E_NOMEM : ZERO_E_LIMIT, "%s",
                  z->plan.fit.reason);
    struct base_error of_gpu = {0};
    r = eng_gpu_fit_compare(z, &of_gpu);
    if (r && !of_gpu.result)
        return r;
    if (of_gpu.result && !error.result)
        error = of_gpu;
    return eng_agree(z, &error, "zero_commit");
}

/** Whether there is that much more than is allocated, on all ranks and on this one, with which all
 * of them would have `most`. */
static zero_result fit_more(const zero_ctx *z, uint64_t all, uint64_t mine, uint64_t most,
                            struct base_error *error)
{
    const int group = z->plan.fit.group_ranks, here = z->plan.fit.host_ranks;
    struct eng_fit fit = {.limit = 0};
    char more[32], needed[32], left[32], limit[32];
    if (z->config.memory_limit == 0)
        return ZERO_OK;
    all = eng_plan_of_host(&z->plan, all);
    base_memory_limits(&fit.host, "");
    if (z->config.memory_limit != ENG_KEY_AUTO)
        consider_given(z, &fit, eng_plan_of_host(&z->plan, most));
    else
        consider_found(&fit, &(struct demand){.host = all,
                                              .group = group == here ? all : mine * (uint64_t)group,
                                              .addresses = z->config.team ? all : mine});
    if (!*fit.source || fit.needed <= fit.left)
        return ZERO_OK;
    return zero_fail(
        error, ZERO_E_NOMEM,
        "%d rank%s: %s more in all, so %s needed, but %s left of %s (%s); memory_limit "
        "overrules this",
        here, here > 1 ? "s" : "", eng_human(all, more), eng_human(fit.needed, needed),
        eng_human(fit.left, left), eng_human(fit.limit, limit), fit.source);
}

zero_result eng_fit_more(const zero_ctx *z, const struct eng_plan *next, struct base_error *error)
{
    const struct eng_spread *before = &z->plan.total, *after = &next->total;
    const uint64_t all = after->sum > before->sum ? after->sum - before->sum : 0;
    const uint64_t mine = after->mine > before->mine ? after->mine - before->mine : 0;
    return fit_more(z, all, mine, next->peaks[eng_plan_worst(next)].sum, error);
}

zero_result eng_fit_load(const zero_ctx *z, struct base_error *error)
{
    const struct eng_spread *loading = &z->plan.loading;
    return fit_more(z, loading->sum, loading->mine, z->plan.total.sum + loading->sum, error);
}
