// Master weights and moments that are in memory of the host, and pass through the device in every
// update, tile by tile: in, update, out, in a stream each. Only code that looks at them in memory
// of the host waits for it. Those of files are there from when they were read until they are
// written (zero/store/nvme_update.c). A tile always goes through the same buffer, so the runs of
// all updates are the same. Where zero_step() does not wait for files, what persists passes first.
// The work queued behind the step waits for that; the gathers of a unit wait for the rest. In a
// fused step a tile passes as soon as the sums are queued of all of it that may be updated early.
// It passes once more with the rest, if there is any, behind the verdict.

#include "zero/core/addresses.h"
#include "zero/core/progress.h"
#include "zero/core/state_cut.h"
#include "zero/exec/device_parts.h"

#include "base/arena.h"
#include "zero/model/state_tiles.h"

enum { BUFFERS = 8, ALIGNMENT = 4096 };

/** What of a tile passes at a time: of files all of it, else what persists first. Of that nothing
 * is updated before the verdict. */
enum turn { ALL, PERSISTENT, OTHERS };

struct device_tiles {
    struct eng_tiles cut;
    unsigned char *memory;  /**< of the device: buffers, each of every BUFFERS-th tile, and runs */
    size_t spacing;         /**< of buffers */
    size_t used;            /**< of them */
    void *inward, *outward; /**< streams */
    void *arrived, *worked; /**< events behind the newest tile's way in, and behind its update, */
    void *left[BUFFERS];    /**< and behind the way out of the newest tile of each buffer */
    size_t *first_run;      /**< of each piece that trains, one more at the end, */
    size_t noted;           /**< of which so many are known */
    enum turn turn;         /**< of the newest update, */
    size_t next;            /**< and the first tile that it has not come to */
    void *pinned;
};

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
    return cut->training < BUFFERS ? cut->training : BUFFERS;
}

static size_t runs_bytes(const zero_ctx *z, const struct eng_placement *placement,
                         const struct eng_tiles *cut)
{
    return device_runs_count(&z->layout, placement, cut) * sizeof(struct eng_device_run);
}

/** Bytes of a device's memory. */
static size_t memory_bytes(const zero_ctx *z, const struct eng_placement *placement,
                           const struct eng_tiles *cut)
{
    return used_of(cut) * spacing_of(cut) + runs_bytes(z, placement, cut);
}

zero_result eng_device_tiles_need(const zero_ctx *z, const struct eng_placement *placement,
                                  struct eng_device_tiles_needs *needs, struct base_error *error)
{
    struct eng_tiles cut;
    *needs = (struct eng_device_tiles_needs){0};
    if (!z->config.streamed)
        return ZERO_OK;
    const zero_result r = eng_state_cut(z, placement, &cut, error);
    if (r)
        return r;
    needs->device = memory_bytes(z, placement, &cut);
    needs->tables = sizeof(struct device_tiles) + eng_tiles_bytes(&cut, &z->layout) +
                    (training_pieces(&cut) + 1) * sizeof(size_t) + runs_bytes(z, placement, &cut);
    eng_tiles_free(&cut);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ where fields are */

const struct eng_tiles *device_cut(const zero_ctx *z)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    return tiles ? &tiles->cut : NULL;
}

struct eng_device_run *device_runs(const zero_ctx *z)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return device_piece(z->device, DEVICE_RUNS);
    return (struct eng_device_run *)(void *)(tiles->memory + tiles->used * tiles->spacing);
}

/** Whether a field of a section is on the device between updates: its working copies are, and
 * these may be the only weights. */
static bool stays(const zero_ctx *z, int field, size_t section)
{
    const bool only = !eng_apart(&z->layout.sections[section], &z->placement.sections[section]);
    return !z->device->state->tiles || (field == 0 && only);
}

/** Where a field is between updates. */
static void *home(const zero_ctx *z, int field, size_t section, size_t element)
{
    size_t size;
    return field > 0 ? eng_moments(z, field - 1, section, element)
                     : eng_best_weights(z, section, element, &size);
}

static unsigned char *buffer_of(const struct device_tiles *tiles, size_t tile)
{
    return tiles->memory + tile % tiles->used * tiles->spacing;
}

void *device_field(const zero_ctx *z, int field, size_t section, size_t element)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    if (stays(z, field, section))
        return home(z, field, section, element);
    const struct eng_piece *piece = eng_tiles_piece(&tiles->cut, section, element / ENG_GRANULE);
    return buffer_of(tiles, piece->tile) + eng_piece_offset(piece, field, element);
}

void device_tiles_note(const zero_ctx *z, size_t section, size_t element, size_t run)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    const struct eng_piece *piece = eng_tiles_piece(&tiles->cut, section, element / ENG_GRANULE);
    tiles->noted = run == 0 ? 0 : tiles->noted;
    while (tiles->noted <= (size_t)(piece - tiles->cut.pieces))
        tiles->first_run[tiles->noted++] = run;
}

void device_tiles_noted(const zero_ctx *z, size_t runs)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    tiles->noted = runs == 0 ? 0 : tiles->noted;
    while (tiles->noted <= training_pieces(&tiles->cut))
        tiles->first_run[tiles->noted++] = runs;
}

/* ------------------------------------------------------------------ an update */

/** Copies a piece's fields to their buffer, or back. `memory` has the tile, if it is one of a file:
 * that has a copy of a field that stays here, too. */
