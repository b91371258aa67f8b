// The passes of tiles through the device: in, update, out, in a stream each. Only code that looks
// at state in memory of the host waits for them. Where zero_step() does not wait for files, what
// persists passes first. The work queued behind the step waits for that; the gathers of a unit wait
// for the rest. In a fused step a tile passes as soon as the sums are queued of all of it that may
// be updated early. It passes once more with the rest, if there is any, behind the verdict.
//
// offload/pipeline.h is no pipeline for this: its threads read, decode, check and write tiles, and
// its caller waits for them, while here the host queues copies and kernels and waits for none.
// State in files goes through both, one behind the other: zero/store/nvme_update.c has a tile pass
// here between the pipeline's read and its write, so neither does what the other one does.

#include "zero/core/progress.h"
#include "zero/exec/device_tiles.h"

#include <assert.h>

/** Copies a piece's fields to their buffer, or back. `memory` has the tile, if it is one of a file:
 * that has a copy of a field that stays here, too. */
static zero_result move_piece(const zero_ctx *z, const struct eng_piece *piece,
                              unsigned char *memory, bool in, struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    const size_t s = piece->bucket, element = piece->first * BASE_GRANULE;
    const size_t elements = piece->granules * BASE_GRANULE;
    zero_result r = ZERO_OK;
    for (int field = 0; !r && field <= piece->moments; field++) {
        const bool copied = device_field_stays(z, field, s);
        if (copied && (in || !memory))
            continue;
        void *here = device_field(z, field, s, element);
        void *there = memory ? memory + eng_piece_offset(piece, field, element)
                             : device_field_home(z, field, s, element);
        r = z->device->ops->copy(in ? here : there, in ? there : here,
                                 elements * (field ? piece->moment_size : piece->weight_size),
                                 in ? tiles->inward : tiles->outward, error);
    }
    return r;
}

/** Whether a piece passes now: before the verdict, or behind it what did not before. */
static bool passes(const zero_ctx *z, const struct eng_piece *piece)
{
    const struct eng_bucket_io *io = &z->io[piece->bucket];
    const enum device_turn turn = z->device->state->tiles->turn;
    const bool persistent = z->layout.buckets[piece->bucket].persistent;
    return io->trains && io->fused == z->device->state->fused &&
           (turn == DEVICE_ALL || persistent == (turn == DEVICE_PERSISTENT));
}

static zero_result move_tile(const zero_ctx *z, struct eng_piece_range range, unsigned char *memory,
                             bool in, struct base_error *error)
{
    const struct eng_piece *pieces = z->device->state->tiles->cut.pieces;
    zero_result r = ZERO_OK;
    for (size_t i = range.first; !r && i < range.first + range.count; i++)
        if (passes(z, &pieces[i]))
            r = move_piece(z, &pieces[i], memory, in, error);
    return r;
}

/** Pieces side by side in one go. */
static zero_result update_tile(const zero_ctx *z, struct eng_piece_range range,
                               struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    const size_t end = range.first + range.count;
    assert(end < tiles->noted);
    zero_result r = ZERO_OK;
    for (size_t i = range.first, last; !r && i < end; i = last + 1) {
        for (last = i; last < end && passes(z, &tiles->cut.pieces[last]);)
            last++;
        r = device_update_segments(z, tiles->first_segment[i],
                                   tiles->first_segment[last] - tiles->first_segment[i], error);
    }
    return r;
}

/** Pieces from the first one that passes to the last one. */
static struct eng_piece_range passing(const zero_ctx *z, size_t tile)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    struct eng_piece_range range = cut->of_tile[tile];
    while (range.count > 0 && !passes(z, &cut->pieces[range.first])) {
        range.first++;
        range.count--;
    }
    while (range.count > 0 && !passes(z, &cut->pieces[range.first + range.count - 1]))
        range.count--;
    return range;
}

