#include "zero/step/gradient.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/observers.h"
#include "zero/core/progress.h"
#include "zero/core/telemetry.h"
#include "zero/exec/caller_memory.h"
#include "zero/exec/grad_is_sum.h"
#include "zero/exec/host_update.h"
#include "zero/exec/local_accumulation.h"
#include "zero/link/bucket_gather.h"
#include "zero/link/publish.h"
#include "zero/param/frozen.h"
#include "zero/param/gather_slots.h"
#include "zero/step/fused.h"
#include "zero/store/master_weights.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/** Waits until no peer reads the unit's last gradient. */
static zero_result drain_unit(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_section; s < u->first_section + u->section_count; s++) {
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
    int best = -1;
    for (int i = class->first_slot; i < class->first_slot + class->slots; i++) {
        const struct eng_grad_slot *slot = &z->gradients.slots[i];
        if (!slot->open && (best < 0 || slot->handed < z->gradients.slots[best].handed))
            best = i;
    }
    return best;
}

/** The slot for a unit's gradient; -1: none is free. */
static int choose_slot(const zero_ctx *z, zero_unit unit, bool raw)
{
    if (z->config.stage >= 2)
        return oldest_slot(z, unit);
    return z->config.local ? eng_local_slot(z, unit, raw || eng_verifying(z))
                           : z->units[unit].sum_slot;
}

/** Chooses a slot and makes sure that what it held before is gone from it. */
static zero_result take_slot(zero_ctx *z, zero_unit unit, bool raw, int *taken)
{
    *taken = choose_slot(z, unit, raw);
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
    const bool limited = z->config.stage >= 2 || z->config.paranoid;
    if (limited && z->gradients.open >= z->config.grad_units)
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
    const bool first = !z->config.local || z->micro.index == 0;
    const bool again = slot->unit == unit && slot->clean;
    if (first) {
        slot->unit = unit;
        u->sum_slot = taken;
    }
    slot->open = true;
    u->grad_slot = taken;
    u->grad_open = true;
    z->gradients.open++;
    const struct eng_grad_opening opening = {
        .purpose = purpose,
        .keeps = !first && taken == u->sum_slot, // reduction=local
        .again = again,
    };
    slot->clean = true;
    r = z->exec->grad_open(z, unit, &opening);
    return r ? r : eng_observe_grad_opened(z, unit, purpose == ENG_GRAD_WRITE);
}

/** Adds the squares of `count` sums, granule by granule; with `finite_only` as far as all sums of a
 * granule are finite. Returns how many elements it took. */
static size_t add_squares(zero_ctx *z, size_t count, const struct eng_contributions *all,
                          bool finite_only)
{
    enum { AT_ONCE = 64 };
    double squares[AT_ONCE];
    struct eng_contributions from = *all;
    for (size_t done = 0; done < count;) {
        const size_t left = count - done;
        const size_t n = left < AT_ONCE * ENG_GRANULE ? left : AT_ONCE * ENG_GRANULE;
        z->cpu.kernels->sum_squares(n, &from, squares);
        for (size_t i = 0; i * ENG_GRANULE < n; i++, done += ENG_GRANULE) {
            if (finite_only && !isfinite(squares[i]))
                return done;
            eng_add_square_sum(z, squares[i]);
        }
        from.first += n;
        if (from.before)
            from.before += n;
    }
    return count;
}

/** Squares of the finished sums, while they are in cache. */
static void sum_tile(void *user, size_t first, size_t count, const void *tile)
{
    struct eng_section_io *io = user;
    (void)first;
    add_squares(io->z, count, &(struct eng_contributions){.sources = &tile, .count = 1}, false);
}

/** Squares of sums that nobody keeps. Who has sent what is not finite is found by adding up the
 * rest. */
static size_t square_tile(void *user, size_t first, size_t count,
                          const struct coll_contributions *from)
{
    struct eng_section_io *io = user;
    (void)first;
    const struct eng_contributions contributions = {
        .before = from->before,
        .dtype = from->dtype,
        .sources = from->sources,
        .count = from->count,
        .first = from->first,
    };
    return add_squares(io->z, count, &contributions, true);
}

