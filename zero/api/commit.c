#include "zero/api/commit.h"
#include "zero/api/compare.h"
#include "zero/budget/budget.h"
#include "zero/core/api_call.h"
#include "zero/core/stop.h"
#include "zero/core/telemetry.h"
#include "zero/debug/paranoid.h"
#include "zero/debug/verify_micro.h"
#include "zero/exec/executors.h"
#include "zero/exec/host_update.h"
#include "zero/link/links.h"
#include "zero/snapshot/save_state.h"
#include "zero/snapshot/snapshot.h"
#include "zero/step/outcome.h"
#include "zero/step/step_outcome.h"
#include "zero/store/host_memory.h"
#include "zero/store/master_weights.h"
#include "zero/store/stores.h"

#include "base/file.h"
#include "base/size_limit.h"
#include "zero/config/config_key.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/** What ranks must agree on before they meet in collectives: values of keys, as those show them,
 * and sizes of the model. */
struct setting {
    const char *name;
    int64_t value;
};

enum { SETTINGS = 31 };

static void show_value(const char *name, int64_t value, char *text, size_t size)
{
    const int key = eng_key_find(name, strlen(name));
    if (key >= 0)
        eng_key_show(&eng_keys[key], value, text, size);
    else
        snprintf(text, size, "%lld", (long long)value);
}

static zero_result settings_differ(size_t rank, const char *name, int64_t a, int64_t b,
                                   struct base_error *error)
{
    char first[ENG_VALUE_BYTES], other[ENG_VALUE_BYTES];
    show_value(name, a, first, sizeof first);
    show_value(name, b, other, sizeof other);
    return zero_fail(error, ZERO_E_DIVERGED, "ranks 0 and %zu differ in %s: %s and %s", rank, name,
                     first, other);
}

static void list_settings(const zero_ctx *z, struct setting settings[SETTINGS])
{
    const struct eng_config *c = &z->config;
    const struct setting all[SETTINGS] = {
        {"stage", c->stage},
        {"micro_batches", c->micro_batches},
        {"prefetch_units", c->prefetch_units},
        {"open_units", c->open_units},
        {"persist_numel", c->persist_numel},
        {"live_bytes", c->live_bytes},
        {"loss_scale", c->loss_scale},
        {"loss_scale_init", c->loss_scale_init},
        {"loss_scale_min", c->loss_scale_min},
        {"loss_scale_window", c->loss_scale_window},
        {"nonfinite", c->nonfinite},
        {"skip_limit", c->skip_limit},
        {"device", c->device_number >= 0},
        {"offload_optimizer", eng_config_offload(c)},
        {"offload_params", c->params_nvme},
        {"offload_grads", c->grads_nvme},
        {"offload_update", eng_config_updater(c)},
        {"gather", c->shared       ? ENG_GATHER_SHARED
                   : c->host_slots ? ENG_GATHER_SLOTS
                                   : ENG_GATHER_COPY}, // follows from others, too
        {"reduction", c->local},
        {"sum_group", c->sum_group},
        {"paranoid", c->paranoid},
        {"verify_micro", c->verify_micro},
        {"comm_dtype", c->comm_dtype},
        {"master", c->no_masters},
        {"moments", c->moment_dtype == ZERO_BF16},
        {"tile_bytes", c->tile_bytes},
        {"recovery", eng_config_value(c, "recovery")},
        {"compress", eng_config_value(c, "compress")},
        {"seed", (int64_t)c->seed},
        {"tensors", (int64_t)z->model.param_count},
        {"groups", (int64_t)z->model.group_count},
    };
    memcpy(settings, all, sizeof all);
}

/** Ranks whose settings differ are told which one. */
static zero_result compare_settings(zero_ctx *z, struct base_error *error)
{
    struct setting settings[SETTINGS];
    int64_t mine[SETTINGS], (*all)[SETTINGS];
    const size_t world = (size_t)z->config.world;
    list_settings(z, settings);
    for (size_t i = 0; i < SETTINGS; i++)
        mine[i] = settings[i].value;
    all = base_calloc(world, sizeof *all);
    if (!all)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu ranks' settings", world);
    zero_result r = coll_exchange(z->comm, mine, sizeof mine, all);
    if (r)
        r = eng_comm_failed(z, r);
    for (size_t rank = 1; !r && rank < world; rank++)
        for (size_t i = 0; !r && i < SETTINGS; i++)
            if (all[0][i] != all[rank][i])
                r = settings_differ(rank, settings[i].name, all[0][i], all[rank][i], error);
    base_free(all);
    return r;
}

