#include "zero/step/zero_step.h"
#include "zero/config/versioned.h"
#include "zero/core/api_call.h"
#include "zero/core/overwrite.h"
#include "zero/core/progress.h"
#include "zero/core/stop.h"
#include "zero/core/telemetry.h"
#include "zero/debug/verify_micro.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/fused.h"
#include "zero/step/gradient.h"
#include "zero/step/step_outcome.h"
#include "zero/step/update.h"

#include "base/clock.h"

#include <float.h>
#include <limits.h>
#include <math.h>

const zero_hyper *eng_step_hyper(const zero_step_args *args, size_t group)
{
    return (const zero_hyper *)(const void *)((const unsigned char *)args->hyper +
                                              group * args->hyper_stride);
}

/** Arguments that are wrong are wrong on every rank: nothing changes. */
static zero_result check_args(zero_ctx *z, const char *call, const zero_step_args *args)
{
    if ((size_t)args->group_count != z->model.group_count || !args->hyper)
        return eng_fail(z, ZERO_E_INVALID, "%s with hyper-parameters of %d groups, not %zu", call,
                        args->hyper ? args->group_count : 0, z->model.group_count);
    if (args->hyper_stride < sizeof(zero_hyper) || args->hyper_stride % sizeof(double))
        return eng_fail(z, ZERO_E_INVALID, "hyper_stride is %llu: set it to sizeof(zero_hyper)",
                        (unsigned long long)args->hyper_stride);
    if (!(fabs(args->scale) <= FLT_MAX))
        return eng_fail(z, ZERO_E_INVALID,
                        "%s with scale %g: gradients are multiplied by it in fp32, which holds %g "
                        "at most",
                        call, args->scale, (double)FLT_MAX);
    if (args->scale != 0 && (float)(args->scale / z->stepping.scale.value) == 0)
        return eng_fail(z, ZERO_E_INVALID,
                        "%s with scale %g, and a loss scale of %g: their quotient, which gradients "
                        "are multiplied by, is 0 in fp32",
                        call, args->scale, z->stepping.scale.value);
    if (!isfinite(args->max_norm) || args->max_norm < 0)
        return eng_fail(z, ZERO_E_INVALID, "%s with max_norm %g", call, args->max_norm);
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        struct base_error error = {0};
        if (group->optimizer->check(&group->choice, eng_step_hyper(args, g), &error))
            return eng_fail(z, error.result, "group %s: %s", group->name, error.message);
    }
    return ZERO_OK;
}

zero_result eng_step_args(zero_ctx *z, const char *call, const zero_step_args *user,
                          zero_step_args *args)
{
    if (!user)
        return eng_fail(z, ZERO_E_INVALID, "%s needs arguments", call);
    struct base_error error = {0};
    const zero_result r = eng_struct_copy(args, sizeof *args, user, "zero_step_args", &error);
    return r ? eng_fail_from(z, &error) : check_args(z, call, args);
}

static zero_result check_state(zero_ctx *z, const char *call)
{
    if (z->evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "%s inside an evaluation", call);
    if (z->micro.index != eng_micro_count(z) - 1)
        return eng_fail(z, ZERO_E_STATE, "%s after %d of %d micro-batches", call,
                        z->micro.index + 1, eng_micro_count(z));
    return eng_micro_check(z, call);
}

/** From here on no memory of a peer is read, and every sum of this rank is complete. */
static zero_result come_to_rest(zero_ctx *z)
{
    zero_result r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    if (!r && z->device)
        r = eng_device_settle(z);
    return r ? r : eng_grad_finish(z);
}

/** The same, and the host knows of its steps and sums what their device knows. */
static zero_result come_to_know(zero_ctx *z)
{
    zero_result r = come_to_rest(z);
    if (!r && eng_state_on_device(z))
        r = eng_device_take_in(z, 0);
    if (!r && eng_state_on_device(z))
        r = eng_device_learn(z);
    return r;
}

void eng_step_record(zero_ctx *z, uint64_t step, const struct eng_verdict *verdict, double max_norm)
{
    const bool bad = verdict->bad.micro != UINT64_MAX;
    double clip = 1;
    if (max_norm > 0 && verdict->finite)
        clip = fmin(1.0, max_norm / (verdict->norm + 1e-6));
    z->stepping.stepped = true;
    const uint64_t skips = z->stepping.result.skips;
    z->stepping.result = (zero_step_result){
        .step = step,
        .updates = z->updates,
        .skipped = !verdict->finite,
        .norm = verdict->norm,
        .clip = clip,
        .bad_param = bad ? (zero_param)verdict->bad.param : -1,
        .bad_slice = bad ? (int32_t)verdict->bad.slice : 0,
        .bad_element = bad ? verdict->bad.element : 0,
        .bad_micro = bad ? verdict->bad.micro : 0,
        .bad_rank = bad ? (int32_t)(verdict->bad.micro % (uint64_t)z->config.world) : -1,
        .loss_scale = z->stepping.scale.value,
        .skips = verdict->finite ? 0 : skips + 1,
    };
}

