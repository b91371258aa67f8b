#include "zero/core/context.h"
#include "zero/core/progress.h"
#include "zero/core/telemetry.h"
#include "zero/param/gather_slots.h"

#include "base/clock.h"

#include <assert.h>

/** Starts what is not there yet; *there: of how many units that come next, one after the other, all
 * is here, or on its way since before. */
static zero_result start(zero_ctx *z, int *there)
{
    const struct eng_trace *replay = &z->gathers.traces->replay;
    int ahead = 0;
    for (size_t i = z->gathers.replay_at; i < replay->count && ahead < z->config.prefetch_units;
         i++) {
        const zero_unit unit = replay->gathers[i].unit;
        if (z->units[unit].holds > 0)
            continue;
        const bool current = eng_slot_current(z, unit);
        if (current && *there == ahead)
            ++*there;
        ahead++;
        if (current || z->units[unit].closed)
            continue;
        int slot;
        zero_result r = eng_slot_choose(z, unit, true, &slot);
        if (r)
            return r;
        if (slot < 0)
            return ZERO_OK;
        r = eng_slot_fill(z, unit, slot);
        if (r)
            return r;
    }
    return ZERO_OK;
}

/** Lets peers have this rank's part of the next units. */
static zero_result post(zero_ctx *z, int count)
{
    const struct eng_trace *replay = &z->gathers.traces->replay;
    zero_result r = ZERO_OK;
    for (size_t i = z->gathers.replay_at; !r && count > 0; i++) {
        const struct eng_unit *unit = &z->units[replay->gathers[i].unit];
        if (unit->holds > 0)
            continue;
        assert(i < replay->count && unit->slot >= 0);
        r = eng_slot_post(z, &z->gathers.slots[unit->slot]);
        count--;
    }
    return r;
}

zero_result eng_prefetch(zero_ctx *z)
{
    int there = 0;
    if (!z->gathers.replaying || z->micro.index < 0)
        return ZERO_OK;
    const zero_result r = start(z, &there);
    const int wanted = eng_config_posted(&z->config, z->config.prefetch_units);
    return r ? r : post(z, there < wanted ? there : wanted);
}

zero_result eng_prefetch_aside(zero_ctx *z)
{
    const bool next =
        z->gathers.replaying && z->gathers.replay_at < z->gathers.traces->replay.count;
    const zero_unit unit = next ? z->gathers.traces->replay.gathers[z->gathers.replay_at].unit : -1;
    const bool waits = next && z->store->staging->stages(z);
    const uint64_t begin = waits ? base_clock_ns() : 0;
    const zero_result r = eng_prefetch(z);
    if (waits)
        eng_stretch(z, CONTROL_GATHER, unit, begin, &z->stats.gather_wait_s);
    return r;
}
