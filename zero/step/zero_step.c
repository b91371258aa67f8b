#include "zero/step/zero_step.h"
#include "zero/core/api_call.h"
#include "zero/core/observers.h"
#include "zero/core/progress.h"
#include "zero/core/step_kind.h"
#include "zero/core/stop.h"
#include "zero/core/telemetry.h"
#include "zero/exec/executors.h"
#include "zero/link/publish.h"
#include "zero/model/versioned.h"
#include "zero/param/gather_slots.h"
#include "zero/step/gradient.h"
#include "zero/step/micro_batch.h"
#include "zero/step/outcome.h"
#include "zero/step/step_outcome.h"
#include "zero/step/update.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>

static zero_result check_state(zero_ctx *z, const char *call)
{
    if (z->micro.evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "%s inside an evaluation", call);
    if (z->micro.index != eng_micro_count(z) - 1)
        return eng_fail(z, ZERO_E_STATE, "%s after %d of %d micro-batches", call,
                        z->micro.index + 1, eng_micro_count(z));
    return eng_micro_check(z, call);
}

/** From here on no memory of a peer is read, and every sum of this rank is complete. */
static zero_result drain_step(zero_ctx *z)
{
    zero_result r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    if (!r)
        r = z->exec->settle(z);
    return r ? r : eng_grad_finish(z);
}

/** Drains the step, and makes what its gradients and the steps before have come to known here. */
static zero_result learn_step(zero_ctx *z)
{
    zero_result r = drain_step(z);
    if (!r)
        r = z->exec->take_in(z, 0);
    return r ? r : z->exec->learn(z);
}

/** Makes it the newest step that is decided. */
static void keep_result(zero_ctx *z, const struct eng_decision *decision)
{
    const struct eng_bad *bad = &decision->bad;
    assert(decision->step == z->stepping.result.step + 1);
    const bool found = bad->micro != UINT64_MAX;
    const uint64_t skips = z->stepping.result.skips;
    z->stepping.stepped = true;
    z->stepping.result = (zero_step_result){
        .step = decision->step,
        .updates = z->updates,
        .skipped = !decision->finite,
        .norm = decision->norm,
        .clip = decision->finite ? base_clip(decision->norm, decision->max_norm) : 1,
        .bad_param = found ? (zero_param)bad->param : -1,
        .bad_slice = found ? (int32_t)bad->slice : 0,
        .bad_element = found ? bad->element : 0,
        .bad_micro = found ? bad->micro : 0,
        .bad_rank = found ? (int32_t)(bad->micro % (uint64_t)z->config.world) : -1,
        .loss_scale = z->stepping.scale.value,
        .skips = decision->finite ? 0 : skips + 1,
    };
}

/** The policy for what a step has come to: it updates, is skipped, or is the last one. */
static zero_result decided(zero_ctx *z, struct eng_decision *decision)
{
    zero_result r = ZERO_OK;
    if (decision->metrics)
        r = eng_verdict_share(z, decision->metrics, &decision->bad, &decision->wrong);
    if (r)
        return r;
    keep_result(z, decision);
    // Nothing has been updated since, on any rank, but what a fused step updated.
    if (decision->wrong.param != UINT64_MAX)
        return eng_outcome_fail(z, &decision->wrong, decision->step - !decision->early, true);
    if (decision->finite) {
        eng_policy_clean(z);
        z->updates++;
    } else {
        eng_grad_doubt(z);
        r = eng_policy_nonfinite(z, decision->early);
    }
    z->stepping.result.updates = z->updates;
    return r;
}

static const struct eng_step_hooks hooks = {
    .decided = decided,
    .told = eng_metric_step_line,
    .proved = eng_outcome_all,
    .value = eng_metric_set,
};

static zero_result args_of(zero_ctx *z, const zero_step_args *user, zero_step_args *args)
{
    return eng_step_args(z, "zero_step", user, args);
}

static zero_result hand_over(zero_ctx *z, zero_unit unit)
{
    (void)z, (void)unit; // peers read what this rank has gathered until the step ends
    return ZERO_OK;
}

static zero_result may_skip(zero_ctx *z)
{
    (void)z;
    return ZERO_OK;
}

static void ended(zero_ctx *z)
{
    (void)z;
}

const struct eng_step_kind eng_step_after_backward = {
    .args = args_of,
    .hand_over = hand_over,
    .skip = may_skip,
    .ended = ended,
};

void eng_step_open(zero_ctx *z)
{
    z->stepping.kind = &eng_step_after_backward;
    z->stepping.hooks = &hooks;
    eng_outcome_open(&z->stepping.outcome);
}

/** The batch counts, whether or not it led to an update. */
static void end_batch(zero_ctx *z)
{
    assert(z->micro.index >= 0);
    z->step++;
    z->micro.index = -1;
    eng_stop_step_ended(z);
}

/** Updates where the step is decided. */
static zero_result update(zero_ctx *z)
{
    assert(!z->stepping.result.skipped);
    eng_outcome_begin(z, z->stepping.result.norm * z->stepping.result.clip);
    zero_result r = eng_update_all(z);
    if (!r)
        r = eng_outcome_agree(z, z->stepping.result.step);
    return r ? r : z->exec->prove(z);
}

