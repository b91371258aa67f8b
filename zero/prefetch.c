#include "zero/engine.h"

zero_result eng_prefetch(zero_ctx *z)
{
    if (!z->replaying || z->micro < 0)
        return ZERO_OK;
    const struct eng_trace *replay = &z->traces->replay;
    int ahead = 0;
    for (size_t i = z->replay_at; i < replay->count && ahead < z->config.prefetch_units; i++) {
        const zero_unit unit = replay->gathers[i].unit;
        if (z->units[unit].holds > 0)
            continue;
        ahead++;
        if (eng_slot_current(z, unit) || eng_ahead_closed(z, unit))
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
