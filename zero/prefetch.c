#include "zero/engine.h"

#include "base/clock.h"

/** Starts what is not there yet; *first: the slot of the unit that comes first, NULL if it has only
 * just been started, or none comes. */
static zero_result start(zero_ctx *z, struct eng_gather_slot **first)
{
    const struct eng_trace *replay = &z->traces->replay;
    int ahead = 0;
    for (size_t i = z->replay_at; i < replay->count && ahead < z->config.prefetch_units; i++) {
        const zero_unit unit = replay->gathers[i].unit;
        if (z->units[unit].holds > 0)
            continue;
        ahead++;
        const bool current = eng_slot_current(z, unit);
        if (current && ahead == 1)
            *first = &z->gather_slots[z->units[unit].slot];
        if (current || eng_ahead_closed(z, unit))
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

zero_result eng_prefetch(zero_ctx *z)
{
    struct eng_gather_slot *first = NULL;
    if (!z->replaying || z->micro < 0)
        return ZERO_OK;
    const zero_result r = start(z, &first);
    // With a unit more on its way from the file the next one need not be waited for by peers, where
    // there are any who want it.
    const bool wanted = z->config.world > 1 && z->config.stage > 0 && z->config.prefetch_units > 1;
    return !r && first && wanted ? eng_slot_post(z, first) : r;
}

zero_result eng_prefetch_aside(zero_ctx *z)
{
    const bool next = z->replaying && z->replay_at < z->traces->replay.count;
    const zero_unit unit = next ? z->traces->replay.gathers[z->replay_at].unit : -1;
    const bool waits = next && z->config.params_nvme;
    const uint64_t begin = waits ? base_clock_ns() : 0;
    const zero_result r = eng_prefetch(z);
    if (waits)
        eng_stretch(z, CONTROL_GATHER, unit, begin, &z->stats.gather_wait_s);
    return r;
}
