#include "zero/store/nvme_params.h"
#include "zero/core/api_call.h"

#include "zero/store/nvme_tier.h"

#include <assert.h>
#include <string.h>

/** Beside the gather slots: of a step that writes them, and on their way from the file. */
static const struct eng_strip_buffers buffers = {.pass = 4, .moves = 8};

/* ------------------------------------------------------------------ how much */

/** What decides the bytes of a piece. */
struct kind {
    const struct eng_layout *layout;
    const struct eng_placement *placement;
};

static size_t piece_bytes(const void *user, const struct eng_piece *piece)
{
    const struct kind *kind = user;
    if (!kind->placement->buckets[piece->bucket].staged)
        return 0;
    return piece->granules * BASE_GRANULE *
           eng_dtype_size(kind->layout->buckets[piece->bucket].dtype);
}

static zero_result make_strips(const zero_ctx *z, const struct eng_placement *placement,
                               const struct eng_tiles *tiles, struct eng_strips *strips,
                               struct base_error *error)
{
    const struct kind kind = {&z->layout, placement};
    return eng_strips_make(strips, &z->layout, tiles, piece_bytes, &kind, error);
}

/** Bytes that a step reads, forwards and backwards in each micro-batch, and writes: what trains. */
static void count_moved(const zero_ctx *z, const struct eng_tiles *tiles,
                        const struct eng_strips *strips, struct eng_file_needs *file)
{
    for (size_t i = 0; i < strips->count; i++) {
        file->read += 2 * (uint64_t)z->micro.count * strips->bytes[i];
        const size_t tile = tiles->pieces[strips->list[i].first_piece].tile;
        file->written += tile < tiles->training ? strips->bytes[i] : 0;
    }
}

/** Tables beside those of the strips. */
static void lay_tables(const zero_ctx *z, struct eng_params *params)
{
    struct eng_strips *strips = &params->file.strips;
    params->stages = base_tables_add(&strips->tables, z->layout.unit_count, sizeof *params->stages);
    params->moves = base_tables_add(&strips->tables, strips->count + 1, sizeof *params->moves);
}