static zero_result move_piece(const zero_ctx *z, const struct eng_piece *piece,
                              unsigned char *memory, bool in, struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    const size_t s = piece->section, element = piece->first * ENG_GRANULE;
    const size_t elements = piece->granules * ENG_GRANULE;
    zero_result r = ZERO_OK;
    for (int field = 0; !r && field <= piece->moments; field++) {
        const bool copied = stays(z, field, s);
        if (copied && (in || !memory))
            continue;
        void *here = device_field(z, field, s, element);
        void *there =
            memory ? memory + eng_piece_offset(piece, field, element) : home(z, field, s, element);
        r = z->device->ops->copy(in ? here : there, in ? there : here,
                                 elements * (field ? piece->moment_size : piece->weight_size),
                                 in ? tiles->inward : tiles->outward, error);
    }
    return r;
}

/** Whether a piece passes now: before the verdict, or behind it what did not before. */
static bool passes(const zero_ctx *z, const struct eng_piece *piece)
{
    const struct eng_section_io *io = &z->io[piece->section];
    const enum turn turn = z->device->state->tiles->turn;
    const bool persistent = z->layout.sections[piece->section].persistent;
    return io->trains && io->fused == z->device->state->fused &&
           (turn == ALL || persistent == (turn == PERSISTENT));
}

static zero_result move_tile(const zero_ctx *z, struct eng_piece_run run, unsigned char *memory,
                             bool in, struct base_error *error)
{
    const struct eng_piece *pieces = z->device->state->tiles->cut.pieces;
    zero_result r = ZERO_OK;
    for (size_t i = run.first; !r && i < run.first + run.count; i++)
        if (passes(z, &pieces[i]))
            r = move_piece(z, &pieces[i], memory, in, error);
    return r;
}

/** Pieces side by side in one go. */
static zero_result update_tile(const zero_ctx *z, struct eng_piece_run run,
                               struct base_error *error)
{
    const struct device_tiles *tiles = z->device->state->tiles;
    const size_t end = run.first + run.count;
    zero_result r = ZERO_OK;
    for (size_t i = run.first, last; !r && i < end; i = last + 1) {
        for (last = i; last < end && passes(z, &tiles->cut.pieces[last]);)
            last++;
        r = device_update_runs(z, tiles->first_run[i], tiles->first_run[last] - tiles->first_run[i],
                               error);
    }
    return r;
}

/** Pieces from the first one that passes to the last one. */
static struct eng_piece_run passing(const zero_ctx *z, size_t tile)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    struct eng_piece_run run = cut->of_tile[tile];
    while (run.count > 0 && !passes(z, &cut->pieces[run.first])) {
        run.first++;
        run.count--;
    }
    while (run.count > 0 && !passes(z, &cut->pieces[run.first + run.count - 1]))
        run.count--;
    return run;
}

/** Each of the three waits for the one before, and the first one until the buffer is free. */
static zero_result pass(const zero_ctx *z, size_t tile, unsigned char *memory,
                        struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct device_tiles *tiles = d->state->tiles;
    void *left = tiles->left[tile % tiles->used];
    const struct eng_piece_run run = passing(z, tile);
    if (run.count == 0)
        return ZERO_OK;
    zero_result r = d->ops->event_wait(left, tiles->inward, error);
    if (!r)
        r = move_tile(z, run, memory, true, error);
    if (!r)
        r = d->ops->event_record(tiles->arrived, tiles->inward, error);
    if (!r)
        r = d->ops->event_wait(tiles->arrived, d->own, error);
    if (!r)
        r = update_tile(z, run, error);
    if (!r)
        r = d->ops->event_record(tiles->worked, d->own, error);
    if (!r)
        r = d->ops->event_wait(tiles->worked, tiles->outward, error);
    if (!r)
        r = move_tile(z, run, memory, false, error);
    return r ? r : d->ops->event_record(left, tiles->outward, error);
}

/** Whether the sums are queued of all of a tile that is updated before the verdict. */
static bool is_summed(const zero_ctx *z, size_t tile)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    const struct eng_piece_run run = cut->of_tile[tile];
    for (size_t i = run.first; i < run.first + run.count; i++) {
        const size_t s = cut->pieces[i].section;
        if (z->io[s].trains && eng_fused_early(z, s) && !z->io[s].fused)
            return false;
    }
    return true;
}

zero_result device_tiles_fused(const zero_ctx *z, size_t section, struct base_error *error)
{
    const struct eng_tiles *cut = &z->device->state->tiles->cut;
    const struct eng_piece_run run = cut->of_section[section];
    zero_result r = ZERO_OK;
    // Backward passes go down.
    for (size_t i = run.first + run.count; !r && i-- > run.first;)
        if (is_summed(z, cut->pieces[i].tile))
            r = pass(z, cut->pieces[i].tile, NULL, error);
    return r;
}

void device_tiles_begin(const zero_ctx *z)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    tiles->turn = PERSISTENT;
    tiles->next = 0;
}

void device_tiles_turn(const zero_ctx *z, bool persistent)
{
    struct device_tiles *tiles = z->device->state->tiles;
    if (!tiles)
        return;
    if ((tiles->turn == PERSISTENT) == persistent)
        return;
    tiles->turn = persistent ? PERSISTENT : OTHERS;
    tiles->next = 0;
}

zero_result device_tiles_section(const zero_ctx *z, size_t section, struct base_error *error)
{
    struct device_tiles *tiles = z->device->state->tiles;
    const struct eng_piece_run run = tiles->cut.of_section[section];
    const size_t end = run.count > 0 ? tiles->cut.pieces[run.first + run.count - 1].tile + 1 : 0;
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
    tiles->first_run = base_calloc(training_pieces(&tiles->cut) + 1, sizeof *tiles->first_run);
    if (!tiles->first_run)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the runs of %zu pieces of tiles",
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
    base_free(tiles->first_run);
    base_free(tiles);
}