/** What ranks use to compare. */
size_t eng_commit_bytes(const zero_ctx *z)
{
    const size_t models = eng_compare_model_bytes(z), values = eng_first_bytes(z);
    const size_t settings = (size_t)z->config.world * SETTINGS * sizeof(int64_t);
    const size_t most = models > settings ? models : settings;
    return most > values ? most : values;
}

/** The model, and what of the configuration follows from it. */
static zero_result complete(zero_ctx *z, struct base_error *error)
{
    if (z->call.refused.result)
        return zero_fail(error, z->call.refused.result, "%s", z->call.refused.message);
    zero_result r = eng_model_complete(&z->model, error);
    if (!r)
        r = eng_config_check_model(&z->config, &z->model, error);
    return r ? r : eng_policy_resolve(&z->config, &z->model, &z->stepping.scale, error);
}

/** The layout, before which nothing is known of what a rank needs. */
static zero_result make_layout(zero_ctx *z, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    z->micro.count = eng_config_rounds(config);
    assert(z->micro.count >= 1);
    z->micro.planned = config->micro_batches;
    z->micro.planned_blocks = eng_config_may_leave_blocks(config);
    zero_result r = eng_exec_check(config, &z->model, error);
    if (!r)
        r = eng_layout_make(&z->layout, &z->model, config->world, config->persist_numel, error);
    return r ? r : eng_config_check_layout(config, &z->layout, error);
}

/** Three texts, each ended by a zero: the plan for people, the plan as JSON, and why it does not
 * fit ("": it does, or this process has not looked). */
static zero_result hand_over_plan(zero_ctx *z, struct base_error *error)
{
    const bool lacks =
        z->plan.fit.verdict != ENG_FITS_NOT && z->plan.gpu_fit.verdict == ENG_FITS_NOT;
    const char *const texts[] = {z->plan.text, z->plan.json,
                                 lacks ? z->plan.gpu_fit.reason : z->plan.fit.reason};
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < 3 && z->config.plan_fd >= 0; i++)
        r = base_write_all(z->config.plan_fd, texts[i], strlen(texts[i]) + 1,
                           "the descriptor for the plan", error);
    return r ? r : ZERO_PLANNED;
}

/** Without the other ranks, who are not there. */
static zero_result only_plan(zero_ctx *z)
{
    struct base_error error = {0};
    assert(!z->comm);
    zero_result r = ZERO_OK;
    eng_fit_look(z);
    if (z->config.probe && z->plan.fit.verdict != ENG_FITS_NOT)
        r = z->store->files->probe(z, &z->plan.disk, &error);
    if (!r)
        r = eng_budget_write(z, &z->plan, &error);
    if (!r)
        r = hand_over_plan(z, &error);
    return error.result ? eng_fail_from(z, &error) : r;
}

/** Ranks that registered the same have the same plan, which fits all of them or none. */
static zero_result agree_on_plan(zero_ctx *z)
{
    struct base_error error = {0};
    const zero_result fits = eng_fit_agree(z);
    const zero_result r = eng_budget_write(z, &z->plan, &error);
    return fits ? fits : r ? eng_fail_from(z, &error) : ZERO_OK;
}

/** First values, and a warning for each tensor of which one is not finite. */
static zero_result watched_first(const zero_ctx *z, void *user, const struct eng_slice *slice,
                                 uint64_t first, uint64_t count, float *out,
                                 struct base_error *error)
{
    struct eng_param *param = &z->model.params[slice->param];
    const zero_result r = eng_values_first(z, user, slice, first, count, out, error);
    uint64_t i = 0;
    if (r || param->nonfinite)
        return r;
    while (i < count && isfinite(out[i]))
        i++;
    if (i == count)
        return ZERO_OK;
    param->nonfinite = true;
    base_logf(&z->config.log, ZERO_LOG_WARN, "core",
              "first values are not finite: slice %d, element %" PRIu64 " of tensor %s is %g",
              slice->index, first + i, param->name, (double)out[i]);
    return ZERO_OK;
}