void eng_step_prepare(zero_ctx *z, double gradient_scale)
{
    z->update.prepared = z->updates + 1;
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        group->optimizer->prepare(&group->choice, &z->stepping.hyper[g], z->update.prepared,
                                  gradient_scale, &z->update.scalars[g]);
    }
}

void eng_step_keep(zero_ctx *z, const zero_step_args *args)
{
    for (size_t g = 0; g < z->model.group_count; g++)
        z->stepping.hyper[g] = *eng_step_hyper(args, g);
}

/** Whether the gradient of a step that is finite would overflow what optimizers make of it: where
 * steps are skipped so is this one. Elsewhere the update shows, element by element. */
static bool is_too_large(const zero_ctx *z)
{
    return z->config.nonfinite == ZERO_NONFINITE_SKIP &&
           !eng_gradient_fits(z->stepping.result.norm, z->stepping.result.clip, eng_norm_most(z));
}

static zero_result update(zero_ctx *z, double scale, bool large)
{
    if (!eng_fused(z))
        eng_step_prepare(z, scale * z->stepping.result.clip);
    z->updates++;
    eng_outcome_begin(z, z->stepping.result.norm * z->stepping.result.clip, large);
    const zero_result r = eng_update_all(z);
    return r ? r : eng_outcome_agree(z, z->stepping.result.step);
}

/** The batch counts, whether or not it led to an update. */
static void end_batch(zero_ctx *z, bool stop)
{
    z->step++;
    z->micro.index = -1;
    if (stop)
        eng_stop_agree(z);
}

static zero_result judge_and_update(zero_ctx *z, const zero_step_args *args)
{
    const double scale = args->scale / z->stepping.scale.value;
    const struct eng_motion motion = {"zero_step", args, true};
    struct eng_verdict verdict;
    zero_result r = eng_verify_compare(z);
    if (!r)
        r = eng_verdict(z, &motion, &verdict);
    if (r)
        return r;
    eng_step_record(z, z->step + 1, &verdict, args->max_norm);
    eng_step_keep(z, args);
    if (verdict.finite && is_too_large(z)) {
        verdict.finite = false;
        eng_step_record(z, z->step + 1, &verdict, args->max_norm);
    }
    if (!verdict.finite) {
        eng_grad_doubt(z);
        r = eng_policy_nonfinite(z, eng_fused(z) && eng_fused_possible(z));
    }
    if (r)
        return r;
    if (verdict.finite) {
        eng_policy_clean(z);
        r = update(z, scale, verdict.large);
    }
    z->stepping.result.updates = z->updates;
    end_batch(z, verdict.stop);
    return r ? r : eng_tier_record(z);
}

/** State in files is updated, and recorded, when the verdict is known. */
static zero_result update_files(zero_ctx *z)
{
    zero_result r = eng_device_take_in(z, 0);
    if (!r && !z->stepping.result.skipped)
        r = eng_update_all(z);
    if (!r)
        r = eng_device_prove(z);
    return r ? r : eng_tier_record(z);
}

/** The same where state is: the host goes on at once, unless tiles of files pass through. */
static zero_result step_on_device(zero_ctx *z, const zero_step_args *args)
{
    const uint64_t begin = base_clock_ns();
    const struct eng_motion motion = {"zero_step", args, true};
    bool stop;
    zero_result r = eng_verify_compare(z);
    if (!r)
        r = eng_verdict_agree(z, &motion, &stop);
    if (r)
        return r;
    eng_step_keep(z, args);
    eng_before_overwrite(z);
    r = eng_device_step(z, args);
    if (r)
        return r;
    end_batch(z, stop);
    if (z->tier)
        return update_files(z);
    eng_stretch(z, CONTROL_UPDATE, -1, begin, &z->stats.update_s);
    // All ranks learn at one place what the program multiplies its next loss by.
    return z->stepping.scale.dynamic && z->config.world > 1 ? eng_device_take_in(z, 0) : ZERO_OK;
}

static zero_result step(zero_ctx *z, const zero_step_args *user)
{
    const uint64_t begin = eng_watch_step_begin(z);
    zero_step_args args = {.struct_size = sizeof args};
    zero_result r =
        eng_fused(z) ? eng_fused_args(z, user, &args) : eng_step_args(z, "zero_step", user, &args);
    if (!r)
        r = check_state(z, "zero_step");
    if (!r)
        r = come_to_rest(z);
    if (!r)
        r = eng_state_on_device(z) ? step_on_device(z, &args) : judge_and_update(z, &args);
    if (!r)
        r = eng_publish_finish(z, false);
    if (r)
        return r;
    z->stepping.fused.struct_size = 0;
    if (!eng_state_on_device(z))
        eng_metric_step_line(z, z->stepping.hyper[0].lr);
    eng_watch_step(z, begin);
    return ZERO_OK;
}

