#include "zero/api/open_close.h"
#include "zero/api/commit.h"
#include "zero/api/whole_tensors.h"
#include "zero/budget/budget.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/planner.h"
#include "zero/core/stop.h"
#include "zero/core/telemetry.h"
#include "zero/exec/executors.h"
#include "zero/exec/update_alarm.h"
#include "zero/link/links.h"
#include "zero/model/versioned.h"
#include "zero/param/gather_slots.h"
#include "zero/snapshot/recovery_point.h"
#include "zero/snapshot/save_state.h"
#include "zero/step/evaluation.h"
#include "zero/step/zero_step.h"
#include "zero/store/host_memory.h"
#include "zero/store/stores.h"

#include "base/arena.h"
#include "base/fault.h"
#include "base/forked.h"

#include <assert.h>

struct coll_config eng_coll_config(const struct eng_config *config)
{
    return (struct coll_config){
        .transport = config->transport,
        .any_provider = config->any_provider,
        .rank = config->rank,
        .world = config->world,
        .job = config->job,
        .name = config->name,
        .team = (struct coll_team *)config->team,
        .master = &config->meeting,
        .timeout_ns = (uint64_t)config->timeout_s * UINT64_C(1000000000),
        .stall_ns = (uint64_t)config->stall_s * UINT64_C(1000000000),
        .log = &config->log,
        .all_here = config->local_world == config->world,
        .asked = eng_stop_requested,
    };
}

/** Joins the other ranks; in plan mode there are none. */
static zero_result join(zero_ctx *z, struct boot_mesh *mesh, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    if (config->plan)
        return ZERO_OK;
    assert(!mesh->world || config->by_network);
    struct coll_config comm = eng_coll_config(config);
    comm.control = z->job.watch.area;
    comm.mesh = mesh->world ? mesh : NULL;
    const zero_result r = coll_open(&z->comm, &comm, error);
    if (r)
        return r;
    int least, most;
    coll_host_ranks(z->comm, &least, &most);
    eng_config_found_hosts(&z->config, least, most);
    eng_config_found_transport(&z->config, coll_transport_name(z->comm));
    return ZERO_OK;
}

static const struct eng_call_bytes call_bytes = {
    .commit = eng_commit_bytes,
    .exporting = eng_export_bytes,
    .importing = eng_import_bytes,
};

/** What a context needs beside its communicator. */
static zero_result open_parts(zero_ctx *z, struct base_error *error)
{
    z->micro.index = -1;
    z->saving.record = &eng_point_content;
    z->memory.planner = &eng_budget_planner;
    z->memory.calls = &call_bytes;
    eng_store_choose(z);
    z->model.stage = z->config.stage;
    z->model.params_nvme = z->config.params_nvme;
    z->cpu.kernels = base_kernels_find(z->config.kernels);
    if (!z->cpu.kernels)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "kernels=%s: not built in, or this CPU lacks it", z->config.kernels);
    zero_result r = base_pool_create(&z->cpu.pool, z->config.cpu_threads, error);
    if (!r)
        r = eng_exec_open(z, error);
    eng_link_choose(z);
    if (!r)
        r = eng_watch_open(z, error);
    return r;
}

static void log_opened(const zero_ctx *z)
{
    base_logf(&z->config.log, ZERO_LOG_INFO, "core",
              "rank %d of %d, stage %d, transport %s, gather %s, reduction %s", z->config.rank,
              z->config.world, z->config.stage,
              z->comm ? coll_transport_name(z->comm) : "none (plan)", eng_config_gather(&z->config),
              z->config.reduction);
}

static zero_result open_context(zero_ctx *z, const zero_config *config, struct base_error *error)
{
    struct base_error failure = {0};
    struct boot_mesh mesh = {0};
    const int unwatched = base_forked_watch();
    z->call.generation = base_generation();
    if (unwatched)
        return zero_fail_errno(error, ZERO_E_NOMEM, unwatched, "zero_open: pthread_atfork");
    zero_result r = base_fault_check_environment(error);
    if (!r)
        r = eng_stop_check(error);
    if (!r)
        r = eng_config_resolve(&z->config, config, error);
    if (!r)
        r = eng_config_meet(&z->config, eng_stop_requested, &mesh, error);
    if (!r && open_parts(z, &failure)) {
        // Ranks that this one has met already hear why it does not join them.
        coll_stay_away(&mesh, z->config.rank, &failure);
        r = zero_fail(error, failure.result, "%s", failure.message);
    }
    eng_watch_call(z, "zero_open", -1);
    if (!r)
        r = join(z, &mesh, error);
    control_call_end(z->job.watch.area);
    boot_mesh_close(&mesh);
    if (r == ZERO_E_ABORTED)
        eng_stop_unopened(z->config.rank);
    if (r)
        return r;
    eng_stop_open(z);
    log_opened(z);
    return ZERO_OK;
}

zero_result zero_open(zero_ctx **out, const zero_config *config)
{
    struct base_error *error = eng_thread_error();
    if (!out)
        return zero_fail(error, ZERO_E_INVALID, "zero_open needs a place for the context");
    *out = NULL;
    zero_ctx *z = base_calloc(1, sizeof *z);
    if (!z)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a context");
    eng_exec_choose(z);
    eng_link_choose(z);
    eng_store_choose(z);
    eng_step_open(z);
    const zero_result r = open_context(z, config, error);
    if (r) {
        zero_close(z);
        return r;
    }
    *out = z;
    return ZERO_OK;
}

