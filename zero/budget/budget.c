// What each rank needs: the same functions whether the world is there or only planned.

#include "zero/budget/budget.h"
#include "zero/budget/between_hosts.h"
#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/exec/gpu.h"
#include "zero/exec/local_accumulation.h"
#include "zero/plan/plan_values.h"
#include "zero/snapshot/save_state.h"
#include "zero/store/host_memory.h"
#include "zero/store/host_visit.h"
#include "zero/store/stores.h"

#include <string.h>

static struct eng_limits limits_of(const zero_ctx *z)
{
    return eng_config_limits(&z->config, eng_local_adds(z), z->micro.planned_blocks);
}

/** Bytes, on every rank alike. */
static size_t transport_bytes(const zero_ctx *z)
{
    const int near = z->config.local_world;
    // A plan without ranks has room for what they may find.
    struct coll_counters counters = {
        .memory_bytes =
            coll_memory_needed(z->config.transport, z->config.any_provider, z->config.world,
                               near > 0 ? (z->config.world + near - 1) / near : 0)};
    if (z->comm)
        coll_counters(z->comm, &counters);
    return counters.memory_bytes;
}

static void count_peaks(const zero_ctx *z, int rank, size_t transport, struct eng_need *need)
{
    // What ranks compare comes before the layout; by which devices meet is not there yet.
    const size_t before = transport + z->memory.calls->commit(z), made = need->total + need->once;
    need->peaks[ENG_PEAK_COMMIT] = before > made ? before : made;
    need->peaks[ENG_PEAK_STEP] = need->total;
    need->peaks[ENG_PEAK_SAVE] = need->total + z->memory.calls->exporting(z, rank);
    need->peaks[ENG_PEAK_LOAD] = need->total + z->memory.calls->importing(z);
}

/** What one rank needs, whose tier needs that. */
static zero_result count_rank(const zero_ctx *z, int rank, const struct eng_placement *placement,
                              const struct eng_tier_needs *tier, struct eng_need *need,
                              struct base_error *error)
{
    const size_t transport = transport_bytes(z), saving = eng_save_bytes(z, rank, tier);
    *need = eng_need_place(placement);
    memcpy(need->files, tier->files, sizeof need->files);
    need->rows[ENG_FOR_TILES] = tier->files[ENG_FILE_STATE].memory;
    need->rows[ENG_FOR_PARAM_STRIPS] = tier->files[ENG_FILE_PARAMS].memory;
    need->rows[ENG_FOR_SUM_STRIPS] = tier->files[ENG_FILE_SUMS].memory;
    need->rows[ENG_FOR_BOUNCE] = eng_bounce_bytes(z, placement);
    need->rows[ENG_FOR_TABLES] = eng_memory_tables(z, placement, tier);
    need->rows[ENG_FOR_PARTIAL_SUMS] = z->placement.partial_sums_bytes;
    need->rows[ENG_FOR_TRANSPORT] = transport;
    need->rows[ENG_FOR_SAVING] = z->saving.save ? saving : 0;
    need->saving = z->saving.save ? 0 : saving;
    need->loading = eng_load_bytes(z, rank);
    const zero_result r = eng_exec_needs(z, placement, need, error);
    need->total = eng_need_total(need);
    count_peaks(z, rank, transport, need);
    return r;
}

/** What each rank needs; to be freed also after a failure. */
static zero_result plan_ranks(const zero_ctx *z, struct eng_plan *plan, struct base_error *error)
{
    const struct eng_limits limits = limits_of(z);
    struct eng_tier_needs tier = {.tiles = 0};
    zero_result r = eng_plan_begin(plan, z->config.world, error);
    for (int rank = 0; !r && rank < z->config.world; rank++) {
        struct eng_placement placement;
        struct eng_need need;
        r = eng_placement_make(&placement, &z->layout, rank, &limits, error);
        // At stage 0 every rank updates everything.
        if (!r && (rank == 0 || limits.stage > 0))
            r = z->store->needs(z, &placement, &tier, error);
        if (!r)
            r = count_rank(z, rank, &placement, &tier, &need, error);
        eng_placement_free(&placement);
        if (!r)
            eng_plan_add(plan, rank, &need, rank == z->config.rank);
    }
    return r;
}