zero_result eng_params_needs(const zero_ctx *z, const struct eng_placement *placement,
                             const struct eng_tiles *tiles, struct eng_tier_needs *needs,
                             struct base_error *error)
{
    struct eng_file_needs *file = &needs->files[ENG_FILE_PARAMS];
    struct eng_params counted;
    struct eng_strips *strips = &counted.file.strips;
    if (!z->config.params_nvme)
        return ZERO_OK;
    const zero_result r = make_strips(z, placement, tiles, strips, error);
    if (r)
        return r;
    strips->tables.counts = true;
    lay_tables(z, &counted);
    eng_strip_file_needs(z, strips, buffers, file, &needs->tables);
    count_moved(z, tiles, strips, file);
    eng_strips_free(strips);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ life */

zero_result eng_params_open(zero_ctx *z, struct base_error *error)
{
    struct eng_params *params = &z->tier->params;
    struct eng_strips *strips = &params->file.strips;
    if (!z->config.params_nvme)
        return ZERO_OK;
    const zero_result r = make_strips(z, &z->placement, &z->tier->tiles, strips, error);
    if (r)
        return r;
    lay_tables(z, params);
    if (strips->tables.failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the places of %zu strips",
                         strips->count);
    return eng_strip_file_open(z, &params->file, buffers, error);
}

void eng_params_close(struct eng_params *params)
{
    eng_strip_file_close(&params->file);
}

/** Says whose file it is that something went wrong with: it has no name of its own. */
static zero_result blame(zero_result r, struct base_error *error)
{
    const struct base_error cause = *error;
    base_error_clear(error);
    return zero_fail(error, r, "working copies in %s", cause.message);
}

/* ------------------------------------------------------------------ from the tiles */

/** Working copies of weights; large ones are dealt out over the pool's threads. */
struct copies {
    const struct base_kernels *kernels;
    zero_dtype dtype;
    bool narrow; /**< the weights are masters */
    const unsigned char *from;
    unsigned char *to;
    size_t granules;
};

enum { TASK_GRANULES = 64 };

static void copy_some(void *user, size_t index, int thread)
{
    const struct copies *copies = user;
    assert(index * TASK_GRANULES < copies->granules);
    const size_t first = index * TASK_GRANULES, left = copies->granules - first;
    const size_t count = (left < TASK_GRANULES ? left : TASK_GRANULES) * BASE_GRANULE;
    const size_t size = eng_dtype_size(copies->dtype), at = first * BASE_GRANULE;
    (void)thread;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    if (copies->narrow)
        eng_narrow(copies->kernels, copies->dtype, (const float *)(const void *)copies->from + at,
                   count, copies->to + at * size);
    else
        memcpy(copies->to + at * size, copies->from + at * size, count * size);
    base_fp_leave(&saved);
}

static void make_piece(const zero_ctx *z, const struct eng_piece *piece, unsigned char *to)
{
    assert(z->tier->memory[piece->tile] && to);
    const zero_dtype dtype = z->layout.buckets[piece->bucket].dtype;
    struct copies copies = {
        .kernels = z->cpu.kernels,
        .dtype = dtype,
        .narrow = piece->weight_size != eng_dtype_size(dtype),
        .from = z->tier->memory[piece->tile] + piece->offset,
        .to = to,
        .granules = piece->granules,
    };
    const size_t tasks = (piece->granules + TASK_GRANULES - 1) / TASK_GRANULES;
    base_pool_run(tasks > 1 ? z->cpu.pool : NULL, tasks, copy_some, &copies);
}

/** Copies a piece to its place in a slot. */
static void put_piece(const zero_ctx *z, unsigned char *slot, const struct eng_piece *piece,
                      const unsigned char *bytes)
{
    assert(z->placement.buckets[piece->bucket].staged);
    const size_t granule = BASE_GRANULE * eng_dtype_size(z->layout.buckets[piece->bucket].dtype);
    unsigned char *bucket = slot + z->placement.buckets[piece->bucket].slot_offset;
    memcpy(bucket + piece->first * granule, bytes, piece->granules * granule);
}

/** What is gathered first after the update is there then. */
static void keep_piece(const zero_ctx *z, const struct eng_piece *piece, const unsigned char *bytes)
{
    const int slot = z->units[z->layout.buckets[piece->bucket].unit].slot;
    if (slot >= 0 && z->gathers.slots[slot].keeps)
        put_piece(z, z->memory.slots + z->gathers.slots[slot].offset, piece, bytes);
}

void eng_params_begin(zero_ctx *z, size_t count)
{
    eng_strip_file_begin(z, &z->tier->params.file, count, NULL, true);
}

bool eng_params_ready(const zero_ctx *z, size_t tile)
{
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    const size_t last = z->tier->up ? range.first + range.count - 1 : range.first;
    return eng_strip_file_ready(&z->tier->params.file, last);
}

zero_result eng_params_make(zero_ctx *z, size_t tile, struct base_error *error)
{
    assert(tile < z->tier->tiles.count);
    const struct eng_piece_range range = z->tier->tiles.of_tile[tile];
    unsigned char *bytes;
    for (size_t i = 0; i < range.count; i++) {
        const size_t number = range.first + (z->tier->up ? i : range.count - 1 - i);
        const struct eng_piece *piece = &z->tier->tiles.pieces[number];
        if (!z->placement.buckets[piece->bucket].staged)
            continue;
        const zero_result r = eng_strip_file_piece(&z->tier->params.file, number, &bytes, error);
        if (r)
            return blame(r, error);
        make_piece(z, piece, bytes);
        keep_piece(z, piece, bytes);
    }
    return ZERO_OK;
}

void eng_params_end(zero_ctx *z, struct base_error *error)
{
    struct base_error end = {0};
    if (!eng_strip_file_end(&z->tier->params.file, &end) || error->result)
        return;
    blame(end.result, &end);
    *error = end;
}

/* ------------------------------------------------------------------ to the slots */

/** Copies a strip to its places in a slot, on the tile I/O's thread: no other thread uses those. */
static void take_contents(void *user, size_t number, void *contents)
{
    const struct eng_stage *stage = user;
    const zero_ctx *z = stage->z;
    const struct eng_strips *strips = &z->tier->params.file.strips;
    assert(number < strips->count && stage->slot);
    const struct eng_strip *strip = &strips->list[number];
    for (size_t i = strip->first_piece; i < strip->first_piece + strip->pieces; i++) {
        put_piece(z, stage->slot, &z->tier->tiles.pieces[i],
                  (const unsigned char *)contents + strips->offset_of_piece[i]);
    }
}

/** The strips of a unit: those that train, and those that are frozen. */
static void ranges_of(const struct eng_strips *strips, zero_unit unit,
                      struct eng_piece_range ranges[2])
{
    ranges[0] = strips->of_unit[unit];
    ranges[1] = strips->frozen_of_unit[unit];
}

void eng_tier_stage(zero_ctx *z, zero_unit unit, unsigned char *slot)
{
    struct eng_params *params = &z->tier->params;
    assert(params->stages && slot);
    struct eng_piece_range ranges[2];
    ranges_of(&params->file.strips, unit, ranges);
    params->stages[unit] = (struct eng_stage){.z = z, .slot = slot};
    for (int i = 0; i < 2; i++)
        for (size_t strip = ranges[i].first; strip < ranges[i].first + ranges[i].count; strip++) {
            params->moves[strip] = (struct off_tile_op){
                .direction = OFF_READ,
                .tile = strip,
                .exchange = take_contents,
                .user = &params->stages[unit],
            };
            off_tile_io_start(params->file.tile_io, &params->moves[strip]);
        }
}

/** Waits for one move. What peers want of this rank meanwhile they get between two moves. */
static zero_result wait_move(zero_ctx *z, zero_unit unit, struct off_tile_op *move)
{
    struct off_tile_io *tile_io = z->tier->params.file.tile_io;
    struct base_error error = {0};
    if (!off_tile_io_done(tile_io, move)) {
        const zero_result r = coll_progress(z->comm);
        if (r)
            return eng_comm_failed(z, r);
    }
    const zero_result r = off_tile_io_wait(tile_io, move, &error);
    return r ? eng_fail(z, r, "working copies of unit %d (%s) in %s", unit, z->units[unit].name,
                        error.message)
             : ZERO_OK;
}

zero_result eng_tier_stage_wait(zero_ctx *z, zero_unit unit)
{
    struct eng_params *params = &z->tier->params;
    struct eng_piece_range ranges[2];
    zero_result r = ZERO_OK;
    ranges_of(&params->file.strips, unit, ranges);
    for (int i = 0; i < 2; i++)
        for (size_t strip = ranges[i].first; !r && strip < ranges[i].first + ranges[i].count;
             strip++)
            r = wait_move(z, unit, &params->moves[strip]);
    return r;
}
