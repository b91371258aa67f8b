#include "zero/engine.h"

#include "base/clock.h"

#include <stdio.h>

zero_result eng_section_gather(zero_ctx *z, size_t section, void *recv)
{
    struct eng_section_io *io = &z->io[section];
    struct coll_request *request = &io->gather[io->gathers_started & 1];
    if (io->gathers_started >= 2) {
        const zero_result r = coll_drain(z->comm, request);
        if (r)
            return eng_comm_failed(z, r);
    }
    const struct eng_section *s = &z->layout.sections[section];
    const struct eng_section_place *place = &z->placement.sections[section];
    const struct coll_all_gather op = {
        .arena = z->params_arena,
        .offset = (size_t)(eng_home(z, section, place->own_first) - z->params),
        .recv = recv,
        .spans = s->bytes,
        .label = {.name = "unit", .number = (uint32_t)s->unit},
    };
    io->gathers_started++;
    const zero_result r = coll_all_gather_start(z->comm, &op, request);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

zero_result eng_section_gather_wait(zero_ctx *z, size_t section)
{
    struct eng_section_io *io = &z->io[section];
    const zero_result r = coll_wait(z->comm, &io->gather[(io->gathers_started - 1) & 1]);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

bool eng_gather_current(const zero_ctx *z, zero_unit unit)
{
    const int slot = z->units[unit].slot;
    return slot >= 0 && z->gather_slots[slot].version == z->version;
}

/** Calls `act` for each section of a unit that is gathered into slots. */
static zero_result each_sharded(zero_ctx *z, zero_unit unit, const struct eng_gather_slot *slot,
                                zero_result (*act)(zero_ctx *z, size_t section, void *recv))
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_section; s < u->first_section + u->section_count; s++) {
        if (!eng_section_sharded(&z->layout.sections[s], z->config.stage))
            continue;
        const zero_result r =
            act(z, s, z->slots + slot->offset + z->placement.sections[s].slot_offset);
        if (r)
            return r;
    }
    return ZERO_OK;
}

static zero_result wait_section(zero_ctx *z, size_t section, void *recv)
{
    (void)recv;
    return eng_section_gather_wait(z, section);
}

/** Completes what is under way into a slot. */
static zero_result settle(zero_ctx *z, struct eng_gather_slot *slot)
{
    if (!slot->in_flight)
        return ZERO_OK;
    slot->in_flight = false;
    return each_sharded(z, slot->unit, slot, wait_section);
}

zero_result eng_gather_start(zero_ctx *z, zero_unit unit, int index)
{
    struct eng_gather_slot *slot = &z->gather_slots[index];
    slot->unit = unit;
    slot->version = z->version;
    slot->in_flight = true;
    slot->last_use = z->gathers_seen;
    z->units[unit].slot = index;
    z->stats.gathers++;
    return each_sharded(z, unit, slot, eng_section_gather);
}

/** Whether slot a should go before slot b: old values first, then what is needed last, then what
 * was used longest ago. */
static bool goes_before(const zero_ctx *z, const struct eng_gather_slot *a,
                        const struct eng_gather_slot *b)
{
    const bool a_old = a->unit < 0 || a->version != z->version;
    const bool b_old = b->unit < 0 || b->version != z->version;
    if (a_old || b_old)
        return a_old && !b_old;
    const size_t a_next = eng_trace_distance(z, a->unit), b_next = eng_trace_distance(z, b->unit);
    return a_next != b_next ? a_next > b_next : a->last_use < b->last_use;
}

int eng_gather_slot_for(zero_ctx *z, zero_unit unit, bool prefetch, zero_result *result)
{
    const struct eng_slot_class *class =
        &z->placement.gather.classes[z->placement.gather.class_of_unit[unit]];
    int best = -1;
    *result = ZERO_OK;
    for (int i = class->first_slot; i < class->first_slot + class->slots; i++) {
        const struct eng_gather_slot *slot = &z->gather_slots[i];
        if (slot->unit >= 0 && z->units[slot->unit].holds > 0 && z->units[slot->unit].slot == i)
            continue;
        if (best < 0 || goes_before(z, slot, &z->gather_slots[best]))
            best = i;
    }
    if (best < 0)
        return -1;
    struct eng_gather_slot *slot = &z->gather_slots[best];
    const bool useful = slot->unit >= 0 && slot->version == z->version;
    if (prefetch && useful && eng_trace_distance(z, slot->unit) <= eng_trace_distance(z, unit))
        return -1;
    *result = settle(z, slot);
    if (slot->unit >= 0 && z->units[slot->unit].slot == best)
        z->units[slot->unit].slot = -1;
    slot->unit = -1;
    return best;
}

