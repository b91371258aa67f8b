#include "zero/step/gradient.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/link_table.h"
#include "zero/core/observers.h"
#include "zero/core/step_kind.h"
#include "zero/core/telemetry.h"
#include "zero/exec/caller_memory.h"
#include "zero/exec/local_accumulation.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/zero_step.h"

#include "base/clock.h"

#include <assert.h>

/** Waits until no peer reads the unit's last gradient. */
static zero_result drain_unit(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        if (!z->io[s].reduce_started)
            continue;
        const zero_result r = coll_drain(z->comm, &z->io[s].reduce);
        if (r)
            return eng_comm_failed(z, r);
        z->io[s].reduce_started = false;
    }
    return ZERO_OK;
}

static bool is_open(const struct eng_unit *unit)
{
    return unit->grad_open;
}

static zero_result too_many_open(zero_ctx *z, zero_unit unit)
{
    char open[ENG_UNIT_LIST];
    eng_list_units(z, is_open, open);
    return eng_fail(z, ZERO_E_LIMIT,
                    "gradient of unit %d (%s): %d gradients are open already: %s: hand one over or "
                    "raise grad_units (%d)",
                    unit, z->units[unit].name, z->gradients.open, open, z->config.grad_units);
}

/** A slot of the unit's class that is not open, the one handed over longest ago; -1: none. */
static int oldest_slot(const zero_ctx *z, zero_unit unit)
{
    const struct eng_slot_class *class =
        &z->placement.grads.classes[z->placement.grads.class_of_unit[unit]];
    assert(z->placement.grads.class_of_unit[unit] >= 0);
    int best = -1;
    for (int i = class->first_slot; i < class->first_slot + class->slots; i++) {
        const struct eng_grad_slot *slot = &z->gradients.slots[i];
        if (!slot->open && (best < 0 || slot->handed < z->gradients.slots[best].handed))
            best = i;
    }
    return best;
}

/** Chooses a slot and makes sure that what it held before is gone from it. */
static zero_result take_slot(zero_ctx *z, zero_unit unit, bool raw, int *taken)
{
    *taken = z->gradients.shared ? oldest_slot(z, unit) : eng_local_slot(z, unit, raw);
    if (*taken < 0)
        return too_many_open(z, unit);
    zero_result r = z->publication.grads_lent ? eng_sums_reclaim(z) : ZERO_OK;
    if (!r && z->gradients.slots[*taken].unit >= 0)
        r = drain_unit(z, z->gradients.slots[*taken].unit);
    return r ? r : drain_unit(z, unit);
}

static zero_result open_gradient(zero_ctx *z, zero_unit unit, enum eng_grad_purpose purpose)
{
    struct eng_unit *u = &z->units[unit];
    if (z->micro.index < 0 || z->micro.evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "gradient of unit %d (%s) opened %s", unit, u->name,
                        z->micro.evaluation.active
                            ? "in an evaluation"
                            : "outside a micro-batch: zero_micro_begin() is due");
    if (z->placement.grads.class_of_unit[unit] < 0)
        return eng_fail(z, ZERO_E_STATE,
                        "unit %d (%s) has no gradient: each of its tensors was registered frozen",
                        unit, u->name);
    if (u->grad_open || u->grad_handed)
        return eng_fail(z, ZERO_E_STATE, "gradient of unit %d (%s) is %s already in micro-batch %d",
                        unit, u->name, u->grad_open ? "open" : "handed over", z->micro.index);
    if (z->gradients.open >= z->gradients.most_open)
        return too_many_open(z, unit);
    const uint64_t begin = base_clock_ns();
    int taken = -1;
    zero_result r = take_slot(z, unit, purpose == ENG_GRAD_WRITE, &taken);
    if (!r)
        r = z->store->sums->expect(z, unit);
    if (r)
        return r;
    eng_stretch(z, CONTROL_REDUCE, unit, begin, &z->stats.reduce_wait_s);
    struct eng_grad_slot *slot = &z->gradients.slots[taken];
    const bool first = eng_grad_begins_sum(z), again = slot->unit == unit && slot->clean;
    if (first) {
        slot->unit = unit;
        u->sum_slot = taken;
    }
    assert(!slot->open);
    slot->open = true;
    u->grad_slot = taken;
    u->grad_open = true;
    z->gradients.open++;
    const struct eng_grad_opening opening = {
        .purpose = purpose,
        .keeps = !first && taken == u->sum_slot,
        .again = again,
    };
    slot->clean = true;
    r = z->exec->grad_open(z, unit, &opening);
    return r ? r : eng_observe_grad_opened(z, unit, purpose == ENG_GRAD_WRITE);
}

/** Sends the gradient of a unit that is ready on its way, or the sum that it was the last one of.
 */
