// Arguments of a step: whether they can be taken, and what is kept of them.

#include "zero/core/api_call.h"
#include "zero/model/versioned.h"
#include "zero/step/zero_step.h"

#include <assert.h>
#include <float.h>
#include <math.h>

const zero_hyper *eng_step_hyper(const zero_step_args *args, size_t group)
{
    assert(args->hyper && group < (size_t)args->group_count);
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

void eng_step_keep(zero_ctx *z, const zero_step_args *args)
{
    for (size_t g = 0; g < z->model.group_count; g++)
        z->stepping.hyper[g] = *eng_step_hyper(args, g);
}
