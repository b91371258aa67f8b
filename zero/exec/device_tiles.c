// Master weights and moments that are in memory of the host, and pass through the device in every
// update, tile by tile (device_passes.c): how they are cut, and where their fields are. A tile
// always goes through one buffer, so the segments of all updates are the same.

#include "zero/exec/device_tiles.h"
#include "zero/core/addresses.h"
#include "zero/core/state_cut.h"

#include "base/arena.h"

#include <assert.h>

enum { ALIGNMENT = 4096 };

/* ------------------------------------------------------------------ sizes */

/** Tiles that train are the first, and the only ones that pass. */
static size_t spacing_of(const struct eng_tiles *cut)
{
    size_t most = 0;
    for (size_t i = 0; i < cut->training; i++)
        most = cut->bytes[i] > most ? cut->bytes[i] : most;
    return (most + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/** Pieces of these. */
static size_t training_pieces(const struct eng_tiles *cut)
{
    return cut->training < cut->count ? cut->of_tile[cut->training].first : cut->piece_count;
}

static size_t used_of(const struct eng_tiles *cut)
{
    return cut->training < DEVICE_TILE_BUFFERS ? cut->training : DEVICE_TILE_BUFFERS;
}

static size_t segments_bytes(const zero_ctx *z, const struct eng_placement *placement,
                             const struct eng_tiles *cut)
{
    return device_segments_count(&z->layout, placement, cut) * sizeof(struct base_device_segment);
}

/** Bytes of a device's memory. */
static size_t memory_bytes(const zero_ctx *z, const struct eng_placement *placement,
                           const struct eng_tiles *cut)
{
    return used_of(cut) * spacing_of(cut) + segments_bytes(z, placement, cut);
}

zero_result device_tiles_need(const zero_ctx *z, const struct eng_placement *placement,
                              struct eng_need *need, struct base_error *error)
{
    struct eng_tiles cut;
    if (!z->config.streamed)
        return ZERO_OK;
    const zero_result r = eng_state_cut(z, placement, &cut, error);
    if (r)
        return r;
    need->gpu[ENG_GPU_TILES] = memory_bytes(z, placement, &cut);
    need->rows[ENG_FOR_TABLES] += sizeof(struct device_tiles) + cut.tables.bytes +
                                  (training_pieces(&cut) + 1) * sizeof(size_t) +
                                  segments_bytes(z, placement, &cut);
    eng_tiles_free(&cut);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ where fields are */

const struct eng_tiles *device_cut(const zero_ctx *z)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    return tiles ? &tiles->cut : NULL;
}

struct base_device_segment *device_segments(const zero_ctx *z)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return device_piece(z->device, DEVICE_SEGMENTS);
    return (struct base_device_segment *)(void *)(tiles->memory + tiles->used * tiles->spacing);
}

bool device_field_stays(const zero_ctx *z, int field, size_t bucket)
{
    const bool only = !eng_apart(&z->layout.buckets[bucket], &z->placement.buckets[bucket]);
    return !z->device->state->tiles || (field == 0 && only);
}

void *device_field_home(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    size_t size;
    return field > 0 ? eng_moments(z, field - 1, bucket, element)
                     : eng_best_weights(z, bucket, element, &size);
}

static unsigned char *buffer_of(const struct device_tiles *tiles, size_t tile)
{
    assert(tile < tiles->cut.training);
    return tiles->memory + tile % tiles->used * tiles->spacing;
}

void *device_field(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    if (device_field_stays(z, field, bucket))
        return device_field_home(z, field, bucket, element);
    const struct eng_piece *piece = eng_tiles_piece(&tiles->cut, bucket, element / BASE_GRANULE);
    return buffer_of(tiles, piece->tile) + eng_piece_offset(piece, field, element);
}

void device_tiles_note(const zero_ctx *z, size_t bucket, size_t element, size_t segment)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    const struct eng_piece *piece = eng_tiles_piece(&tiles->cut, bucket, element / BASE_GRANULE);
    assert(piece->tile < tiles->cut.training);
    tiles->noted = segment == 0 ? 0 : tiles->noted;
    while (tiles->noted <= (size_t)(piece - tiles->cut.pieces))
        tiles->first_segment[tiles->noted++] = segment;
}

