// What each rank needs: the same functions whether the world is there or only planned.

#include "zero/budget/budget.h"
#include "zero/budget/updater_choice.h"
#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/exec/gpu.h"
#include "zero/exec/local_accumulation.h"
#include "zero/snapshot/save_state.h"
#include "zero/store/host_memory.h"

#include "zero/store/host_visit.h"
#include "zero/store/stores.h"

static struct eng_limits limits_of(const zero_ctx *z, int stage, bool shared)
{
    const struct eng_config *config = &z->config;
    const bool apart = eng_local_adds(z);
    // One gradient more than are open comes from a device.
    const bool waits = config->on_device && !config->resident;
    const int waiting = waits && (apart || stage >= 2) ? 1 : 0;
    return (struct eng_limits){
        .stage = stage,
        .alone = config->resident && !eng_config_moves(config),
        .sums_whole = eng_config_whole_sums(config, stage),
        .shared = shared,
        .blocks = z->micro.planned_blocks,
        .paranoid = config->paranoid,
        .open_units = config->open_units,
        .prefetch_units = config->prefetch_units,
        .grad_units = config->grad_units,
        .grad_spare = (apart ? config->grad_units : 0) + waiting,
        .live_bytes = config->live_bytes,
        .narrow_moments = config->moment_dtype != ZERO_F32,
        .comm_dtype = config->comm_dtype,
        .no_masters = config->no_masters,
        .state_in_file = config->nvme,
        .params_in_file = config->params_nvme,
        .sums_in_file = config->grads_nvme,
    };
}

/** Bytes, on every rank alike. */
static size_t transport_bytes(const zero_ctx *z)
{
    struct coll_counters counters = {.memory_bytes =
                                         coll_memory_needed(z->config.transport, z->config.world)};
    if (z->comm)
        coll_counters(z->comm, &counters);
    return counters.memory_bytes;
}

/** `once`: bytes that are given back when all else is allocated. */
static void count_peaks(const zero_ctx *z, int rank, size_t transport, size_t once,
                        struct eng_need *need)
{
    // What ranks compare comes before the layout; by which devices meet is not there yet.
    const size_t before = transport + z->memory.calls->commit(z);
    need->peaks[ENG_PEAK_COMMIT] = before > need->total + once ? before : need->total + once;
    need->peaks[ENG_PEAK_STEP] = need->total;
    need->peaks[ENG_PEAK_SAVE] = need->total + z->memory.calls->exporting(z, rank);
    need->peaks[ENG_PEAK_LOAD] = need->total + z->memory.calls->importing(z);
}

/** Adds up every rank's placement. */
static zero_result add_ranks(const zero_ctx *z, const struct eng_limits *limits,
                             struct eng_plan *plan, struct base_error *error)
{
    const size_t transport = transport_bytes(z);
    struct eng_tier_needs tier = {.tiles = 0};
    struct eng_device_tiles_needs tiles = {.device = 0};
    for (int rank = 0; rank < z->config.world; rank++) {
        struct eng_placement placement;
        struct eng_need need;
        zero_result r = eng_placement_make(&placement, &z->layout, rank, limits, error);
        // At stage 0 every rank updates everything.
        const bool differs = rank == 0 || limits->stage > 0;
        if (!r && differs)
            r = z->store->needs(z, &placement, &tier, error);
        if (!r && differs)
            r = eng_device_tiles_need(z, &placement, &tiles, error);
        if (r) {
            eng_placement_free(&placement);
            return r;
        }
        const struct eng_extra extra = {
            .tables = eng_memory_tables(z, &placement, &tier) + tiles.tables,
            .transport = transport + eng_device_transport(z, &placement),
            .saving = z->saving.save ? eng_save_bytes(z, rank, &tier) : 0,
            .bounce = eng_bounce_bytes(z, &placement),
            .files = tier.files,
            .on_device = z->config.on_device,
            .resident = z->config.resident,
            .streamed = z->config.streamed,
            .gpu_params = eng_device_params(&z->layout),
            .gpu_received = eng_device_received(z, &placement),
            .gpu_tiles = tiles.device,
            .gpu_tables = eng_device_state_tables(z, &placement),
        };
        eng_need_count(&need, &placement, &extra);
        need.saving = z->saving.save ? 0 : eng_save_bytes(z, rank, &tier);
        need.loading = eng_load_bytes(z, rank);
        count_peaks(z, rank, transport, eng_device_once(z, &placement), &need);
        eng_placement_free(&placement);
        eng_plan_add(plan, rank, &need, rank == z->config.rank);
    }
    return ZERO_OK;
}

zero_result eng_budget_make(zero_ctx *z, struct base_error *error)
{
    const struct eng_limits limits = limits_of(z, z->config.stage, z->config.shared);
    zero_result r = eng_placement_make(&z->placement, &z->layout, z->config.rank, &limits, error);
    if (!r)
        r = eng_plan_begin(&z->plan, z->config.world, error);
    return r ? r : add_ranks(z, &limits, &z->plan, error);
}

/** A plan without anybody's placement; to be freed also after a failure. */
static zero_result plan_ranks(const zero_ctx *z, int stage, bool shared, struct eng_plan *plan,
                              struct base_error *error)
{
    const struct eng_limits limits = limits_of(z, stage, shared);
    const zero_result r = eng_plan_begin(plan, z->config.world, error);
    return r ? r : add_ranks(z, &limits, plan, error);
}

/** The plan of what is placed and of the tables that are needed now, with its text. */
static zero_result make_again(const zero_ctx *z, struct eng_plan *plan, struct base_error *error)
{
    const zero_result r = plan_ranks(z, z->config.stage, z->config.shared, plan, error);
    plan->fit = z->plan.fit;
    plan->gpu_fit = z->plan.gpu_fit;
    return r ? r : eng_budget_write(z, plan, error);
}

static zero_result check_room(const zero_ctx *z, struct base_error *error)
{
    const struct eng_limits limits = limits_of(z, z->config.stage, z->config.shared);
    struct eng_plan next = {0};
    if (!error->result && !eng_plan_begin(&next, z->config.world, error) &&
        !add_ranks(z, &limits, &next, error))
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
                                   .updater = &z->update.updater};
    if (z->comm) {
        struct coll_counters counters;
        coll_counters(z->comm, &counters);
        facts.host = (struct eng_plan_host){coll_unregistered_path(z->comm), counters.huge_bytes};
    }
    struct eng_tier_needs needs;
    if (z->store->needs(z, &z->placement, &needs, error))
        return error->result;
    facts.files = (struct eng_plan_files){needs.tiles, needs.buffers, needs.tile_bytes};
    z->store->files->disk(z, &plan->disk);
    return eng_plan_write(plan, &facts, error);
}

zero_result eng_budget_other(const zero_ctx *z, int stage, bool shared, size_t *sum,
                             struct base_error *error)
{
    struct eng_plan plan;
    const zero_result r = plan_ranks(z, stage, shared, &plan, error);
    *sum = plan.peaks[eng_plan_worst(&plan)].sum;
    eng_plan_free(&plan);
    return r;
}

zero_result eng_budget_configured(zero_ctx *z, const struct eng_config *config,
                                  struct eng_plan *plan, struct base_error *error)
{
    const struct eng_config own = z->config;
    z->config = *config;
    eng_store_choose(z);
    const zero_result r = plan_ranks(z, config->stage, config->shared, plan, error);
    z->config = own;
    eng_store_choose(z);
    return r;
}

const struct eng_planner eng_budget_planner = {
    .renew = renew_plan,
    .check = check_room,
    .check_load = eng_fit_load,
};