/** Adds a tile's squares, and updates what may be updated by now. */
static void update_tile(void *user, size_t first, size_t count, const void *tile)
{
    sum_tile(user, first, count, tile);
    eng_fused_tile(user, first, count, tile);
}

/** Rounds a section's gradient, padding included, to the type in which it travels. */
static void round_gradient(zero_ctx *z, size_t s, size_t grad_bytes)
{
    const struct eng_section *section = &z->layout.sections[s];
    const struct eng_section_place *place = &z->placement.sections[s];
    unsigned char *slot = z->memory.grads + grad_bytes;
    if (place->comm_dtype != section->grad_dtype)
        eng_convert(z->cpu.kernels, section->grad_dtype, slot + place->grad_offset,
                    place->comm_dtype, slot + place->comm_offset, section->granules * ENG_GRANULE);
}

static zero_result start_reduction(zero_ctx *z, size_t s, size_t grad_bytes)
{
    struct eng_section_io *io = &z->io[s];
    const struct eng_section *section = &z->layout.sections[s];
    const struct eng_section_place *place = &z->placement.sections[s];
    zero_result r = eng_sums_reclaim(z);
    if (r)
        return r;
    round_gradient(z, s, grad_bytes);
    io->round = z->micro.index;
    const bool last = z->micro.index == z->micro.count - 1,
               store = z->micro.index == 0 || z->config.local;
    io->fused = eng_fused_begin(z, s);
    if (!io->fused && eng_grad_is_sum(z, s)) {
        eng_grad_measure(io, z->memory.grads + grad_bytes + place->comm_offset);
        return ZERO_OK;
    }
    const bool again = eng_adds_again(z, s);
    const struct coll_reduce_scatter op = {
        .source = z->memory.grads + grad_bytes + place->comm_offset,
        .dtype = place->comm_dtype,
        .spans = section->elements,
        .accumulator = (io->fused && store) || again
                           ? NULL
                           : eng_own_sums(z, s, section->elements[z->config.rank].offset),
        .contributors = eng_contributors(z, z->micro.index),
        .together = eng_fused_early(z, s),
        .store = store,
        .sum_group = (uint32_t)z->config.sum_group,
        .first = (uint64_t)z->micro.index * (uint64_t)z->config.world,
        .last = last,
        .block = eng_own_blocks(z, s),
        .tile = io->fused ? update_tile
                : last    ? sum_tile
                          : NULL,
        .take = again                   ? square_tile
                : io->fused && io->sums ? eng_fused_take
                                        : NULL,
        .nonfinite = eng_grad_nonfinite,
        .user = io,
        .label = eng_unit_label(z, section->unit),
    };
    r = coll_reduce_scatter_start(z->comm, &op, &io->reduce);
    if (r)
        return eng_comm_failed(z, r);
    io->reduce_started = true;
    return ZERO_OK;
}

static zero_result start_reductions(zero_ctx *z, zero_unit unit, size_t grad_bytes)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = z->store->sums->begin(z, unit);
    eng_frozen_clear(z, unit, z->memory.grads + grad_bytes);
    for (size_t s = u->first_section; !r && s < u->first_section + u->section_count; s++)
        if (z->io[s].trains)
            r = start_reduction(z, s, grad_bytes);
    return r;
}

/** Sends the gradient in the unit's slot on its way, or the sum that it was the last one of. */
static zero_result reduce(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit *u = &z->units[unit];
    const uint64_t begin = base_clock_ns();
    zero_result r = eng_observe_unit(z, ENG_UNIT_GRAD_ARRIVED, unit);
    if (eng_verifying(z))
        return r;
    if (!r && (!z->config.local || z->micro.index == z->micro.count - 1))
        r = start_reductions(z, unit, z->gradients.slots[u->sum_slot].offset);
    if (!r && (r = coll_progress(z->comm)) != ZERO_OK)
        r = eng_comm_failed(z, r);
    if (!r)
        z->store->sums->progress(z);
    if (!r)
        r = z->store->update_fused(z);
    eng_stretch(z, CONTROL_REDUCE, unit, begin, &z->stats.reduce_wait_s);
    return r;
}