/** Each of the three waits for the one before, and the first one until the buffer is free. */
static zero_result pass(const zero_ctx *z, size_t tile, unsigned char *memory,
                        struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct device_tiles *tiles = d->state->tiles;
    void *left = tiles->left[tile % tiles->used];
    const struct eng_piece_range range = passing(z, tile);
    if (range.count == 0)
        return ZERO_OK;
    zero_result r = d->ops->event_wait(left, tiles->inward, error);
    if (!r)
        r = move_tile(z, range, memory, true, error);
    if (!r)
        r = d->ops->event_record(tiles->arrived, tiles->inward, error);
    if (!r)
        r = d->ops->event_wait(tiles->arrived, d->own, error);
    if (!r)
        r = update_tile(z, range, error);
    if (!r)
        r = d->ops->event_record(tiles->worked, d->own, error);
    if (!r)
        r = d->ops->event_wait(tiles->worked, tiles->outward, error);
    if (!r)
        r = move_tile(z, range, memory, false, error);
    return r ? r : d->ops->event_record(left, tiles->outward, error);
}

/** Whether the sums are queued of all of a tile that is updated before the verdict. */
static bool early_sums_queued(const zero_ctx *z, size_t tile)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    const struct eng_piece_range range = cut->of_tile[tile];
    for (size_t i = range.first; i < range.first + range.count; i++) {
        const size_t s = cut->pieces[i].bucket;
        if (z->io[s].trains && eng_updates_early(z, s) && !z->io[s].fused)
            return false;
    }
    return true;
}

zero_result device_tiles_fused(const zero_ctx *z, size_t bucket, struct base_error *error)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    const struct eng_piece_range range = cut->of_bucket[bucket];
    zero_result r = ZERO_OK;
    // Backward passes go down.
    for (size_t i = range.first + range.count; !r && i-- > range.first;)
        if (early_sums_queued(z, cut->pieces[i].tile))
            r = pass(z, cut->pieces[i].tile, NULL, error);
    return r;
}

void device_tiles_begin(const zero_ctx *z)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    tiles->turn = DEVICE_PERSISTENT;
    tiles->next = 0;
}

void device_tiles_turn(const zero_ctx *z, bool persistent)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    if ((tiles->turn == DEVICE_PERSISTENT) == persistent)
        return;
    tiles->turn = persistent ? DEVICE_PERSISTENT : DEVICE_OTHERS;
    tiles->next = 0;
}

zero_result device_tiles_bucket(const zero_ctx *z, size_t bucket, struct base_error *error)
{
    struct device_tiles *tiles = z->device->state->tiles;
    const struct eng_piece_range range = tiles->cut.of_bucket[bucket];
    const size_t end =
        range.count > 0 ? tiles->cut.pieces[range.first + range.count - 1].tile + 1 : 0;
    assert(end <= tiles->cut.training);
    zero_result r = ZERO_OK;
    for (; !r && tiles->next < end; tiles->next++)
        r = pass(z, tiles->next, NULL, error);
    return r;
}

/* ------------------------------------------------------------------ tiles of files */

zero_result eng_device_tiles_pin(const zero_ctx *z, const struct off_pages *pages,
                                 struct base_error *error)
{
    struct device_tiles *tiles = z->device->state->tiles;
    assert(!tiles->pinned);
    const zero_result r = z->device->ops->pin(pages->memory, pages->bytes, error);
    if (!r)
        tiles->pinned = pages->memory;
    return r;
}

zero_result eng_device_tiles_pass(const zero_ctx *z, size_t tile, unsigned char *memory,
                                  struct base_error *error)
{
    struct base_error inner = {0};
    const zero_result r = pass(z, tile, memory, &inner);
    return r ? device_tell(z, &inner, "updating a tile of a file", error) : ZERO_OK;
}

zero_result eng_device_tiles_left(const zero_ctx *z, size_t tile, bool waits,
                                  struct base_error *error)
{
    const struct base_device *ops = z->device->ops;
    const struct device_tiles *tiles = z->device->state->tiles;
    void *left = tiles->left[tile % tiles->used];
    struct base_error inner = {0};
    const zero_result r = waits ? ops->event_sync(left, &inner) : ops->event_query(left, &inner);
    return r < 0 ? device_tell(z, &inner, "updating a tile of a file", error) : r;
}

zero_result eng_device_tiles_end(const zero_ctx *z, struct base_error *error)
{
    struct base_error inner = {0};
    const zero_result r = z->device->ops->event_record(z->device->shown, z->device->own, &inner);
    return r ? device_tell(z, &inner, "updating tiles of files", error) : ZERO_OK;
}

void eng_device_tiles_stop(const zero_ctx *z)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    z->device->ops->stream_sync(tiles->inward, NULL);
    z->device->ops->stream_sync(tiles->outward, NULL);
}
