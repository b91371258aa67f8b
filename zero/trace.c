// The order in which a micro-batch gathers: recorded in one, replayed ahead in the next.

#include "zero/engine.h"

#include "base/arena.h"

#include <string.h>

/** Links the gathers of each unit in the replay. */
static void link_replay(zero_ctx *z)
{
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].next = SIZE_MAX;
    for (size_t i = z->replay.count; i-- > 0;) {
        struct eng_gather *gather = &z->replay.gathers[i];
        gather->again = z->units[gather->unit].next;
        z->units[gather->unit].next = i;
    }
}

void eng_trace_begin(zero_ctx *z)
{
    // What was recorded becomes what is replayed, unless the micro-batch gathered nothing.
    if (z->recording.count > 0) {
        const struct eng_trace last = z->recording;
        z->recording = z->replay;
        z->replay = last;
    }
    z->recording.count = 0;
    z->replay_at = 0;
    z->replaying = z->replay.count > 0 && z->config.prefetch_units > 0;
    if (z->replaying)
        link_replay(z);
}

static zero_result grow(zero_ctx *z, struct eng_trace *trace)
{
    const size_t capacity = trace->capacity ? 2 * trace->capacity : 64 + 4 * z->layout.unit_count;
    struct eng_gather *gathers = base_calloc(capacity, sizeof *gathers);
    if (!gathers)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to record %zu gathers", capacity);
    if (trace->count)
        memcpy(gathers, trace->gathers, trace->count * sizeof *gathers);
    base_free(trace->gathers);
    trace->gathers = gathers;
    trace->capacity = capacity;
    if (z->step >= 2)
        z->stats.step_allocations++;
    return ZERO_OK;
}

zero_result eng_trace_gathered(zero_ctx *z, zero_unit unit)
{
    // Gathers outside a micro-batch belong to no trace, nor do units that need no slot.
    if (z->micro < 0 || z->placement.gather.class_of_unit[unit] < 0)
        return ZERO_OK;
    if (z->replaying && z->units[unit].next == z->replay_at)
        z->units[unit].next = z->replay.gathers[z->replay_at++].again;
    else
        z->replaying = false;
    if (z->recording.count == z->recording.capacity) {
        const zero_result r = grow(z, &z->recording);
        if (r)
            return r;
    }
    z->recording.gathers[z->recording.count++] = (struct eng_gather){.unit = unit};
    return ZERO_OK;
}

size_t eng_trace_distance(const zero_ctx *z, zero_unit unit)
{
    const size_t next = z->units[unit].next;
    return z->replaying && next != SIZE_MAX ? next - z->replay_at : SIZE_MAX;
}
