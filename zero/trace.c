// The order in which a micro-batch gathers: recorded in one, replayed ahead in the next.

#include "zero/engine.h"

#include "base/arena.h"

#include <string.h>

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
}

static zero_result grow(zero_ctx *z, struct eng_trace *trace)
{
    const size_t capacity = trace->capacity ? 2 * trace->capacity : 64 + 4 * z->layout.unit_count;
    zero_unit *units = base_calloc(capacity, sizeof *units);
    if (!units)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to record %zu gathers", capacity);
    if (trace->count)
        memcpy(units, trace->units, trace->count * sizeof *units);
    base_free(trace->units);
    trace->units = units;
    trace->capacity = capacity;
    if (z->step >= 2)
        z->late_allocations++;
    return ZERO_OK;
}

zero_result eng_trace_gathered(zero_ctx *z, zero_unit unit)
{
    // Gathers outside a micro-batch belong to no trace.
    if (z->micro < 0 || z->config.stage < 3)
        return ZERO_OK;
    if (z->replaying && z->replay_at < z->replay.count && z->replay.units[z->replay_at] == unit)
        z->replay_at++;
    else
        z->replaying = false;
    if (z->recording.count == z->recording.capacity) {
        const zero_result r = grow(z, &z->recording);
        if (r)
            return r;
    }
    z->recording.units[z->recording.count++] = unit;
    return ZERO_OK;
}

size_t eng_trace_distance(const zero_ctx *z, zero_unit unit)
{
    if (!z->replaying)
        return SIZE_MAX;
    for (size_t i = z->replay_at; i < z->replay.count; i++)
        if (z->replay.units[i] == unit)
            return i - z->replay_at;
    return SIZE_MAX;
}
