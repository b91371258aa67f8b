#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/observers.h"
#include "zero/core/progress.h"
#include "zero/core/telemetry.h"
#include "zero/exec/caller_memory.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"

#include "base/clock.h"

#include <assert.h>

static bool is_held(const struct eng_unit *unit)
{
    return unit->holds > 0;
}

static zero_result too_many_held(zero_ctx *z, zero_unit unit)
{
    char held[ENG_UNIT_LIST];
    eng_list_units(z, is_held, held);
    return eng_fail(z, ZERO_E_LIMIT,
                    "gather of unit %d (%s): %d units are gathered already: %s: release one or "
                    "raise open_units (%d)",
                    unit, z->units[unit].name, z->gathers.held_units, held, z->config.open_units);
}

/** Makes the sharded part of a unit resident. */
static zero_result bring_in(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    if (eng_slot_current(z, unit)) {
        struct eng_gather_slot *slot = &z->gathers.slots[u->slot];
        if (slot->in_flight)
            z->stats.prefetch_hits++;
        else
            z->stats.gather_hits++;
        slot->last_use = z->gathers.seen;
        const zero_result r = eng_slot_post(z, slot);
        return r ? r : eng_slot_settle(z, slot);
    }
    int slot;
    zero_result r = eng_slot_choose(z, unit, false, &slot);
    if (r)
        return r;
    if (slot < 0)
        return too_many_held(z, unit);
    r = eng_slot_fill(z, unit, slot);
    if (!r)
        r = eng_slot_post(z, &z->gathers.slots[slot]);
    return r ? r : eng_slot_settle(z, &z->gathers.slots[slot]);
}

/** Whether the clock is worth a look. */
static bool takes_time(const zero_ctx *z, zero_unit unit)
{
    return eng_config_gathers_wait(&z->config) || z->placement.gather.class_of_unit[unit] >= 0 ||
           z->exec->gathers_take_time || z->job.watch.traced || z->model.borrows;
}

static zero_result gather(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    if (z->units[unit].closed)
        return eng_fail(z, ZERO_E_STATE,
                        "gather of unit %d (%s), whose gradient was handed over in a step that is "
                        "fused",
                        unit, u->name);
    z->gathers.seen++;
    const bool timed = takes_time(z, unit);
    const uint64_t begin = timed ? base_clock_ns() : 0;
    zero_result r = ZERO_OK;
    const bool limited = eng_config_opens_units(&z->config) || z->store->staging->stages(z);
    if (u->holds == 0 && z->gathers.held_units >= z->config.open_units && limited)
        return too_many_held(z, unit);
    if (z->placement.gather.class_of_unit[unit] >= 0)
        r = bring_in(z, unit);
    if (!r)
        r = eng_publish_wait(z, unit);
    if (!r && u->holds == 0)
        r = eng_observe_unit(z, ENG_UNIT_GATHERED, unit);
    if (!r)
        r = z->exec->show(z, unit);
    if (r)
        return r;
    if (u->holds++ == 0)
        z->gathers.held_units++;
    assert(z->gathers.held_units <= (int)z->layout.unit_count);
    r = eng_trace_gathered(z, unit);
    if (!r)
        r = eng_prefetch(z);
    if (timed)
        eng_stretch(z, CONTROL_GATHER, unit, begin, &z->stats.gather_wait_s);
    return r;
}

static zero_result release(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    assert(u->holds >= 0);
    if (u->holds == 0)
        return eng_fail(z, ZERO_E_STATE, "release of unit %d (%s), which is not gathered", unit,
                        u->name);
    zero_result r = z->exec->released(z, unit);
    if (--u->holds == 0) {
        assert(z->gathers.held_units > 0);
        z->gathers.held_units--;
        const zero_result observed = eng_observe_unit(z, ENG_UNIT_RELEASED, unit);
        r = r ? r : observed;
    }
    return r ? r : eng_prefetch_aside(z);
}

zero_result zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_gather", unit, stream);
    if (!r)
        r = gather(z, unit);
    return eng_leave(z, r);
}

zero_result zero_release(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_unit_enter(z, "zero_release", unit, stream);
    if (!r)
        r = release(z, unit);
    return eng_leave(z, r);
}

const void *zero_param_ptr(zero_ctx *z, zero_param param, int32_t index)
{
    if (!z || !z->call.committed)
        return NULL;
    const struct eng_slice *slice = eng_layout_slice(&z->layout, &z->model, param, index);
    if (!slice)
        return NULL;
    const bool windowed = z->placement.buckets[slice->bucket].windowed;
    const bool closed = windowed && z->units[z->layout.buckets[slice->bucket].unit].holds == 0;
    if (closed)
        return z->fatal ? z->exec->dummy_param(z, slice) : NULL;
    const void *borrowed = eng_borrowed(z, slice);
    if (borrowed)
        return borrowed;
    const void *observed = eng_observed_param(z, slice);
    return observed ? observed : z->exec->param(z, slice);
}