void device_tiles_noted(const zero_ctx *z, size_t segments)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    tiles->noted = segments == 0 ? 0 : tiles->noted;
    while (tiles->noted <= training_pieces(&tiles->cut))
        tiles->first_segment[tiles->noted++] = segments;
}

/* ------------------------------------------------------------------ who looks at it */

bool device_has(const zero_ctx *z, const void *address)
{
    const struct device_state *state = z->device->state;
    const unsigned char *at = address;
    return at >= state->memory && at < state->memory + state->offsets[DEVICE_PIECES];
}

zero_result device_tiles_settle(const zero_ctx *z, struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    return tiles ? z->device->ops->stream_sync(tiles->outward, error) : ZERO_OK;
}

zero_result device_tiles_before(const zero_ctx *z, void *stream, struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    zero_result r = ZERO_OK;
    for (size_t i = 0; tiles && !r && i < tiles->used; i++)
        r = z->device->ops->event_wait(tiles->left[i], stream, error);
    return r;
}

/* ------------------------------------------------------------------ life */

static zero_result make_ways(const struct base_device *ops, struct device_tiles *tiles,
                             struct base_error *error)
{
    zero_result r = ops->stream_create(&tiles->inward, false, error);
    if (!r)
        r = ops->stream_create(&tiles->outward, false, error);
    if (!r)
        r = ops->event_create(&tiles->arrived, error);
    if (!r)
        r = ops->event_create(&tiles->worked, error);
    for (size_t i = 0; !r && i < tiles->used; i++)
        r = ops->event_create(&tiles->left[i], error);
    return r;
}

static zero_result make_memory(const zero_ctx *z, struct device_tiles *tiles,
                               struct base_error *error)
{
    const struct base_device *ops = z->device->ops;
    void *memory;
    const size_t bytes = memory_bytes(z, &z->placement, &tiles->cut);
    tiles->first_segment =
        base_calloc(training_pieces(&tiles->cut) + 1, sizeof *tiles->first_segment);
    if (!tiles->first_segment)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the segments of %zu pieces of tiles",
                         training_pieces(&tiles->cut));
    zero_result r = bytes > 0 ? ops->alloc(&memory, bytes, error) : ZERO_OK;
    if (r)
        return r;
    tiles->memory = bytes > 0 ? memory : NULL;
    if (z->memory.private_memory.size > 0)
        r = ops->pin(z->memory.private_memory.memory, z->memory.private_memory.size, error);
    if (!r && z->memory.private_memory.size > 0)
        tiles->pinned = z->memory.private_memory.memory;
    return r;
}

zero_result device_tiles_make(zero_ctx *z, struct base_error *error)
{
    struct device_state *state = z->device->state;
    if (!z->config.streamed)
        return ZERO_OK;
    struct device_tiles *tiles = base_calloc(1, sizeof *tiles);
    state->tiles = tiles;
    if (!tiles)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for tiles of a device");
    zero_result r = eng_state_cut(z, &z->placement, &tiles->cut, error);
    tiles->used = used_of(&tiles->cut);
    tiles->spacing = spacing_of(&tiles->cut);
    if (!r)
        r = make_ways(z->device->ops, tiles, error);
    return r ? r : make_memory(z, tiles, error);
}

void device_tiles_free(zero_ctx *z)
{
    const struct base_device *ops = z->device->ops;
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    if (tiles->inward)
        ops->stream_sync(tiles->inward, NULL);
    if (tiles->outward)
        ops->stream_sync(tiles->outward, NULL);
    for (size_t i = 0; i < tiles->used; i++)
        ops->event_destroy(tiles->left[i]);
    ops->event_destroy(tiles->worked);
    ops->event_destroy(tiles->arrived);
    ops->stream_destroy(tiles->inward);
    ops->stream_destroy(tiles->outward);
    ops->unpin(tiles->pinned);
    ops->free(tiles->memory);
    eng_tiles_free(&tiles->cut);
    base_free(tiles->first_segment);
    base_free(tiles);
}
