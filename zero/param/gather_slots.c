// The slots that gathered units live in: what is where, what is on its way, what goes first.

#include "zero/param/gather_slots.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/link_table.h"
#include "zero/link/bucket_gather.h"

#include <assert.h>

bool eng_slot_current(const zero_ctx *z, zero_unit unit)
{
    const int slot = z->units[unit].slot;
    return slot >= 0 && z->gathers.slots[slot].version == z->units[unit].version;
}

/** The slot has values, and they are the newest of its unit. */
static bool has_current(const zero_ctx *z, const struct eng_gather_slot *slot)
{
    return slot->unit >= 0 && slot->version == z->units[slot->unit].version;
}

/** Calls `act` for each bucket of a unit that is gathered into slots. */
static zero_result each_sharded(zero_ctx *z, zero_unit unit, const struct eng_gather_slot *slot,
                                zero_result (*act)(zero_ctx *z, size_t bucket, void *recv))
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        if (z->placement.buckets[s].residence != ENG_SHARDED)
            continue;
        const zero_result r =
            act(z, s, z->memory.slots + slot->offset + z->placement.buckets[s].slot_offset);
        if (r)
            return r;
    }
    return ZERO_OK;
}

static zero_result wait_bucket(zero_ctx *z, size_t bucket, void *recv)
{
    (void)recv;
    return eng_bucket_gather_wait(z, bucket);
}

static zero_result drain_bucket(zero_ctx *z, size_t bucket, void *recv)
{
    (void)recv;
    return eng_bucket_gather_drain(z, bucket);
}

/** Forgets whose values a slot has, or was to have. */
static void empty(zero_ctx *z, struct eng_gather_slot *slot)
{
    assert(!slot->in_flight && !slot->staging);
    if (slot->unit >= 0 && z->units[slot->unit].slot == slot - z->gathers.slots)
        z->units[slot->unit].slot = -1;
    slot->unit = -1;
}

zero_result eng_slot_settle(zero_ctx *z, struct eng_gather_slot *slot)
{
    if (!slot->in_flight)
        return ZERO_OK;
    slot->in_flight = false;
    if (!slot->staging)
        return each_sharded(z, slot->unit, slot, wait_bucket);
    slot->staging = false;
    const zero_result r = z->store->staging->wait(z, slot->unit);
    empty(z, slot);
    return r;
}

zero_result eng_slot_fill(zero_ctx *z, zero_unit unit, int index)
{
    struct eng_gather_slot *slot = &z->gathers.slots[index];
    assert(slot->unit < 0 && !slot->in_flight && !slot->keeps);
    slot->unit = unit;
    slot->version = z->units[unit].version;
    slot->in_flight = true;
    slot->staging = z->store->staging->stages(z);
    slot->last_use = z->gathers.seen;
    z->units[unit].slot = index;
    z->stats.gathers++;
    if (!slot->staging)
        return z->link->gather(z, unit, index);
    z->store->staging->start(z, unit, z->memory.slots + slot->offset);
    return ZERO_OK;
}

zero_result eng_slot_post(zero_ctx *z, struct eng_gather_slot *slot)
{
    if (!slot->staging)
        return ZERO_OK;
    assert(slot->in_flight);
    const zero_result r = z->store->staging->wait(z, slot->unit);
    slot->staging = false;
    return r ? r : z->link->gather(z, slot->unit, (int)(slot - z->gathers.slots));
}

/** Whether slot a should go before slot b: old values first, then what is needed last, then what
 * was used longest ago. */
static bool goes_before(const zero_ctx *z, const struct eng_gather_slot *a,
                        const struct eng_gather_slot *b)
{
    const bool a_old = !has_current(z, a), b_old = !has_current(z, b);
    if (a_old || b_old)
        return a_old && !b_old;
    const size_t a_next = eng_trace_distance(z, a->unit), b_next = eng_trace_distance(z, b->unit);
    return a_next != b_next ? a_next > b_next : a->last_use < b->last_use;
}

