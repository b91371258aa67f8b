// The update of all tiles: by zero_step(), or, of a fused step, as soon as the sums of
// a tile are complete, while gradients are still handed over. Nothing that is written counts before
// the step is recorded.

#include "zero/core/api_call.h"
#include "zero/core/overwrite.h"
#include "zero/core/progress.h"
#include "zero/exec/host_update.h"
#include "zero/store/nvme_tier.h"

#include "base/clock.h"

#include "zero/exec/gpu.h"
#include <assert.h>

/* ------------------------------------------------------------------ which, and in what order */

/** Alternate updates go in alternate direction: what is still in memory is used first. Update
 * number `number` is the next one. */
static bool goes_up(const zero_ctx *z, uint64_t number)
{
    return (number - z->tier->turn) % 2 == 0;
}

static bool trains(const zero_ctx *z, size_t tile)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    for (size_t i = range.first; i < range.first + range.count; i++)
        if (z->io[z->tier->tiles.pieces[i].bucket].trains)
            return true;
    return false;
}

/** Chooses all tiles of a group if one of them trains: its strips are moved as a whole. */
static void choose_group(struct eng_tier *tier, const zero_ctx *z, struct eng_piece_range group)
{
    size_t any = group.first;
    while (any < group.first + group.count && !trains(z, any))
        any++;
    for (size_t i = 0; any < group.first + group.count && i < group.count; i++)
        tier->order[tier->chosen++] = group.first + (tier->up ? i : group.count - 1 - i);
}

static void choose_tiles(zero_ctx *z, bool up)
{
    struct eng_tier *tier = z->tier;
    const size_t training = tier->tiles.training;
    assert(!z->update.begun);
    tier->up = up;
    tier->chosen = tier->updated = tier->put = 0;
    for (size_t done = 0; done < training;) {
        const struct eng_piece_range group =
            eng_tiles_group(&tier->tiles, up ? done : training - 1 - done);
        choose_group(tier, z, group);
        done += group.count;
    }
    assert(tier->chosen <= training);
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        tier->left[s] = tier->tiles.of_bucket[s].count;
}

/** Whether a tile waits for the hand-over of a bucket's unit: for its sums, or because its working
 * copy, which is made anew with the tile, is read from a file until then. */
static bool waits_for(const zero_ctx *z, size_t bucket)
{
    return z->io[bucket].trains || z->placement.buckets[bucket].staged;
}

/** Due later than what any unit hands over; and from then on in the order in which a save reads. */
#define DUE_IN_STEP (UINT64_MAX / 2)

/** When the sums of a tile will be complete, if gradients are handed over in the order of the last
 * micro-batch; DUE_IN_STEP: it has some that wait for zero_step(). */
static uint64_t due_of(const zero_ctx *z, size_t tile)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    uint64_t due = 0;
    for (size_t i = range.first; i < range.first + range.count; i++) {
        const size_t s = z->tier->tiles.pieces[i].bucket;
        const struct eng_unit *unit = &z->units[z->layout.buckets[s].unit];
        if (!waits_for(z, s))
            continue;
        if (!unit->trains || (z->io[s].trains && !eng_updates_early(z, s)))
            return DUE_IN_STEP;
        due = unit->handed > due ? unit->handed : due;
    }
    return due;
}

/** When a group's first tile is due. A tile that a save has still to read is not given back before
 * the save has read it, and what comes behind it waits, too. */
static uint64_t due_of_group(const zero_ctx *z, struct eng_piece_range group)
{
    uint64_t due = 0;
    for (size_t tile = group.first; tile < group.first + group.count; tile++) {
        const uint64_t own = due_of(z, tile);
        due = own > due ? own : due;
        if (!eng_tile_may_be_overwritten(z, tile))
            return DUE_IN_STEP + 1 + group.first;
    }
    return due;
}

/** Makes what is due first the first, group by group; what is due at the same time goes down, as
 * backward passes do. */
static void sort_tiles(const zero_ctx *z)
{
    const struct eng_tier *tier = z->tier;
    for (size_t i = 0, count; i < tier->chosen; i += count) {
        const struct eng_piece_range group = eng_tiles_group(&tier->tiles, tier->order[i]);
        const uint64_t due = due_of_group(z, group);
        count = group.count;
        assert(i + count <= tier->chosen);
        for (size_t n = i; n < i + count; n++)
            tier->due[n] = (struct eng_due){.due = due, .tile = tier->order[n]};
    }
    eng_due_sort(tier->due, tier->chosen);
    for (size_t i = 0; i < tier->chosen; i++)
        tier->order[i] = tier->due[i].tile;
}

/* ------------------------------------------------------------------ a pass */

