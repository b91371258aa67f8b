// A fused step, begun before its gradients are complete. The reduction updates, too
// (zero/link/bucket_reduce.c). With state in a file the caller that hands a gradient over updates,
// as soon as a tile's sums are complete (zero/store/nvme_update.c). A GPU queues the update of a
// unit behind its sums (zero/exec/device_step.c).

#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/observers.h"
#include "zero/core/overwrite.h"
#include "zero/core/step_kind.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/zero_step.h"

#include <string.h>

static const struct eng_step_kind in_backward;

/** What an update before the verdict rules out. */
static zero_result check_policy(zero_ctx *z, const zero_step_args *args)
{
    if (args->max_norm > 0)
        return eng_fail(
            z, ZERO_E_INVALID,
            "zero_step_in_backward with max_norm %g: the norm to clip to is not known before "
            "the update",
            args->max_norm);
    if (z->config.nonfinite == ZERO_NONFINITE_SKIP)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_step_in_backward with nonfinite=skip, the default with a loss scale: "
                        "whether to skip is not known before the update; take nonfinite=error");
    return ZERO_OK;
}

/** The last micro-batch has begun and handed over nothing. */
static zero_result check_window(zero_ctx *z)
{
    if (z->stepping.kind == &in_backward)
        return eng_fail(z, ZERO_E_STATE, "zero_step_in_backward: step %llu is a fused step already",
                        (unsigned long long)z->step + 1);
    if (z->micro.evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "zero_step_in_backward inside an evaluation");
    const zero_result r = eng_observe_step(z, ENG_STEP_FUSED);
    if (r)
        return r;
    if (z->micro.index != z->micro.count - 1)
        return eng_fail(z, ZERO_E_STATE,
                        "zero_step_in_backward after %d of %d micro-batches were begun",
                        z->micro.index + 1, z->micro.count);
    for (size_t u = 0; u < z->layout.unit_count; u++)
        if (z->units[u].grad_open || z->units[u].grad_handed)
            return eng_fail(z, ZERO_E_STATE,
                            "zero_step_in_backward after the gradient of unit %zu (%s) was %s", u,
                            z->units[u].name, z->units[u].grad_open ? "opened" : "handed over");
    return ZERO_OK;
}

/** Hyper-parameters are copied into z->stepping.hyper, which the step will leave there anyway. */
static void begin(zero_ctx *z, const zero_step_args *args)
{
    eng_step_keep(z, args);
    z->stepping.fused = *args;
    z->stepping.fused.hyper = z->stepping.hyper;
    z->stepping.fused.hyper_stride = sizeof *z->stepping.hyper;
    z->stepping.kind = &in_backward;
    z->stepping.early = eng_config_updates_early(&z->config);
}

static zero_result fuse(zero_ctx *z, const zero_step_args *user)
{
    zero_step_args args;
    zero_result r = eng_step_args(z, "zero_step_in_backward", user, &args);
    if (!r)
        r = check_policy(z, &args);
    if (!r)
        r = check_window(z);
    if (r)
        return r;
    eng_before_overwrite(z); // from now on weights change before zero_step()
    begin(z, &args);
    r = z->exec->fuse(z);
    if (!r)
        z->store->fuse(z);
    return r;
}

zero_result zero_step_in_backward(zero_ctx *z, const zero_step_args *args)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_step_in_backward");
    if (!r)
        r = fuse(z, args);
    return eng_leave(z, r);
}

/** The arguments are known; the user's, if given, must be the same. */
static zero_result args_of(zero_ctx *z, const zero_step_args *user, zero_step_args *args)
{
    *args = z->stepping.fused;
    if (!user)
        return ZERO_OK;
    zero_step_args again;
    const zero_result r = eng_step_args(z, "zero_step", user, &again);
    if (r)
        return r;
    bool same = again.scale == args->scale && again.max_norm == args->max_norm;
    for (size_t g = 0; g < z->model.group_count; g++)
        same = same &&
               memcmp(eng_step_hyper(&again, g), &z->stepping.hyper[g], sizeof(zero_hyper)) == 0;
    if (!same)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_step with other arguments than zero_step_in_backward had: give none");
    return ZERO_OK;
}

/** The hand-over lets the unit's owner write the unit: completes all this rank reads of others, and
 * refuses if the program still reads. */
static zero_result hand_over(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit *u = &z->units[unit];
    if (u->holds > 0)
        return eng_fail(z, ZERO_E_STATE,
                        "gradient of unit %d (%s) handed over in a fused step, but the "
                        "unit is gathered: release it first",
                        unit, u->name);
    // From its owners' memory, which they may write when this rank has handed over.
    zero_result r = u->slot >= 0 ? eng_slot_settle(z, &z->gathers.slots[u->slot]) : ZERO_OK;
    return r ? r : eng_publish_wait(z, unit);
}

static zero_result refuse_skip(zero_ctx *z)
{
    return eng_fail(z, ZERO_E_STATE, "zero_skip_step: step %llu is a fused step",
                    (unsigned long long)z->step + 1);
}

static void ended(zero_ctx *z)
{
    z->stepping.kind = &eng_step_after_backward;
    z->stepping.early = false;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].closed = false;
}

static const struct eng_step_kind in_backward = {
    .in_backward = true,
    .args = args_of,
    .hand_over = hand_over,
    .skip = refuse_skip,
    .ended = ended,
};