static zero_result reduce(zero_ctx *z, zero_unit unit)
{
    const uint64_t begin = base_clock_ns();
    const bool ends = eng_grad_ends_sum(z);
    zero_result r = eng_observe_unit(z, ENG_UNIT_GRAD_ARRIVED, unit);
    if (!r)
        r = z->exec->grad_add(z, unit);
    if (!r && ends)
        r = z->store->sums->begin(z, unit);
    if (!r && ends)
        r = z->link->reduce(z, unit);
    if (!r && (r = coll_progress(z->comm)) != ZERO_OK)
        r = eng_comm_failed(z, r);
    if (!r)
        z->store->sums->progress(z);
    if (!r)
        r = z->store->update_fused(z);
    eng_stretch(z, CONTROL_REDUCE, unit, begin, &z->stats.reduce_wait_s);
    return r ? r : z->exec->show_updated(z, unit);
}

zero_result eng_grad_finish(zero_ctx *z)
{
    const uint64_t begin = base_clock_ns();
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        if (!z->io[s].reduce_started)
            continue;
        const zero_result r = coll_wait(z->comm, &z->io[s].reduce);
        if (r)
            return eng_comm_failed(z, r);
        z->store->sums->progress(z);
    }
    const zero_result r = z->store->sums->finish(z);
    eng_stretch(z, CONTROL_REDUCE, -1, begin, &z->stats.reduce_wait_s);
    return r;
}

void eng_grad_doubt(zero_ctx *z)
{
    for (int i = 0; i < z->placement.grads.slot_count; i++)
        z->gradients.slots[i].clean = false;
}

zero_result eng_grad_flush(zero_ctx *z)
{
    zero_unit ready;
    zero_result r = z->exec->grad_flush(z, &ready);
    if (!r && ready >= 0)
        r = reduce(z, ready);
    if (!r && ready >= 0)
        r = eng_prefetch_aside(z);
    return r ? r : z->exec->metric_values(z);
}

/** The program is done with the unit's gradient. */
static zero_result close_gradient(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    zero_unit ready;
    assert(u->grad_open && z->gradients.open > 0);
    u->grad_open = false;
    u->grad_handed = true;
    u->closed = z->stepping.kind->in_backward;
    z->gradients.open--;
    zero_result r = eng_observe_unit(z, ENG_UNIT_GRAD_DONE, unit);
    if (!r)
        r = z->exec->grad_close(z, unit, &ready);
    if (!r && ready >= 0)
        r = reduce(z, ready);
    return r ? r : eng_prefetch_aside(z);
}

static zero_result hand_over(zero_ctx *z, zero_unit unit)
{
    if (!z->units[unit].grad_open)
        return eng_fail(z, ZERO_E_STATE, "gradient of unit %d (%s) handed over, but it is not open",
                        unit, z->units[unit].name);
    const zero_result r = z->stepping.kind->hand_over(z, unit);
    if (r)
        return r;
    eng_take_gradients(z, unit);
    return close_gradient(z, unit);
}

/** Zeros: what was opened, with nothing added. */
static zero_result hand_over_none(zero_ctx *z, zero_unit unit)
{
    zero_result r = z->stepping.kind->hand_over(z, unit);
    if (!r)
        r = open_gradient(z, unit, ENG_GRAD_NONE);
    return r ? r : close_gradient(z, unit);
}

zero_result zero_grad_open(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_grad_open", unit, stream);
    if (!r)
        r = open_gradient(z, unit, ENG_GRAD_ADD);
    return eng_leave(z, r);
}

zero_result zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_grad_open_raw", unit, stream);
    if (!r)
        r = open_gradient(z, unit, ENG_GRAD_WRITE);
    return eng_leave(z, r);
}

zero_result zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_grad_done", unit, stream);
    if (!r)
        r = hand_over(z, unit);
    return eng_leave(z, r);
}

zero_result zero_grad_none(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_grad_none", unit, stream);
    if (!r)
        r = hand_over_none(z, unit);
    return eng_leave(z, r);
}

void *zero_grad_ptr(zero_ctx *z, zero_param param, int32_t index)
{
    if (!z || !z->call.committed)
        return NULL;
    const struct eng_slice *slice = eng_layout_slice(&z->layout, &z->model, param, index);
    if (!slice)
        return NULL;
    const struct eng_bucket *bucket = &z->layout.buckets[slice->bucket];
    const struct eng_unit *unit = &z->units[bucket->unit];
    if (bucket->frozen)
        return NULL;
    if (!unit->grad_open)
        return z->fatal ? z->exec->dummy_grad(z) : NULL;
    void *own = eng_own_gradient(z, slice);
    if (own)
        return own;
    void *observed = eng_observed_grad(z, slice);
    if (observed)
        return observed;
    return z->exec->grads(z) + z->gradients.slots[unit->grad_slot].offset +
           z->placement.buckets[slice->bucket].grad_offset +
           slice->granule * BASE_GRANULE * eng_dtype_size(bucket->grad_dtype);
}