static void begin(zero_ctx *z)
{
    struct eng_tier *tier = z->tier;
    z->update.begun = true;
    if (tier->chosen == 0)
        return;
    tier->compression.spent_ns = 0;
    tier->compression.waited_then = off_pipeline_counts(tier->pipeline).waited_s;
    off_pipeline_encode(tier->pipeline, tier->compression.encodes);
    off_pipeline_begin(tier->pipeline, tier->order, tier->chosen);
    if (z->config.params_nvme)
        eng_params_begin(z, tier->chosen);
    if (z->config.grads_nvme)
        eng_sums_update_begin(z, tier->chosen);
}

static zero_result update_piece(zero_ctx *z, size_t number, struct base_error *error)
{
    const struct eng_piece *piece = &z->tier->tiles.pieces[number];
    assert(z->tier->left[piece->bucket] > 0);
    z->tier->left[piece->bucket]--;
    if (!z->io[piece->bucket].trains)
        return ZERO_OK;
    const zero_result r = z->config.grads_nvme ? eng_sums_update_piece(z, number, error) : ZERO_OK;
    if (!r)
        eng_update_range(z, piece->bucket, piece->first_segment, piece->segments);
    return r;
}

/** Gives a tile back. What that waits for a save is no time of the update's. */
static void put(zero_ctx *z, const struct off_tile *tile, bool changed)
{
    z->tier->compression.spent_ns -= eng_tier_put(z, tile, changed);
}

static void put_next(zero_ctx *z, bool changed)
{
    struct eng_tier *tier = z->tier;
    assert(tier->put < tier->updated && tier->updated <= tier->chosen);
    const size_t number = tier->order[tier->put++];
    const struct off_tile tile = {.number = number, .memory = tier->memory[number]};
    put(z, &tile, changed);
}

/** Gives tiles back that have left the device, and waits until at most `most` are out, or the next
 * one is there: nothing can be done before. */
static zero_result put_tiles(zero_ctx *z, size_t most, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    while (tier->put < tier->updated) {
        const bool waits = tier->updated - tier->put > most || !off_pipeline_ready(tier->pipeline);
        const zero_result r = eng_device_tiles_left(z, tier->order[tier->put], waits, error);
        if (r)
            return r == ZERO_AGAIN ? ZERO_OK : r;
        put_next(z, true);
    }
    return ZERO_OK;
}

/** Has a device update the next tile: it goes back when it has left that. */
static zero_result pass_next_tile(zero_ctx *z, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct off_tile tile;
    assert(tier->buffers >= 2);
    zero_result r = put_tiles(z, tier->buffers - 2, error);
    if (!r)
        r = off_pipeline_next(tier->pipeline, &tile, error);
    if (r)
        return r;
    assert(tile.number == tier->order[tier->updated] && !tier->memory[tile.number]);
    tier->memory[tile.number] = tile.memory;
    tier->updated++;
    const struct eng_piece_range range = tier->tiles.of_tile[tile.number];
    for (size_t i = range.first; i < range.first + range.count; i++) {
        size_t *left = &tier->left[tier->tiles.pieces[i].bucket];
        assert(*left > 0);
        --*left;
    }
    return eng_device_tiles_pass(z, tile.number, tile.memory, error);
}

static zero_result update_next_tile(zero_ctx *z, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct off_tile tile;
    if (z->config.streamed)
        return pass_next_tile(z, error);
    zero_result r = off_pipeline_next(tier->pipeline, &tile, error);
    if (r)
        return r;
    assert(tile.number == tier->order[tier->updated] && !tier->memory[tile.number]);
    tier->memory[tile.number] = tile.memory;
    const struct eng_piece_range range = tier->tiles.of_tile[tile.number];
    for (size_t i = 0; !r && i < range.count; i++)
        r = update_piece(z, range.first + (tier->up ? i : range.count - 1 - i), error);
    if (!r && z->config.params_nvme)
        r = eng_params_make(z, tile.number, error);
    tier->updated++;
    put(z, &tile, !r);
    return r;
}

/** How long the pass held the program up that began with begin(). */
static void stop_clock(struct eng_tier *tier)
{
    tier->compression.spent_ns += base_clock_ns() - tier->began_ns;
    tier->compression.newest = (struct eng_update_time){
        .seconds = (double)tier->compression.spent_ns * 1e-9,
        .waited_s = off_pipeline_counts(tier->pipeline).waited_s - tier->compression.waited_then,
    };
}

/** All tiles come back from the device, or, after an error, nothing there touches them any more. */
static void end_passing(zero_ctx *z, struct base_error *error)
{
    if (!error->result)
        put_tiles(z, 0, error);
    if (!error->result)
        eng_device_tiles_end(z, error);
    if (error->result)
        eng_device_tiles_stop(z);
    while (z->tier->put < z->tier->updated)
        put_next(z, false);
}

static void end(zero_ctx *z, struct base_error *error)
{
    assert(z->update.begun);
    z->update.begun = false;
    if (z->tier->chosen == 0)
        return;
    if (z->config.streamed)
        end_passing(z, error);
    if (z->config.params_nvme)
        eng_params_end(z, error);
    if (z->config.grads_nvme)
        eng_sums_update_end(z, error);
    eng_tier_pass_end(z, error->result, error);
}