zero_result eng_grad_finish(zero_ctx *z)
{
    const uint64_t begin = base_clock_ns();
    for (size_t s = 0; s < z->layout.section_count; s++) {
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

/** What of a unit was updated with its sums goes to where the program reads it, if no other rank
 * has to send anything first. */
static zero_result show_updated(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = ZERO_OK;
    for (size_t s = u->first_section; !r && s < u->first_section + u->section_count; s++)
        if (z->io[s].fused && z->config.world == 1 && coll_complete(&z->io[s].reduce) &&
            !eng_fused_hopeless(z))
            r = z->exec->show_early(z, s);
    return r;
}

/** Sends the gradient of a unit that is ready, -1: none is. */
static zero_result send(zero_ctx *z, zero_unit ready)
{
    if (ready < 0)
        return ZERO_OK;
    const zero_result r = reduce(z, ready);
    return r ? r : show_updated(z, ready);
}

zero_result eng_grad_flush(zero_ctx *z)
{
    zero_unit ready;
    zero_result r = z->exec->grad_flush(z, &ready);
    if (!r)
        r = send(z, ready);
    if (!r && ready >= 0)
        r = eng_prefetch_aside(z);
    return r ? r : z->exec->metric_values(z);
}

/** The program is done with the unit's gradient. */
static zero_result close_gradient(zero_ctx *z, zero_unit unit)
{
    struct eng_unit *u = &z->units[unit];
    zero_unit ready;
    u->grad_open = false;
    u->grad_handed = true;
    z->gradients.open--;
    zero_result r = eng_observe_unit(z, ENG_UNIT_GRAD_DONE, unit);
    if (!r)
        r = z->exec->grad_close(z, unit, &ready);
    if (!r)
        r = send(z, ready);
    return r ? r : eng_prefetch_aside(z);
}

static zero_result open_zeroed(zero_ctx *z, zero_unit unit)
{
    return open_gradient(z, unit, ENG_GRAD_ADD);
}

static zero_result open_raw(zero_ctx *z, zero_unit unit)
{
    return open_gradient(z, unit, ENG_GRAD_WRITE);
}

static zero_result hand_over(zero_ctx *z, zero_unit unit)
{
    if (!z->units[unit].grad_open)
        return eng_fail(z, ZERO_E_STATE, "gradient of unit %d (%s) handed over, but it is not open",
                        unit, z->units[unit].name);
    const zero_result r = eng_fused(z) ? eng_fused_hand_over(z, unit) : ZERO_OK;
    if (r)
        return r;
    eng_take_gradients(z, unit);
    return close_gradient(z, unit);
}

/** Zeros: what was opened, with nothing added. */
static zero_result hand_over_none(zero_ctx *z, zero_unit unit)
{
    zero_result r = eng_fused(z) ? eng_fused_hand_over(z, unit) : ZERO_OK;
    if (!r)
        r = open_gradient(z, unit, ENG_GRAD_NONE);
    return r ? r : close_gradient(z, unit);
}

zero_result zero_grad_open(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    return eng_unit_call(z, "zero_grad_open", unit, stream, open_zeroed);
}

zero_result zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    return eng_unit_call(z, "zero_grad_open_raw", unit, stream, open_raw);
}

zero_result zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    return eng_unit_call(z, "zero_grad_done", unit, stream, hand_over);
}

zero_result zero_grad_none(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    return eng_unit_call(z, "zero_grad_none", unit, stream, hand_over_none);
}

void *zero_grad_ptr(zero_ctx *z, zero_param param, int32_t index)
{
    if (!z || !z->call.committed)
        return NULL;
    const struct eng_slice *slice = eng_layout_slice(&z->layout, &z->model, param, index);
    if (!slice)
        return NULL;
    const struct eng_section *section = &z->layout.sections[slice->section];
    const struct eng_unit *unit = &z->units[section->unit];
    if (section->frozen)
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
           z->placement.sections[slice->section].grad_offset +
           slice->granule * ENG_GRANULE * eng_dtype_size(section->grad_dtype);
}
