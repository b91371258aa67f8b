#include "zero/store/nvme_sums.h"
#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/link/bucket_gather.h"

#include "zero/store/nvme_tier.h"

#include <assert.h>
#include <string.h>

/** Beside the slots: of the update, and on their way from slots and to them. */
static const struct eng_strip_buffers buffers = {.pass = 4, .moves = 4};

/* ------------------------------------------------------------------ how much */

/** What decides the bytes of a piece. */
struct kind {
    const struct eng_layout *layout;
    bool blocks;
};

static size_t piece_bytes(const void *user, const struct eng_piece *piece)
{
    const struct kind *kind = user;
    if (kind->layout->buckets[piece->bucket].frozen)
        return 0;
    return (kind->blocks ? 2 : 1) * piece->granules * BASE_GRANULE * sizeof(float);
}

static zero_result make_strips(const zero_ctx *z, const struct eng_tiles *tiles,
                               struct eng_strips *strips, struct base_error *error)
{
    const struct kind kind = {&z->layout, z->micro.planned_blocks};
    return eng_strips_make(strips, &z->layout, tiles, piece_bytes, &kind, error);
}

/** The most strips that a unit has. */
static size_t most_strips(const zero_ctx *z, const struct eng_strips *strips)
{
    size_t most = 0;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        most = strips->of_unit[u].count > most ? strips->of_unit[u].count : most;
    return most;
}

/** Tables beside those of the strips. */
static void lay_tables(const zero_ctx *z, const struct eng_placement *placement,
                       struct eng_sums *sums)
{
    const size_t slots = (size_t)placement->sums.slot_count;
    const size_t most = most_strips(z, &sums->file.strips);
    struct base_tables *tables = &sums->file.strips.tables;
    sums->slots = base_tables_add(tables, slots, sizeof *sums->slots);
    sums->moves = base_tables_add(tables, slots * most, sizeof *sums->moves);
    sums->slot_of_unit = base_tables_add(tables, z->layout.unit_count, sizeof(int));
    sums->spans = base_tables_add(tables, (size_t)z->config.world, sizeof *sums->spans);
}

/** Whether the rank with this placement adds to some of a strip: at stage 0 all of it may be other
 * ranks', and comes from them when it is whole. */
static bool is_added_to(const struct eng_placement *placement, const struct eng_tiles *tiles,
                        const struct eng_strip *strip)
{
    for (size_t i = strip->first_piece; i < strip->first_piece + strip->pieces; i++) {
        const struct eng_piece *piece = &tiles->pieces[i];
        const struct eng_bucket_place *place = &placement->buckets[piece->bucket];
        if (place->own_first < piece->first + piece->granules &&
            piece->first < place->own_first + place->own_granules)
            return true;
    }
    return false;
}

/** Bytes that a step writes, and reads, at most: what each micro-batch leaves. */
static void count_moved(const zero_ctx *z, const struct eng_placement *placement,
                        const struct eng_tiles *tiles, const struct eng_strips *strips,
                        struct eng_file_needs *file)
{
    const uint64_t rounds = z->config.local ? 1 : (uint64_t)z->micro.count;
    for (size_t i = 0; i < strips->count; i++)
        file->written +=
            (is_added_to(placement, tiles, &strips->list[i]) ? rounds : 1) * strips->bytes[i];
    file->read = file->written;
}

