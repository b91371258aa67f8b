// What gradients lead to that are not finite: an error or a skip, and another loss scale.

#include "zero/core/api_call.h"
#include "zero/exec/executors.h"
#include "zero/step/step_outcome.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ------------------------------------------------------------------ at commit */

/** Whether a gradient can overflow where fp32 does not. */
static bool has_f16(const struct eng_config *config, const struct eng_model *model)
{
    for (size_t p = 0; p < model->param_count; p++)
        if (model->params[p].dtype == ZERO_F16 || model->params[p].grad_dtype == ZERO_F16)
            return true;
    return config->comm_dtype == ZERO_F16;
}

/** Values that were asked for and that nothing would come of. */
static zero_result check_effect(const struct eng_config *config, struct base_error *error)
{
    static const char *const dynamic[] = {"loss_scale_init", "loss_scale_window", "loss_scale_min"};
    for (size_t i = 0; i < sizeof dynamic / sizeof *dynamic; i++)
        if (config->loss_scale != ENG_LOSS_SCALE_DYNAMIC && eng_config_given(config, dynamic[i]))
            return zero_fail(error, ZERO_E_INVALID,
                             "%s has no effect: only loss_scale=dynamic, which auto is for f16, "
                             "changes in the course of steps",
                             dynamic[i]);
    if (config->nonfinite == ZERO_NONFINITE_ERROR && eng_config_given(config, "skip_limit"))
        return zero_fail(error, ZERO_E_INVALID,
                         "skip_limit has no effect with nonfinite=error: no step is skipped");
    return ZERO_OK;
}

zero_result eng_policy_resolve(struct eng_config *config, const struct eng_model *model,
                               struct base_scale *scale, struct base_error *error)
{
    const bool f16 = has_f16(config, model);
    if (config->loss_scale == ENG_LOSS_SCALE_AUTO)
        config->loss_scale = f16 ? ENG_LOSS_SCALE_DYNAMIC : ENG_LOSS_SCALE_OFF;
    const bool dynamic = config->loss_scale == ENG_LOSS_SCALE_DYNAMIC;
    const bool off = config->loss_scale == ENG_LOSS_SCALE_OFF;
    if (config->nonfinite == ZERO_NONFINITE_DEFAULT)
        config->nonfinite = f16 || !off ? ZERO_NONFINITE_SKIP : ZERO_NONFINITE_ERROR;
    if (dynamic && config->nonfinite == ZERO_NONFINITE_ERROR)
        return zero_fail(error, ZERO_E_INVALID,
                         "nonfinite=error with loss_scale=dynamic, which f16 has by default: it "
                         "grows until a step overflows, and skips that one; take nonfinite=skip, "
                         "or a fixed loss_scale");
    if (dynamic && config->loss_scale_init < config->loss_scale_min)
        return zero_fail(error, ZERO_E_INVALID,
                         "loss_scale_init=%" PRId64 " is below loss_scale_min=%" PRId64,
                         config->loss_scale_init, config->loss_scale_min);
    *scale = (struct base_scale){
        .value = off       ? 1.0
                 : dynamic ? (double)config->loss_scale_init
                           : (double)config->loss_scale,
        .dynamic = dynamic,
        .least = (double)config->loss_scale_min,
        .window = (uint64_t)config->loss_scale_window,
    };
    return check_effect(config, error);
}

/* ------------------------------------------------------------------ at a step */

/** " behind its last one ..." of an element that is padding: nothing but the program writes there.
 */
static const char *behind(const zero_ctx *z, const zero_step_result *bad)
{
    const struct eng_slice *slice =
        eng_layout_slice(&z->layout, &z->model, bad->bad_param, bad->bad_slice);
    return slice && bad->bad_element >= slice->numel
               ? " (behind its end: the program writes more than the gradient has)"
               : "";
}

/** Says in words what was not finite. */
static void describe(const zero_ctx *z, char *text, size_t size)
{
    const zero_step_result *bad = &z->stepping.result;
    if (isfinite(bad->norm))
        snprintf(text, size,
                 "every gradient is finite, but their norm, scaled and clipped, is %g, and an "
                 "update can take %g at most: more may overflow fp32, where it is squared",
                 bad->norm * bad->clip, eng_norm_most(z));
    else if (bad->bad_param < 0)
        snprintf(text, size, "every gradient is finite, but their sum overflows");
    else
        snprintf(text, size,
                 "the gradient of %s, slice %d, element %llu%s, is not finite in micro-batch %llu, "
                 "computed by rank %d",
                 z->model.params[bad->bad_param].name, bad->bad_slice,
                 (unsigned long long)bad->bad_element, behind(z, bad),
                 (unsigned long long)bad->bad_micro, bad->bad_rank);
}

zero_result eng_policy_nonfinite(zero_ctx *z, bool fused)
{
    assert(z->stepping.result.skipped);
    char text[448];
    const unsigned long long step = z->stepping.result.step;
    const double before = z->stepping.scale.value;
    const enum base_skip skip =
        base_skip_step(&z->stepping.scale, z->stepping.result.skips, eng_skip_limit(&z->config));
    describe(z, text, sizeof text);
    if (skip == BASE_SKIP_TOO_MANY && z->config.nonfinite == ZERO_NONFINITE_ERROR)
        return eng_fail_agreed(z, ZERO_E_NONFINITE, "step %llu: %s%s", step, text,
                               fused ? "; a part of the fused update is made" : "");
    if (skip == BASE_SKIP_TOO_MANY)
        return eng_fail_agreed(z, ZERO_E_NONFINITE,
                               "step %llu, after skip_limit=%d skips in a row: %s", step,
                               z->config.skip_limit, text);
    if (skip == BASE_SKIP_AT_FLOOR)
        return eng_fail_agreed(z, ZERO_E_NONFINITE,
                               "step %llu, with the loss scale at loss_scale_min=%g: %s", step,
                               before, text);
    if (z->stepping.scale.value != before)
        base_logf(&z->config.log, ZERO_LOG_WARN, "core",
                  "step %llu is skipped, the loss scale goes from %g to %g: %s", step, before,
                  z->stepping.scale.value, text);
    else
        base_logf(&z->config.log, ZERO_LOG_WARN, "core", "step %llu is skipped: %s", step, text);
    return ZERO_OK;
}

void eng_policy_clean(zero_ctx *z)
{
    const double before = z->stepping.scale.value;
    if (base_scale_clean(&z->stepping.scale))
        base_logf(&z->config.log, ZERO_LOG_INFO, "core",
                  "step %llu: the loss scale goes from %g to %g",
                  (unsigned long long)z->stepping.result.step, before, z->stepping.scale.value);
}

double zero_loss_scale(const zero_ctx *z)
{
    if (z && z->call.committed && z->stepping.scale.dynamic)
        z->exec->look(z, true);
    return z && z->call.committed ? z->stepping.scale.value : 1.0;
}