zero_result zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_step");
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = step(z, args);
    return eng_leave(z, r);
}

void eng_step_look(const zero_ctx *z, bool waits)
{
    zero_ctx *own = (zero_ctx *)(uintptr_t)z; // to the program nothing changes
    if (z->fatal)
        return;
    // A failure is the next call's.
    zero_result r = eng_enter(own, ENG_AFTER_COMMIT, "a look at a step");
    if (!r)
        r = eng_device_take_in(own, waits ? 0 : INT_MAX);
    eng_leave(own, r);
}

zero_result zero_step_info(const zero_ctx *z, zero_step_result *info)
{
    if (!z || !info || info->struct_size < sizeof info->struct_size)
        return ZERO_E_INVALID;
    if (z->committed && eng_state_on_device(z))
        eng_step_look(z, false);
    if (!z->stepping.stepped)
        return z->step > 0 ? ZERO_AGAIN : ZERO_E_STATE;
    zero_step_result full = z->stepping.result;
    full.struct_size = info->struct_size;
    eng_struct_give(info, &full, sizeof full);
    return ZERO_OK;
}

/** Without the others, of whom there are none. */
static zero_result learn_alone(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_close");
    if (!r)
        r = eng_device_take_in(z, 0);
    if (!r)
        r = eng_device_prove(z);
    return eng_leave(z, r);
}

void eng_step_close(zero_ctx *z)
{
    if (!z->committed || z->fatal || !eng_state_on_device(z))
        return;
    // Other ranks need not close now: they can't be asked.
    if (z->config.world == 1 && learn_alone(z))
        base_logf(&z->log, ZERO_LOG_WARN, "step", "one of the last steps has failed: %s",
                  z->error.message);
    else if (eng_device_open_steps(z) > 0)
        base_logf(&z->log, ZERO_LOG_WARN, "step",
                  "what became of the last %d steps is not known: end with zero_step_wait()",
                  eng_device_open_steps(z));
}

zero_result zero_step_wait(zero_ctx *z)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_step_wait");
    if (!r && eng_state_on_device(z))
        r = eng_device_take_in(z, 0);
    // Inside a step an update may be under way again, which the next one's verdict tells of.
    if (!r && eng_state_on_device(z) && z->micro.index < 0)
        r = eng_device_prove(z);
    return eng_leave(z, r);
}

/** Ends the step without an update, whatever its gradients are. */
static zero_result skip_step(zero_ctx *z)
{
    const uint64_t begin = eng_watch_step_begin(z);
    const zero_step_args args = {.scale = 1};
    const struct eng_motion motion = {"zero_skip_step", &args, true};
    struct eng_verdict verdict;
    zero_result r = check_state(z, "zero_skip_step");
    if (!r && eng_fused(z))
        r = eng_fail(z, ZERO_E_STATE, "zero_skip_step: step %llu is a fused step",
                     (unsigned long long)z->step + 1);
    if (!r)
        r = come_to_know(z);
    if (!r)
        r = eng_verdict(z, &motion, &verdict);
    if (r)
        return r;
    const uint64_t skips = z->stepping.result.skips;
    eng_step_record(z, z->step + 1, &verdict, 0);
    z->stepping.result.skipped = 1;
    z->stepping.result.skips = skips;
    end_batch(z, verdict.stop);
    r = eng_state_on_device(z) ? eng_device_skip(z) : ZERO_OK;
    if (!r)
        r = eng_tier_record(z);
    if (r)
        return r;
    base_logf(&z->log, ZERO_LOG_INFO, "core", "step %llu is skipped by the program",
              (unsigned long long)z->step);
    eng_metric_step_line(z, z->stepping.hyper[0].lr);
    eng_watch_step(z, begin);
    return ZERO_OK;
}

zero_result zero_skip_step(zero_ctx *z)
{
    if (!z)
        return ZERO_E_INVALID;
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
    const struct eng_motion motion = {"zero_grad_norm", &args, false};
    struct eng_verdict verdict;
    zero_result r = check_state(z, "zero_grad_norm");
    if (!r)
        r = come_to_know(z);
    if (!r)
        r = eng_verdict(z, &motion, &verdict);
    if (!r)
        *norm = verdict.norm;
    return r;
}

zero_result zero_grad_norm(zero_ctx *z, double scale, double *norm)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_grad_norm");
    if (!r)
        r = grad_norm(z, scale, norm);
    return eng_leave(z, r);
}