zero_result eng_sums_needs(const zero_ctx *z, const struct eng_placement *placement,
                           const struct eng_tiles *tiles, struct eng_tier_needs *needs,
                           struct base_error *error)
{
    struct eng_file_needs *file = &needs->files[ENG_FILE_SUMS];
    struct eng_sums counted;
    struct eng_strips *strips = &counted.file.strips;
    if (!z->config.grads_nvme)
        return ZERO_OK;
    const zero_result r = make_strips(z, tiles, strips, error);
    if (r)
        return r;
    strips->tables.counts = true;
    lay_tables(z, placement, &counted);
    eng_strip_file_needs(z, strips, buffers, file, &needs->tables);
    count_moved(z, placement, tiles, strips, file);
    eng_strips_free(strips);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ life */

/** Cuts the memory for sums as the placement has it. */
static void lay_slots(zero_ctx *z, struct eng_sums *sums)
{
    const struct eng_slot_plan *plan = &z->placement.sums;
    const size_t most = most_strips(z, &sums->file.strips);
    size_t at = 0;
    for (int c = 0; c < plan->class_count; c++)
        for (int i = plan->classes[c].first_slot;
             i < plan->classes[c].first_slot + plan->classes[c].slots; i++) {
            sums->slots[i] = (struct eng_sum_slot){
                .z = z,
                .memory = (unsigned char *)z->memory.sums + at,
                .unit = -1,
                .moves = sums->moves + (size_t)i * most,
            };
            at += plan->classes[c].bytes;
        }
    assert(at == plan->bytes);
    for (size_t u = 0; u < z->layout.unit_count; u++)
        sums->slot_of_unit[u] = -1;
}

static zero_result allocate(zero_ctx *z, struct eng_sums *sums, struct base_error *error)
{
    const zero_result r = make_strips(z, &z->tier->tiles, &sums->file.strips, error);
    if (r)
        return r;
    sums->slot_count = z->placement.sums.slot_count;
    lay_tables(z, &z->placement, sums);
    if (sums->file.strips.tables.failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the places of %zu strips",
                         sums->file.strips.count);
    lay_slots(z, sums);
    return ZERO_OK;
}

zero_result eng_sums_open(zero_ctx *z, struct base_error *error)
{
    if (!z->config.grads_nvme)
        return ZERO_OK;
    const zero_result r = allocate(z, &z->tier->sums, error);
    return r ? r : eng_strip_file_open(z, &z->tier->sums.file, buffers, error);
}

void eng_sums_close(struct eng_sums *sums)
{
    eng_strip_file_close(&sums->file);
}

/* ------------------------------------------------------------------ slots */

/** The slot that has a unit's sums, or is about to; NULL: none has. */
static struct eng_sum_slot *slot_of(const zero_ctx *z, zero_unit unit)
{
    struct eng_sums *sums = &z->tier->sums;
    const int slot = sums->slot_of_unit[unit];
    return slot < 0 ? NULL : &sums->slots[slot];
}

float *eng_tier_sums(const zero_ctx *z, size_t bucket, size_t element)
{
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    const struct eng_sum_slot *slot = slot_of(z, z->layout.buckets[bucket].unit);
    if (!slot)
        return NULL;
    assert(element >= place->state_first * BASE_GRANULE);
    return (float *)(void *)(slot->memory + place->sum_offset) +
           (element - place->state_first * BASE_GRANULE);
}

float *eng_tier_blocks(const zero_ctx *z, size_t bucket)
{
    const zero_unit unit = z->layout.buckets[bucket].unit;
    const size_t own = z->placement.buckets[bucket].own_first * BASE_GRANULE;
    if (!slot_of(z, unit) || !z->micro.planned_blocks)
        return NULL;
    return eng_tier_sums(z, bucket, own) + z->placement.units[unit].sum_bytes / sizeof(float);
}

/** Copies between a slot and a strip, on the tile I/O's thread; no other thread uses it then. */
static void copy(const struct eng_sum_slot *slot, size_t number, unsigned char *contents,
                 enum off_direction direction)
{
    const zero_ctx *z = slot->z;
    const struct eng_strips *strips = &z->tier->sums.file.strips;
    const struct eng_strip *strip = &strips->list[number];
    for (size_t i = strip->first_piece; i < strip->first_piece + strip->pieces; i++) {
        const struct eng_piece *piece = &z->tier->tiles.pieces[i];
        const struct eng_bucket_place *place = &z->placement.buckets[piece->bucket];
        const size_t granule = BASE_GRANULE * sizeof(float), bytes = piece->granules * granule;
        assert(piece->first >= place->state_first);
        unsigned char *there = contents + strips->offset_of_piece[i];
        unsigned char *here =
            slot->memory + place->sum_offset + (piece->first - place->state_first) * granule;
        for (int part = 0; part < (z->micro.planned_blocks ? 2 : 1); part++) {
            memcpy(direction == OFF_READ ? here : there, direction == OFF_READ ? there : here,
                   bytes);
            here += z->placement.units[strip->unit].sum_bytes;
            there += bytes;
        }
    }
}

static void take_contents(void *user, size_t strip, void *contents)
{
    copy(user, strip, contents, OFF_READ);
}

static void give_contents(void *user, size_t strip, void *contents)
{
    copy(user, strip, contents, OFF_WRITE);
}

/** Begins to read what reductions add to, or to write what they have made, and where that is whole
 * what other ranks have, too. */
static void start_moves(struct eng_sums *sums, struct eng_sum_slot *slot,
                        enum off_direction direction)
{
    const zero_ctx *z = slot->z;
    const struct eng_strips *strips = &sums->file.strips;
    const struct eng_piece_range range = strips->of_unit[slot->unit];
    const bool all = direction == OFF_WRITE && slot->whole;
    assert(slot->state != ENG_SUMS_READING && slot->state != ENG_SUMS_WRITING);
    for (size_t i = 0; i < range.count; i++) {
        slot->moves[i] = (struct off_tile_op){.under_way = false};
        if (!all && !is_added_to(&z->placement, &z->tier->tiles, &strips->list[range.first + i]))
            continue;
        slot->moves[i] = (struct off_tile_op){
            .direction = direction,
            .tile = range.first + i,
            .exchange = direction == OFF_READ ? take_contents : give_contents,
            .user = slot,
        };
        off_tile_io_start(sums->file.tile_io, &slot->moves[i]);
    }
    slot->state = direction == OFF_READ ? ENG_SUMS_READING : ENG_SUMS_WRITING;
}

/** Waits for a slot's moves, if there are any. */
static zero_result wait_moves(zero_ctx *z, struct eng_sum_slot *slot)
{
    struct eng_sums *sums = &z->tier->sums;
    struct base_error error = {0};
    if (slot->state != ENG_SUMS_READING && slot->state != ENG_SUMS_WRITING)
        return ZERO_OK;
    for (size_t i = 0; i < sums->file.strips.of_unit[slot->unit].count; i++)
        if (off_tile_io_wait(sums->file.tile_io, &slot->moves[i], &error))
            return eng_fail(z, error.result, "gradient sums of unit %d (%s): %s", slot->unit,
                            z->units[slot->unit].name, error.message);
    slot->state = ENG_SUMS_IDLE;
    return ZERO_OK;
}

/** Waits for the reductions into a slot. No circle comes of that, whatever other ranks wait for or
 * drain: all ranks start operations in one order. So the oldest operation that any rank waits for
 * was started by all ranks that wait, and the others get to it without them. Moves wait for no
 * rank. */
static zero_result wait_reductions(zero_ctx *z, const struct eng_sum_slot *slot)
{
    assert(slot->unit >= 0);
    const struct eng_unit_layout *u = &z->layout.units[slot->unit];
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        const zero_result r =
            z->io[s].reduce_started ? coll_wait(z->comm, &z->io[s].reduce) : ZERO_OK;
        if (r)
            return eng_comm_failed(z, r);
    }
    return ZERO_OK;
}

