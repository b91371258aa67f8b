// The order in which a micro-batch gathers: recorded in one, replayed ahead in the next of its
// kind, be it of a step or of an evaluation.

#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/param/gather_slots.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

/** Links the gathers of each unit in the replay. */
static void link_replay(zero_ctx *z)
{
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].next = SIZE_MAX;
    for (size_t i = z->gathers.traces->replay.count; i-- > 0;) {
        struct eng_gather *gather = &z->gathers.traces->replay.gathers[i];
        gather->again = z->units[gather->unit].next;
        assert(gather->again > i);
        z->units[gather->unit].next = i;
    }
}

void eng_trace_begin(zero_ctx *z)
{
    struct eng_traces *traces =
        z->micro.evaluation.active ? &z->gathers.evaluation_traces : &z->gathers.step_traces;
    assert(traces->recording.count <= traces->capacity);
    // What was recorded becomes what is replayed, unless the micro-batch gathered nothing.
    if (traces->recording.count > 0) {
        const struct eng_trace last = traces->recording;
        traces->recording = traces->replay;
        traces->replay = last;
    }
    traces->recording.count = 0;
    z->gathers.traces = traces;
    z->gathers.replay_at = 0;
    z->gathers.replaying = traces->replay.count > 0 && z->config.prefetch_units > 0;
    if (z->gathers.replaying)
        link_replay(z);
}

static void move(struct eng_trace *trace, struct eng_gather *gathers)
{
    if (trace->count)
        memcpy(gathers, trace->gathers, trace->count * sizeof *gathers);
    base_free(trace->gathers);
    trace->gathers = gathers;
}

/** Makes room in both traces, which change places. */
static zero_result grow(zero_ctx *z, struct eng_traces *traces)
{
    const size_t capacity = traces->capacity ? 2 * traces->capacity : 64 + 4 * z->layout.unit_count;
    assert(traces->recording.count <= traces->capacity && traces->replay.count <= capacity);
    struct eng_gather *recording = base_calloc(capacity, sizeof *recording);
    struct eng_gather *replay = base_calloc(capacity, sizeof *replay);
    if (!recording || !replay) {
        base_free(recording);
        base_free(replay);
        return eng_fail(z, ZERO_E_NOMEM, "no memory to record %zu gathers", capacity);
    }
    move(&traces->recording, recording);
    move(&traces->replay, replay);
    traces->capacity = capacity;
    if (z->step >= 2 && !z->micro.evaluation.active)
        z->stats.step_allocations += 2;
    return ZERO_OK;
}

zero_result eng_trace_gathered(zero_ctx *z, zero_unit unit)
{
    // Gathers outside a micro-batch belong to no trace, nor do units that need no slot.
    if (z->micro.index < 0 || z->placement.gather.class_of_unit[unit] < 0)
        return ZERO_OK;
    struct eng_traces *traces = z->gathers.traces;
    if (z->gathers.replaying && z->units[unit].next == z->gathers.replay_at)
        z->units[unit].next = traces->replay.gathers[z->gathers.replay_at++].again;
    else
        z->gathers.replaying = false;
    assert(z->gathers.replay_at <= traces->replay.count);
    if (traces->recording.count == traces->capacity) {
        const zero_result r = grow(z, traces);
        if (r)
            return r;
    }
    assert(traces->recording.count < traces->capacity);
    traces->recording.gathers[traces->recording.count++] = (struct eng_gather){.unit = unit};
    return ZERO_OK;
}

size_t eng_trace_distance(const zero_ctx *z, zero_unit unit)
{
    const size_t next = z->units[unit].next;
    assert(!z->gathers.replaying || next >= z->gathers.replay_at);
    return z->gathers.replaying && next != SIZE_MAX ? next - z->gathers.replay_at : SIZE_MAX;
}

void eng_trace_free(zero_ctx *z)
{
    struct eng_traces *const kinds[] = {&z->gathers.step_traces, &z->gathers.evaluation_traces};
    for (int k = 0; k < 2; k++) {
        base_free(kinds[k]->recording.gathers);
        base_free(kinds[k]->replay.gathers);
    }
}