zero_result eng_budget_make(zero_ctx *z, struct base_error *error)
{
    const struct eng_limits limits = limits_of(z);
    const zero_result r =
        eng_placement_make(&z->placement, &z->layout, z->config.rank, &limits, error);
    if (r)
        return r;
    z->placement.partial_sums_bytes = eng_between_hosts_bytes(z);
    return plan_ranks(z, &z->plan, error);
}

/** The plan of what is placed and of the tables that are needed now, with its text. */
static zero_result make_again(const zero_ctx *z, struct eng_plan *plan, struct base_error *error)
{
    const zero_result r = plan_ranks(z, plan, error);
    plan->fit = z->plan.fit;
    plan->gpu_fit = z->plan.gpu_fit;
    return r ? r : eng_budget_write(z, plan, error);
}

static zero_result check_room(const zero_ctx *z, struct base_error *error)
{
    struct eng_plan next = {0};
    if (!error->result && !plan_ranks(z, &next, error))
        eng_fit_more(z, &next, error);
    eng_plan_free(&next);
    return error->result;
}

static zero_result renew_plan(zero_ctx *z, const char *call, struct base_error *error)
{
    struct eng_plan plan = {0};
    if (!error->result)
        make_again(z, &plan, error);
    const zero_result r = eng_agree(z, error, call);
    if (r) {
        eng_plan_free(&plan);
        return r;
    }
    eng_plan_free(&z->plan);
    z->plan = plan;
    return ZERO_OK;
}

zero_result eng_budget_write(const zero_ctx *z, struct eng_plan *plan, struct base_error *error)
{
    struct eng_plan_facts facts = {.config = &z->config,
                                   .kernels = z->cpu.kernels,
                                   .model = &z->model,
                                   .layout = &z->layout,
                                   .placement = &z->placement,
                                   .between = eng_between_hosts(z),
                                   .updater = &z->update.updater};
    if (z->comm) {
        struct coll_counters counters;
        coll_counters(z->comm, &counters);
        facts.host = (struct eng_plan_host){.private_path = coll_unregistered_path(z->comm),
                                            .reason = coll_transport_reason(z->comm),
                                            .huge_bytes = counters.huge_bytes};
    }
    struct eng_tier_needs needs;
    if (z->store->needs(z, &z->placement, &needs, error))
        return error->result;
    facts.files = (struct eng_plan_files){needs.tiles, needs.buffers, needs.tile_bytes};
    z->store->files->disk(z, &plan->disk);
    return eng_plan_write(plan, &facts, error);
}

zero_result eng_budget_configured(zero_ctx *z, const struct eng_config *config,
                                  struct eng_plan *plan, struct base_error *error)
{
    const struct eng_config own = z->config;
    z->config = *config;
    eng_store_choose(z);
    const zero_result r = plan_ranks(z, plan, error);
    z->config = own;
    eng_store_choose(z);
    return r;
}

uint64_t eng_budget_with(zero_ctx *z, const struct eng_scarce *of, const struct eng_config *config)
{
    struct eng_plan plan;
    const zero_result r = eng_budget_configured(z, config, &plan, NULL);
    const uint64_t needed = r ? UINT64_MAX : of->needed(z, of->user, &plan);
    eng_plan_free(&plan);
    return needed;
}

void eng_budget_suggest(zero_ctx *z, const struct eng_scarce *of, uint64_t least,
                        struct base_text *text)
{
    struct eng_alternative other;
    for (int i = 0; eng_config_alternative(&z->config, &z->model, of->of_gpu, i, &other); i++) {
        const uint64_t before = least;
        char size[32];
        for (int c = 0; c < other.count; c++) {
            const uint64_t needed = eng_budget_with(z, of, &other.configs[c]);
            least = needed < least ? needed : least;
        }
        if (least < before)
            base_text_add(text, "; %s would need %s", other.setting, eng_human(least, size));
    }
}

const struct eng_planner eng_budget_planner = {
    .renew = renew_plan,
    .check = check_room,
    .check_load = eng_fit_load,
    .device_fit = eng_gpu_fit_device,
};