/** Whether sums that are whole come to all ranks, which then must do so at the same moments: where
 * gradients are handed over, not where they are opened, which each rank does in its own order. */
static bool are_for_all(const zero_ctx *z)
{
    return z->config.stage == 0 && z->config.world > 1;
}

/** Whether the update needs sums of a slot that other ranks have. */
static bool lacks_others(const zero_ctx *z, const struct eng_sum_slot *slot)
{
    return are_for_all(z) && slot->whole;
}

/** Gathers a bucket's sums, which are whole, from their owners into a slot. */
static zero_result gather_bucket(zero_ctx *z, const struct eng_sum_slot *slot, size_t s)
{
    struct eng_sums *sums = &z->tier->sums;
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    unsigned char *memory = slot->memory + z->placement.buckets[s].sum_offset;
    for (int rank = 0; rank < z->config.world; rank++)
        sums->spans[rank] = (struct coll_span){
            .offset = bucket->elements[rank].offset * sizeof(float),
            .count = bucket->elements[rank].count * sizeof(float),
        };
    const struct coll_all_gather op = {
        .source = memory + sums->spans[z->config.rank].offset,
        .recv = memory,
        .spans = sums->spans,
        .label = eng_unit_label(z, bucket->unit),
    };
    zero_result r = coll_all_gather_start(z->comm, &op, &sums->request);
    if (!r)
        r = coll_drain(z->comm, &sums->request);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

/** Ends what is added to a slot: when its reductions are complete it is written. Collective at
 * stage 0, where slots are handed on in the same order on all ranks. */
static zero_result end_sums(zero_ctx *z, struct eng_sum_slot *slot)
{
    const struct eng_unit_layout *u = &z->layout.units[slot->unit];
    assert(slot->state == ENG_SUMS_ADDED);
    zero_result r = wait_reductions(z, slot);
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        if (!r && lacks_others(z, slot) && z->io[s].trains)
            r = gather_bucket(z, slot, s);
    if (!r)
        start_moves(&z->tier->sums, slot, OFF_WRITE);
    return r;
}

/** Makes a slot that of another unit. */
static zero_result hand_on(zero_ctx *z, struct eng_sum_slot *slot, zero_unit unit)
{
    struct eng_sums *sums = &z->tier->sums;
    zero_result r = slot->state == ENG_SUMS_ADDED ? end_sums(z, slot) : ZERO_OK;
    if (!r)
        r = wait_moves(z, slot);
    if (r)
        return r;
    assert(slot->state == ENG_SUMS_IDLE && sums->slot_of_unit[unit] < 0);
    if (slot->unit >= 0)
        sums->slot_of_unit[slot->unit] = -1;
    slot->unit = unit;
    sums->slot_of_unit[unit] = (int)(slot - sums->slots);
    return ZERO_OK;
}

/** Whether a slot is kept for a gradient that is open, or on its way from a device. */
static bool is_kept(const zero_ctx *z, const struct eng_sum_slot *slot)
{
    if (slot->unit < 0 || are_for_all(z))
        return false;
    const struct eng_grad_slot *gradient = &z->gradients.slots[z->units[slot->unit].grad_slot];
    return gradient->open && gradient->unit == slot->unit;
}

/** The slot of a unit's class to take: what is not kept first, then what was used longest ago. */
static struct eng_sum_slot *choose(const zero_ctx *z, zero_unit unit)
{
    const struct eng_slot_plan *plan = &z->placement.sums;
    const struct eng_slot_class *class = &plan->classes[plan->class_of_unit[unit]];
    assert(plan->class_of_unit[unit] >= 0 && class->slots > 0);
    struct eng_sum_slot *slots = z->tier->sums.slots + class->first_slot, *best = slots;
    for (struct eng_sum_slot *slot = slots + 1; slot < slots + class->slots; slot++)
        if (is_kept(z, slot) != is_kept(z, best) ? is_kept(z, best) : slot->used < best->used)
            best = slot;
    return best;
}

/* ------------------------------------------------------------------ a micro-batch */

/** Whether a unit's gradient is summed here, and where others may be in memory instead. */
static bool has_sums(const zero_ctx *z, zero_unit unit)
{
    return z->config.grads_nvme && z->units[unit].trains && !eng_micro_repeats(z) &&
           z->placement.sums.class_of_unit[unit] >= 0;
}

/** Whether the micro-batch under way adds to sums, instead of storing the first ones. */
static bool adds(const zero_ctx *z)
{
    return z->micro.index > 0 && !z->config.local;
}

zero_result eng_tier_sums_expect(zero_ctx *z, zero_unit unit)
{
    if (!has_sums(z, unit) || !adds(z) || slot_of(z, unit) || are_for_all(z))
        return ZERO_OK;
    struct eng_sum_slot *slot = choose(z, unit);
    if (is_kept(z, slot))
        return ZERO_OK;
    const zero_result r = hand_on(z, slot, unit);
    if (!r)
        start_moves(&z->tier->sums, slot, OFF_READ);
    return r;
}

zero_result eng_tier_sums_begin(zero_ctx *z, zero_unit unit)
{
    if (!has_sums(z, unit))
        return ZERO_OK;
    struct eng_sum_slot *slot = slot_of(z, unit);
    zero_result r = ZERO_OK;
    if (!slot) {
        slot = choose(z, unit);
        r = hand_on(z, slot, unit);
        if (!r && adds(z))
            start_moves(&z->tier->sums, slot, OFF_READ);
    }
    if (!r)
        r = wait_moves(z, slot);
    if (r)
        return r;
    assert(slot->unit == unit);
    slot->state = ENG_SUMS_ADDED;
    slot->used = ++z->tier->sums.uses;
    slot->whole = z->micro.index == z->micro.count - 1;
    return ZERO_OK;
}

/** Whether the reductions into a slot are known to be complete. */
static bool is_complete(const zero_ctx *z, const struct eng_sum_slot *slot)
{
    const struct eng_unit_layout *u = &z->layout.units[slot->unit];
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        if (z->io[s].reduce_started && !coll_drained(z->comm, &z->io[s].reduce))
            return false;
    return true;
}

/** Whether sums that are not whole may stay in their slot, which no other unit needs. */
static bool may_stay(const zero_ctx *z, const struct eng_sum_slot *slot)
{
    const struct eng_slot_plan *plan = &z->placement.sums;
    const struct eng_slot_class *class = &plan->classes[plan->class_of_unit[slot->unit]];
    return !slot->whole && class->units <= class->slots;
}

void eng_tier_sums_progress(zero_ctx *z)
{
    if (!z->config.grads_nvme)
        return;
    struct eng_sums *sums = &z->tier->sums;
    for (struct eng_sum_slot *slot = sums->slots; slot < sums->slots + sums->slot_count; slot++)
        if (slot->state == ENG_SUMS_ADDED && !may_stay(z, slot) && !lacks_others(z, slot) &&
            is_complete(z, slot))
            start_moves(sums, slot, OFF_WRITE);
}

zero_result eng_tier_sums_finish(zero_ctx *z)
{
    if (!z->config.grads_nvme)
        return ZERO_OK;
    struct eng_sums *sums = &z->tier->sums;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < sums->slot_count; i++)
        if (sums->slots[i].state == ENG_SUMS_ADDED)
            r = end_sums(z, &sums->slots[i]);
    for (int i = 0; !r && i < sums->slot_count; i++)
        r = wait_moves(z, &sums->slots[i]);
    return r;
}