/** Ends a pass that has failed. */
static zero_result fail_pass(zero_ctx *z, struct base_error *error)
{
    end(z, error);
    if (z->tier->chosen > 0)
        stop_clock(z->tier);
    return eng_fail_from(z, error);
}

zero_result eng_tier_update_begin(zero_ctx *z, struct eng_update_pass *pass)
{
    struct eng_tier *tier = z->tier;
    struct base_error error = {0};
    tier->began_ns = base_clock_ns();
    if (eng_tier_leave_point(z, &error))
        return eng_fail_from(z, &error);
    if (!z->update.begun) {
        choose_tiles(z, goes_up(z, z->updates));
        begin(z);
    }
    // What a save had still to read of a fused step comes last, upwards, and so some buckets that
    // are complete are published behind the last tile. Ranks would have to agree on an order by
    // what is complete, and their saves are at different tiles. The next step's gathers wait no
    // longer than without a save, which reads ahead of the update.
    *pass = (struct eng_update_pass){.down = !tier->up};
    return ZERO_OK;
}

zero_result eng_tier_update_bucket(zero_ctx *z, size_t bucket)
{
    struct base_error error = {0};
    while (z->io[bucket].trains && z->tier->left[bucket] > 0)
        if (update_next_tile(z, &error))
            return fail_pass(z, &error);
    return ZERO_OK;
}

zero_result eng_tier_update_end(zero_ctx *z, zero_result r)
{
    struct eng_tier *tier = z->tier;
    struct base_error error = {0};
    if (!z->update.begun) // it has failed, and is ended
        return r;
    // The loop goes through all tiles of a group: those behind the last that trains may share its
    // strips.
    while (!r && tier->updated < tier->chosen)
        if (update_next_tile(z, &error))
            return fail_pass(z, &error);
    end(z, &error);
    if (tier->chosen > 0)
        stop_clock(tier);
    return r ? r : error.result ? eng_fail_from(z, &error) : ZERO_OK;
}

/* ------------------------------------------------------------------ before zero_step() */

void eng_tier_fuse(zero_ctx *z)
{
    // Sums in a file are read from there, in the order of tiles, when all of them are; and a device
    // that updates does so behind its verdict.
    if (!z->tier || z->config.grads_nvme || z->config.streamed)
        return;
    // The order of hand-overs has one direction only: what a step leaves in memory, the tiles that
    // were due last, is what the next one needs last. To begin with it would be to wait for the end
    // of the backward pass, which is what a fused step is to avoid. If no tile is due before
    // zero_step(), updates alternate as all others do.
    const bool early = z->stepping.early;
    choose_tiles(z, !early && goes_up(z, z->updates + 1));
    if (early)
        sort_tiles(z);
    begin(z);
}

/** Whether all a tile is updated with is there, on this rank, and no rank reads what is written
 * over. Every rank has handed it over then, so all have recorded the step before. A tile on its way
 * through a GPU needs less (exec/device_passes.c): it may pass again for what is not there yet. */
static bool is_complete(const zero_ctx *z, size_t tile)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    for (size_t i = range.first; i < range.first + range.count; i++) {
        const size_t s = z->tier->tiles.pieces[i].bucket;
        const struct eng_bucket_io *io = &z->io[s];
        const zero_unit unit = z->layout.buckets[s].unit;
        if (waits_for(z, s) && (!z->units[unit].closed || eng_device_waits(z, unit)))
            return false;
        if (io->trains &&
            (!eng_updates_early(z, s) || (io->reduce_started && !coll_complete(&io->reduce))))
            return false;
    }
    return true;
}

/** Whether the next tile can be updated without waiting for anything but room for its working
 * copies, where these have several strips; and without losing what the job before has left, which
 * is zero_step()'s decision. */
static bool is_ready(const zero_ctx *z)
{
    const struct eng_tier *tier = z->tier;
    if (eng_tier_has_point(tier) || tier->updated == tier->chosen || eng_step_hopeless(z))
        return false;
    const size_t tile = tier->order[tier->updated];
    return is_complete(z, tile) && off_pipeline_ready(tier->pipeline) &&
           eng_tile_may_be_overwritten(z, tile) &&
           (!z->config.params_nvme || eng_params_ready(z, tile));
}

zero_result eng_tier_update_fused(zero_ctx *z)
{
    struct eng_tier *tier = z->tier;
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (!tier || !z->update.begun)
        return ZERO_OK;
    const uint64_t began = base_clock_ns();
    while (!r && is_ready(z))
        r = update_next_tile(z, &error);
    tier->compression.spent_ns += base_clock_ns() - began;
    if (!r)
        return ZERO_OK;
    end(z, &error);
    return eng_fail_from(z, &error);
}