static zero_result first_values(zero_ctx *z)
{
    struct base_error error = {0};
    // Without sums to read into there is nothing to try first: no values are lost.
    if (!eng_sums_are_scratch(z) || !eng_values_read(z, watched_first, NULL, &error))
        eng_values_write(z, ENG_REPLACE, watched_first, NULL, &error);
    const zero_result r = eng_agree(z, &error, "first values");
    return r ? r : eng_values_install(z, ENG_REPLACE);
}

/** A message is one line. */
static void log_plan(const zero_ctx *z)
{
    for (const char *line = z->plan.text; *line;) {
        const size_t length = strcspn(line, "\n");
        base_logf(&z->config.log, ZERO_LOG_DEBUG, "core", "%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

/** Fails by what was found without the others, who may have registered another model and wait. */
static zero_result fail_alone(zero_ctx *z, const struct base_error *error)
{
    if (z->comm)
        coll_abort(z->comm, error->result, error->message);
    return eng_fail_from(z, error);
}

/** What this rank needs, when all that is left open is decided. */
static zero_result decide(zero_ctx *z)
{
    struct base_error error = {0};
    if (complete(z, &error))
        return fail_alone(z, &error);
    zero_result r = z->comm ? compare_settings(z, &error) : ZERO_OK;
    if (!r && z->comm)
        r = eng_compare_model(z, &error);
    if (r)
        return error.result ? eng_fail_from(z, &error) : r;
    // A world that is there and one that is only planned take these functions.
    r = make_layout(z, &error);
    if (!r)
        r = eng_updater_decide(z, &error);
    eng_exec_choose(z);
    eng_link_choose(z);
    if (!r)
        eng_store_choose(z);
    if (!r)
        r = eng_budget_make(z, &error);
    return error.result ? fail_alone(z, &error) : r;
}

static void add_observers(zero_ctx *z)
{
    const struct eng_observer *const observers[] = {&eng_paranoid_observer, &eng_verify_observer};
    for (size_t i = 0; i < sizeof observers / sizeof *observers; i++)
        if (eng_config_value(&z->config, observers[i]->key))
            eng_observer_add(z, observers[i]);
}

/** What ranks tell each other when a step ends. The save is the last part: it may exchange more
 * when it has heard. */
static void add_exchange_parts(zero_ctx *z)
{
    const struct eng_exchange_part *const parts[] = {
        &eng_request_part, &eng_norm_part,   &eng_stop_part,
        &eng_outcome_part, &eng_metric_part, z->store->files->exchange,
        &eng_save_part,
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i])
            eng_exchange_add(z, parts[i]);
}

static zero_result commit(zero_ctx *z)
{
    struct base_error error = {0};
    assert(!z->call.committed && z->stepping.exchange.part_count == 0);
    add_observers(z);
    add_exchange_parts(z);
    zero_result r = decide(z);
    if (r)
        return r;
    if (z->config.plan)
        return only_plan(z);
    r = agree_on_plan(z);
    if (r)
        return r;
    r = eng_first_compare(z);
    if (!r)
        r = eng_memory_allocate(z);
    if (!r)
        r = z->store->files->open(z);
    if (!r && eng_budget_write(z, &z->plan, &error))
        r = eng_fail_from(z, &error);
    if (!r)
        r = eng_segments_make(z);
    if (!r)
        r = eng_runs_begin(z);
    if (!r)
        r = first_values(z);
    if (r)
        return r;
    z->call.committed = true;
    eng_watch_start(z);
    base_logf(&z->config.log, ZERO_LOG_INFO, "core",
              "%zu tensors, %zu units, %zu granules; %zu bytes a rank", z->model.param_count,
              z->layout.unit_count, z->layout.granules, z->plan.total.mine);
    log_plan(z);
    return ZERO_OK;
}

zero_result zero_commit(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_BEFORE_COMMIT, "zero_commit");
    if (!r) {
        // The tier makes files and memory: what exceeds the limit of file sizes is an error.
        const struct base_size_limit limit = base_size_limit_begin();
        r = commit(z);
        base_size_limit_end(&limit);
        // A context that could not commit is good for zero_close() only.
        if (r && !z->fatal)
            z->fatal = r;
    }
    return eng_leave(z, r);
}
