// Micro-batches: which one is computed, and what must be true between two.

#include "zero/step/micro_batch.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"
#include "zero/model/versioned.h"
#include "zero/param/gather_slots.h"
#include "zero/step/evaluation.h"
#include "zero/step/gradient.h"

#include <assert.h>

int32_t zero_micro_total(const zero_ctx *z)
{
    return z ? eng_micro_total(z) : 0;
}

int32_t zero_micro_count(const zero_ctx *z)
{
    return z ? eng_micro_count(z) : 0;
}

/** Global index of this rank's micro-batch in local round `round`, which has begun. */
static uint64_t micro_index(const zero_ctx *z, int round)
{
    if (eng_micro_repeats(z)) // the first one of the next rank
        return (uint64_t)((z->config.rank + 1) % z->config.world);
    return (uint64_t)round * (uint64_t)z->config.world + (uint64_t)z->config.rank;
}

/** What must be true when a micro-batch ends. */
zero_result eng_micro_check(zero_ctx *z, const char *call)
{
    const zero_result r = eng_grad_flush(z);
    if (r)
        return r;
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const struct eng_unit *unit = &z->units[u];
        if (unit->grad_open)
            return eng_fail(z, ZERO_E_STATE,
                            "%s: the gradient of unit %zu (%s) is open: zero_grad_done() is due",
                            call, u, unit->name);
        if (unit->holds > 0)
            return eng_fail(z, ZERO_E_STATE, "%s: unit %zu (%s) is gathered: zero_release() is due",
                            call, u, unit->name);
        if (z->micro.index >= 0 && !z->micro.evaluation.active && unit->trains &&
            !unit->grad_handed)
            return eng_fail(z, ZERO_E_STATE,
                            "%s: no gradient of unit %zu (%s) was handed over in micro-batch %d: "
                            "zero_grad_done(), or zero_grad_none(), is due",
                            call, u, unit->name, z->micro.index);
    }
    if (z->micro.index > 0 && z->micro.metric_next < z->micro.metrics.count)
        return eng_fail(z, ZERO_E_STATE, "%s: metric %s was not given in micro-batch %d", call,
                        z->micro.metrics.list[z->micro.metric_next].name, z->micro.index);
    return ZERO_OK;
}

zero_result eng_outside(zero_ctx *z, const char *call)
{
    zero_result r = eng_not_inside(z, call);
    if (!r)
        r = z->exec->take_in(z, 0);
    return r ? r : z->exec->prove(z);
}

zero_result eng_between_steps(zero_ctx *z, const char *call)
{
    zero_result r = eng_outside(z, call);
    if (!r)
        r = eng_micro_check(z, call);
    return r ? r : z->exec->settle(z);
}

/** The first micro-batch of a step or an evaluation begins. */
static zero_result start_over(zero_ctx *z)
{
    z->micro.metrics.count = 0;
    if (z->micro.evaluation.active)
        return ZERO_OK;
    base_exact_sum_init(&z->gradients.squares);
    z->gradients.squares_overflow = false;
    z->gradients.bad = (struct eng_bad){.micro = UINT64_MAX};
    return z->exec->begin(z);
}

static zero_result micro_begin(zero_ctx *z, int32_t i)
{
    if (i != z->micro.index + 1 || i >= eng_micro_count(z))
        return eng_fail(z, ZERO_E_STATE, "micro-batch %d begun, but %d of %d were begun so far", i,
                        z->micro.index + 1, eng_micro_count(z));
    zero_result r = eng_micro_check(z, "zero_micro_begin");
    if (!r && z->micro.evaluation.active && i > 0)
        r = eng_evaluation_listen(z);
    if (r)
        return r;
    assert(z->gradients.open == 0 && z->gathers.held_units == 0);
    z->micro.index = i;
    z->micro.metric_next = 0;
    r = i == 0 ? start_over(z) : ZERO_OK;
    if (r)
        return r;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].grad_handed = z->units[u].closed = false;
    eng_trace_begin(z);
    return eng_prefetch_aside(z);
}

zero_result zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_micro_begin");
    if (!r && micro && micro->struct_size < sizeof micro->struct_size)
        r = eng_fail(z, ZERO_E_INVALID, "zero_micro.struct_size is not set");
    if (!r)
        r = micro_begin(z, i);
    if (!r && micro) {
        const uint64_t index = micro_index(z, i);
        const uint64_t total = (uint64_t)eng_micro_total(z);
        const zero_micro full = {
            .struct_size = micro->struct_size,
            .counts = index < total,
            .step = z->step,
            .index = index < total ? index : index % total,
        };
        eng_struct_give(micro, &full, sizeof full);
    }
    return eng_leave(z, r);
}