/** From what ranks ask for, over the decision and the update, to the record of what was changed. */
static zero_result conclude(zero_ctx *z, const zero_step_args *args)
{
    const struct eng_step_request request = {"zero_step", args, true, z->exec->decides_later};
    struct eng_verdict verdict;
    enum eng_update_kind kind = ENG_NO_UPDATE;
    zero_result r = eng_observe_step(z, ENG_STEP_HANDED_OVER);
    if (!r)
        r = eng_step_agree(z, &request, &verdict);
    if (r)
        return r;
    eng_step_keep(z, args);
    struct eng_decision decision = {
        .step = z->step + 1,
        .norm = verdict.norm,
        .finite = verdict.finite,
        .early = z->stepping.early,
        .bad = verdict.bad,
        .wrong = {.param = UINT64_MAX},
        .max_norm = args->max_norm,
        .lr = z->stepping.hyper[0].lr,
    };
    r = z->exec->decide(z, args, &decision);
    if (!r)
        r = z->exec->update(z, &kind);
    if (r)
        return r;
    if (kind == ENG_UPDATE_DECIDED)
        r = update(z);
    else if (kind == ENG_UPDATE_QUEUED)
        r = eng_update_all(z);
    end_batch(z);
    return r ? r : z->store->records->record(z);
}

static zero_result step(zero_ctx *z, const zero_step_args *user)
{
    const uint64_t begin = eng_watch_step_begin(z);
    zero_step_args args = {.struct_size = sizeof args};
    zero_result r = z->stepping.kind->args(z, user, &args);
    if (!r)
        r = check_state(z, "zero_step");
    if (!r)
        r = drain_step(z);
    if (!r)
        r = conclude(z, &args);
    if (!r)
        r = eng_publish_finish(z, false);
    if (!r)
        r = z->exec->step_end(z);
    if (r)
        return r;
    assert(z->micro.index < 0 && z->gradients.open == 0);
    z->stepping.kind->ended(z);
    eng_watch_step(z, begin);
    return ZERO_OK;
}

zero_result zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_step");
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = step(z, args);
    return eng_leave(z, r);
}

zero_result zero_step_info(const zero_ctx *z, zero_step_result *info)
{
    if (!z || !info || info->struct_size < sizeof info->struct_size)
        return ZERO_E_INVALID;
    if (z->call.committed)
        z->exec->look(z, false);
    if (!z->stepping.stepped)
        return z->step > 0 ? ZERO_AGAIN : ZERO_E_STATE;
    zero_step_result full = z->stepping.result;
    full.struct_size = info->struct_size;
    eng_struct_give(info, &full, sizeof full);
    return ZERO_OK;
}

zero_result zero_step_wait(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_step_wait");
    if (!r)
        r = z->exec->take_in(z, 0);
    // Inside a step an update may be under way again, which the next one's verdict tells of.
    if (!r && z->micro.index < 0)
        r = z->exec->prove(z);
    return eng_leave(z, r);
}

/** Ends the step without an update, whatever its gradients are. */
static zero_result skip_step(zero_ctx *z)
{
    const uint64_t begin = eng_watch_step_begin(z);
    const zero_step_args args = {.scale = 1};
    const struct eng_step_request request = {"zero_skip_step", &args, true, false};
    struct eng_verdict verdict;
    zero_result r = check_state(z, "zero_skip_step");
    if (!r)
        r = z->stepping.kind->skip(z);
    if (!r)
        r = learn_step(z);
    if (!r)
        r = eng_step_agree(z, &request, &verdict);
    if (r)
        return r;
    const uint64_t skips = z->stepping.result.skips;
    keep_result(z, &(struct eng_decision){.step = z->step + 1,
                                          .norm = verdict.norm,
                                          .finite = verdict.finite,
                                          .bad = verdict.bad});
    z->stepping.result.skipped = 1;
    z->stepping.result.skips = skips;
    end_batch(z);
    r = z->exec->skip(z);
    if (!r)
        r = z->store->records->record(z);
    if (r)
        return r;
    base_logf(&z->config.log, ZERO_LOG_INFO, "core", "step %llu is skipped by the program",
              (unsigned long long)z->step);
    eng_metric_step_line(z, z->stepping.hyper[0].lr);
    eng_watch_step(z, begin);
    return ZERO_OK;
}

zero_result zero_skip_step(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_skip_step");
    if (!r)
        r = skip_step(z);
    return eng_leave(z, r);
}

static zero_result grad_norm(zero_ctx *z, double scale, double *norm)
{
    if (!norm || !isfinite(scale))
        return eng_fail(z, ZERO_E_INVALID, "zero_grad_norm with scale %g or no place for the norm",
                        scale);
    const zero_step_args args = {.scale = scale};
    const struct eng_step_request request = {"zero_grad_norm", &args, false, false};
    struct eng_verdict verdict;
    zero_result r = check_state(z, "zero_grad_norm");
    if (!r)
        r = learn_step(z);
    if (!r)
        r = eng_step_agree(z, &request, &verdict);
    if (!r)
        *norm = verdict.norm;
    return r;
}

zero_result zero_grad_norm(zero_ctx *z, double scale, double *norm)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_grad_norm");
    if (!r)
        r = grad_norm(z, scale, norm);
    return eng_leave(z, r);
}