void zero_close(zero_ctx *z)
{
    if (!z || eng_in_child(z)) // whose threads, locks and files are its parent's
        return;
    eng_save_close(z);
    z->exec->steps_close(z);
    if (z->comm && !z->fatal) // after a failure the call that failed tells more
        eng_watch_call(z, "zero_close", -1);
    z->store->leave_device(z);
    z->exec->close(z);
    z->store->files->close(z);
    coll_close(z->comm);
    eng_watch_close(z);
    eng_stop_close(z);
    eng_trace_free(z);
    eng_evaluation_free(z);
    eng_memory_free(z);
    base_pool_destroy(z->cpu.pool);
    eng_plan_free(&z->plan);
    eng_placement_free(&z->placement);
    eng_layout_free(&z->layout);
    eng_model_free(&z->model);
    base_free(z->saving.blobs);
    eng_outcome_close(&z->stepping.outcome);
    base_free(z);
}

void zero_abort(zero_ctx *z, const char *reason)
{
    if (z && z->comm)
        coll_abort(z->comm, ZERO_E_ABORTED, reason ? reason : "zero_abort");
}

int32_t zero_rank(const zero_ctx *z)
{
    return z ? z->config.rank : 0;
}

int32_t zero_world(const zero_ctx *z)
{
    return z ? z->config.world : 0;
}

int32_t zero_device(const zero_ctx *z)
{
    return z ? z->config.device_number : -1;
}

const char *zero_result_text(zero_result result)
{
    return base_result_text(result);
}

const char *zero_last_error(const zero_ctx *z)
{
    return z ? z->error.message : eng_thread_message();
}

zero_result zero_team_create(zero_team **team, int32_t world)
{
    struct base_error *error = eng_thread_error();
    if (!team)
        return zero_fail(error, ZERO_E_INVALID, "zero_team_create needs a place for the team");
    struct coll_team *made = NULL;
    const zero_result r = coll_team_create(&made, world, error);
    *team = (zero_team *)made;
    return r;
}

void zero_team_free(zero_team *team)
{
    coll_team_free((struct coll_team *)team);
}

/** A registration has failed: zero_commit() will, too. */
static zero_result refuse(zero_ctx *z, const struct base_error *error)
{
    eng_remember_refusal(z, error);
    return eng_fail_from(z, error);
}

zero_result zero_add_optimizer(zero_ctx *z, const zero_optimizer_desc *desc)
{
    struct base_error error = {0};
    zero_result r = eng_enter(z, ENG_BEFORE_COMMIT, "zero_add_optimizer");
    if (!r && eng_model_add_optimizer(&z->model, desc, &error))
        r = refuse(z, &error);
    return eng_leave(z, r);
}

zero_result zero_add_group(zero_ctx *z, zero_group *group, const zero_group_desc *desc)
{
    struct base_error error = {0};
    zero_result r = eng_enter(z, ENG_BEFORE_COMMIT, "zero_add_group");
    if (!r && eng_model_add_group(&z->model, group, desc, &error))
        r = refuse(z, &error);
    return eng_leave(z, r);
}

zero_result zero_add_param(zero_ctx *z, zero_param *param, const zero_param_desc *desc)
{
    struct base_error error = {0};
    zero_result r = eng_enter(z, ENG_BEFORE_COMMIT, "zero_add_param");
    if (!r && eng_model_add_param(&z->model, param, desc, &error))
        r = refuse(z, &error);
    return eng_leave(z, r);
}

const char *zero_plan_text(const zero_ctx *z)
{
    return z && z->plan.text ? z->plan.text : "";
}

const char *zero_plan_json(const zero_ctx *z)
{
    return z && z->plan.json ? z->plan.json : "";
}

int32_t zero_unit_count(const zero_ctx *z)
{
    return z && z->call.committed ? (int32_t)z->layout.unit_count : 0;
}

zero_result zero_allreduce(zero_ctx *z, double *values, uint64_t count, zero_op op)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_allreduce");
    if (!r && (!values || op < ZERO_SUM || op > ZERO_MAX))
        r = eng_fail(z, ZERO_E_INVALID, "zero_allreduce: values is NULL or op %d unknown", (int)op);
    if (!r) {
        const enum base_op ops[] = {BASE_SUM, BASE_MIN, BASE_MAX};
        r = coll_all_reduce(z->comm, values, (size_t)count, ops[op]);
        if (r)
            r = eng_comm_failed(z, r);
    }
    return eng_leave(z, r);
}

zero_result zero_barrier(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_barrier");
    if (!r && (r = coll_barrier(z->comm)) != ZERO_OK)
        r = eng_comm_failed(z, r);
    return eng_leave(z, r);
}

zero_result zero_stats(const zero_ctx *z, zero_statistics *stats)
{
    if (!z || !stats || stats->struct_size < sizeof stats->struct_size)
        return ZERO_E_INVALID;
    zero_statistics full = z->stats;
    if (z->comm) {
        struct coll_counters counters;
        coll_counters(z->comm, &counters);
        full.gathered_bytes = counters.gathered_bytes;
        full.reduced_bytes = counters.reduced_bytes;
    }
    z->store->files->count(z, &full);
    full.allocated_bytes = z->plan.total.mine;
    full.struct_size = stats->struct_size;
    eng_struct_give(stats, &full, sizeof full);
    return ZERO_OK;
}