zero_result eng_gather_quiesce(zero_ctx *z)
{
    for (int i = 0; i < z->placement.gather.slot_count; i++) {
        const zero_result r = settle(z, &z->gather_slots[i]);
        if (r)
            return r;
    }
    return ZERO_OK;
}

static zero_result too_many_held(zero_ctx *z, zero_unit unit)
{
    char held[160];
    size_t used = 0;
    held[0] = '\0';
    for (size_t u = 0; u < z->layout.unit_count && used + 16 < sizeof held; u++)
        if (z->units[u].holds > 0)
            used += (size_t)snprintf(held + used, sizeof held - used, " %zu", u);
    return eng_fail(z, ZERO_E_LIMIT,
                    "gather of unit %d: %d units are gathered already (%s ): release one or raise "
                    "open_units",
                    unit, z->held_units, held + (held[0] == ' '));
}

/** Makes the sharded part of a unit resident. */
static zero_result bring_in(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    if (eng_gather_current(z, unit)) {
        struct eng_gather_slot *slot = &z->gather_slots[u->slot];
        if (slot->in_flight)
            z->stats.prefetch_hits++;
        else
            z->stats.gather_hits++;
        slot->last_use = z->gathers_seen;
        return settle(z, slot);
    }
    zero_result r;
    // An outdated copy of the unit itself is as good a place as any.
    const int slot = eng_gather_slot_for(z, unit, false, &r);
    if (r)
        return r;
    if (slot < 0)
        return too_many_held(z, unit);
    r = eng_gather_start(z, unit, slot);
    return r ? r : settle(z, &z->gather_slots[slot]);
}

zero_result eng_gather(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    z->gathers_seen++;
    const double begin = base_clock_s();
    zero_result r = ZERO_OK;
    if (u->holds == 0 && z->held_units >= z->config.open_units && z->config.stage == 3)
        return too_many_held(z, unit);
    if (z->placement.gather.class_of_unit[unit] >= 0)
        r = bring_in(z, unit);
    if (!r)
        r = eng_publish_wait(z, unit);
    if (r)
        return r;
    if (u->holds++ == 0)
        z->held_units++;
    r = eng_trace_gathered(z, unit);
    if (!r)
        r = eng_prefetch(z);
    z->stats.gather_wait_s += base_clock_s() - begin;
    return r;
}

zero_result eng_release(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    if (u->holds == 0)
        return eng_fail(z, ZERO_E_STATE, "release of unit %d, which is not gathered", unit);
    if (--u->holds == 0)
        z->held_units--;
    return eng_prefetch(z);
}

zero_result zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_gather");
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = eng_check_unit(z, unit);
    if (!r)
        r = eng_gather(z, unit);
    return eng_leave(z, r);
}

zero_result zero_release(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_release");
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = eng_check_unit(z, unit);
    if (!r)
        r = eng_release(z, unit);
    return eng_leave(z, r);
}

const void *zero_param_ptr(zero_ctx *z, zero_param param, int32_t index)
{
    if (!z || !z->committed)
        return NULL;
    const struct eng_slice *slice = eng_layout_slice(&z->layout, &z->model, param, index);
    if (!slice)
        return NULL;
    const struct eng_section *section = &z->layout.sections[slice->section];
    if (!eng_section_sharded(section, z->config.stage))
        return eng_home(z, slice->section, slice->granule);
    const struct eng_unit *unit = &z->units[section->unit];
    if (unit->holds == 0 || unit->slot < 0)
        return NULL;
    return z->slots + z->gather_slots[unit->slot].offset +
           z->placement.sections[slice->section].slot_offset +
           slice->granule * ENG_GRANULE * eng_dtype_size(section->dtype);
}