zero_result eng_slot_choose(zero_ctx *z, zero_unit unit, bool prefetch, int *chosen)
{
    const struct eng_slot_class *class =
        &z->placement.gather.classes[z->placement.gather.class_of_unit[unit]];
    int best = -1;
    assert(z->placement.gather.class_of_unit[unit] >= 0);
    *chosen = -1;
    for (int i = class->first_slot; i < class->first_slot + class->slots; i++) {
        const struct eng_gather_slot *slot = &z->gathers.slots[i];
        if (slot->unit >= 0 && z->units[slot->unit].holds > 0 && z->units[slot->unit].slot == i)
            continue;
        if (best < 0 || goes_before(z, slot, &z->gathers.slots[best]))
            best = i;
    }
    if (best < 0)
        return ZERO_OK;
    struct eng_gather_slot *slot = &z->gathers.slots[best];
    if (prefetch && has_current(z, slot) &&
        eng_trace_distance(z, slot->unit) <= eng_trace_distance(z, unit))
        return ZERO_OK;
    zero_result r = eng_slot_settle(z, slot);
    if (!r)
        r = z->exec->settle_slot(z, best);
    // Peers may still read there what this rank has given them, but for what is older than the
    // unit's values in another slot: all ranks had that before there were newer ones.
    if (!r && z->store->staging->stages(z) && slot->unit >= 0 && z->units[slot->unit].slot == best)
        r = each_sharded(z, slot->unit, slot, drain_bucket);
    empty(z, slot);
    *chosen = best;
    return r;
}

zero_result eng_slots_settle(zero_ctx *z)
{
    for (int i = 0; i < z->placement.gather.slot_count; i++) {
        const zero_result r = eng_slot_settle(z, &z->gathers.slots[i]);
        if (r)
            return r;
    }
    return ZERO_OK;
}

/** Whether an update makes all of a unit that is gathered: the same on all ranks. */
static bool is_made(const zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    bool made = z->units[unit].holds == 0 && z->placement.gather.class_of_unit[unit] >= 0;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        made = made && (z->io[s].trains || !z->placement.buckets[s].staged);
    return made;
}

static bool keeps(const zero_ctx *z, zero_unit unit)
{
    return z->units[unit].slot >= 0 && z->gathers.slots[z->units[unit].slot].keeps;
}

static zero_result keep_unit(zero_ctx *z, zero_unit unit)
{
    int chosen;
    const zero_result r = eng_slot_choose(z, unit, false, &chosen);
    if (r || chosen < 0)
        return r;
    struct eng_gather_slot *slot = &z->gathers.slots[chosen];
    // With the version that is about to be an old one, so that the next unit takes another slot.
    slot->unit = unit;
    slot->version = z->units[unit].version;
    slot->last_use = z->gathers.seen;
    slot->keeps = true;
    z->units[unit].slot = chosen;
    return ZERO_OK;
}

zero_result eng_slots_keep(zero_ctx *z)
{
    const struct eng_trace *next = &z->gathers.step_traces.recording;
    zero_result r = ZERO_OK;
    int units = 0;
    if (!z->store->staging->stages(z) || !eng_config_shards_params(&z->config) ||
        !z->gathers.replaying)
        return ZERO_OK;
    for (size_t i = 0; !r && i < next->count && units < z->config.prefetch_units; i++) {
        const zero_unit unit = next->gathers[i].unit;
        if (keeps(z, unit) || !is_made(z, unit))
            continue;
        r = keep_unit(z, unit);
        units++;
    }
    return r;
}

void eng_slots_kept(zero_ctx *z)
{
    for (int i = 0; i < z->placement.gather.slot_count; i++) {
        struct eng_gather_slot *slot = &z->gathers.slots[i];
        if (!slot->keeps)
            continue;
        assert(slot->unit >= 0 && !slot->in_flight);
        slot->keeps = false;
        slot->version = z->publication.version;
        slot->in_flight = slot->staging = true; // and the moves of its strips are done
        z->stats.gathers++;
    }
}
