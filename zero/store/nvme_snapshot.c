// The state of a record, read while steps go on: the first change of a tile goes to its other
// place, so only the second has to wait, until what there is of the tile in the sources has been
// read. Tiles are read ahead of what the saver asks for: one at a time a disk is several times as
// slow as it could be, and the second update waits for it.

#include "zero/model/ranges.h"
#include "zero/store/host_snapshot.h"
#include "zero/store/nvme_tier.h"

#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/codec/block_codec.h"
#include "checkpoint/saver.h"
#include "offload/io/io_engine.h"
#include "offload/tile_io.h"
#include "zero/store/nvme_codec.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/** So many tiles are on their way at most, and of large ones so many bytes: less than what steps
 * read at a time, which come first. */
enum { MOST_AHEAD = 4, AHEAD_BYTES = 4 << 20 };

/** What the fields of a block have in tiles, with two moments: they are read in turn, and blocks
 * begin anywhere in tiles. Where it is more tiles some are read again. */
enum { BLOCK_BYTES = 3 * CKPT_BLOCK_ELEMENTS * sizeof(float) };

/** A tile as it was recorded. */
struct place {
    struct eng_snapshot *recorded;
    size_t tile;             /**< SIZE_MAX: none */
    uint64_t used;           /**< the one of longest ago goes first */
    unsigned char *memory;   /**< has it when the move is done */
    struct off_tile_op move; /**< brings it there */
    struct base_error error; /**< of the move alone: the tile I/O's thread's until it is done */
};

struct eng_snapshot {
    const struct eng_tier *tier;
    struct base_tables tables;
    struct off_contents *contents; /**< of each tile */
    size_t *blocks;                /**< of the sources, to the last one that has a part of it */
    struct off_tile_io *tile_io;
    struct place *places;
    size_t place_count, ahead; /**< tiles of a block, and so many behind them */
    unsigned char *memory;     /**< of the places */
    void *coder;               /**< that decodes, in the tile I/O's thread */
    uint64_t uses;
    size_t newest;             /**< tile that was asked for; SIZE_MAX: none */
    unsigned char *block;      /**< where what lies in several tiles is put together */
    bool begun;                /**< tiles may be on their way */
    struct eng_snapshot *next; /**< of those that are left to the end of the tier */
};

/** Finds out of which tiles a source is, whose blocks begin at `first_block`. */
static void place_source(const struct eng_tier *tier, struct eng_snapshot *recorded,
                         const struct eng_slice *slice, const struct ckpt_source *source,
                         size_t first_block)
{
    const size_t origin = slice->granule * BASE_GRANULE;
    const uint64_t first = source->run.first, end = first + source->run.count;
    for (uint64_t at = first, next; at < end; at = next) {
        const size_t element = origin + (size_t)at;
        const struct eng_piece *piece =
            eng_tiles_piece(&tier->tiles, slice->bucket, element / BASE_GRANULE);
        next = at + eng_tiles_left(&tier->tiles, slice->bucket, element);
        const uint64_t count = (next < end ? next : end) - first;
        recorded->blocks[piece->tile] =
            first_block + (size_t)ckpt_block_count(first, count) * (size_t)source->fields;
    }
}

static void place_sources(const struct eng_tier *tier, struct eng_snapshot *recorded,
                          const struct eng_sources *sources)
{
    size_t block = 0;
    for (size_t i = 0; i < sources->count; i++) {
        const struct ckpt_source *source = &sources->list[i];
        place_source(tier, recorded, sources->slice[i], source, block);
        block +=
            (size_t)ckpt_block_count(source->run.first, source->run.count) * (size_t)source->fields;
    }
}

/* ------------------------------------------------------------------ life */

/** How many tiles of that size are read ahead. */
static size_t tiles_ahead(size_t tile_bytes)
{
    const size_t fit = AHEAD_BYTES / tile_bytes;
    return fit < 1 ? 1 : fit < MOST_AHEAD ? fit : MOST_AHEAD;
}

/** How many of them have places in memory. */
static size_t places_for(size_t tile_bytes)
{
    return tiles_ahead(tile_bytes) + 2 + BLOCK_BYTES / tile_bytes;
}

static struct off_tile_io_config tile_io_config(const zero_ctx *z, size_t tiles, size_t tile_bytes)
{
    return (struct off_tile_io_config){
        .engine = off_io_engine_find(z->config.io),
        .tilefile = z->tier ? z->tier->tilefile : NULL,
        .tiles = tiles,
        .buffers = tiles_ahead(tile_bytes),
        .credits = {MOST_AHEAD - 1, 1}, // the other one is lent
        .timeout_s = z->config.timeout_s,
    };
}

/** All but the memory of places. */
static void lay_tables(struct eng_snapshot *recorded, size_t tiles, size_t tile_bytes)
{
    struct base_tables *tables = &recorded->tables;
    recorded->ahead = tiles_ahead(tile_bytes);
    recorded->place_count = places_for(tile_bytes);
    recorded->contents = base_tables_add(tables, tiles, sizeof *recorded->contents);
    recorded->blocks = base_tables_add(tables, tiles, sizeof *recorded->blocks);
    recorded->block = base_tables_add(tables, CKPT_BLOCK_ELEMENTS, sizeof(float));
    recorded->places = base_tables_add(tables, recorded->place_count, sizeof *recorded->places);
}

static size_t snapshot_bytes(const zero_ctx *z, const struct eng_tier_needs *needs)
{
    if (needs->tiles == 0)
        return 0;
    const struct off_tile_io_config tile_io = tile_io_config(z, needs->tiles, needs->tile_bytes);
    const struct off_pipeline_memory moves = off_tile_io_memory(&tile_io, needs->tile_bytes);
    struct eng_snapshot counted = {.tables.counts = true};
    lay_tables(&counted, needs->tiles, needs->tile_bytes);
    return sizeof counted + counted.tables.bytes + eng_tile_codec.bytes(NULL) + moves.buffers +
           moves.tables + counted.place_count * off_tilefile_room_for(needs->tile_bytes);
}

static zero_result allocate(struct eng_snapshot *recorded, const struct eng_tiles *tiles,
                            struct base_error *error)
{
    const size_t room = off_tilefile_room_for(tiles->largest);
    lay_tables(recorded, tiles->count, tiles->largest);
    recorded->memory = base_aligned_alloc(BASE_DIRECT_UNIT, recorded->place_count * room);
    if (recorded->tables.failed || !recorded->memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for reading %zu tiles", tiles->count);
    for (size_t i = 0; i < recorded->place_count; i++)
        recorded->places[i] = (struct place){
            .recorded = recorded, .tile = SIZE_MAX, .memory = recorded->memory + i * room};
    return ZERO_OK;
}

static zero_result make_snapshot(const zero_ctx *z, const struct eng_sources *sources,
                                 struct eng_snapshot **out, struct base_error *error)
{
    const struct eng_tier *tier = z->tier;
    *out = NULL;
    if (!tier || tier->tiles.count == 0)
        return ZERO_OK;
    struct eng_snapshot *recorded = base_calloc(1, sizeof *recorded);
    *out = recorded;
    if (!recorded)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for reading tiles");
    recorded->tier = tier;
    const zero_result r = allocate(recorded, &tier->tiles, error);
    if (r)
        return r;
    place_sources(tier, recorded, sources);
    return eng_tile_codec.create(&recorded->coder, &tier->tiles, error);
}

static zero_result take_memory(const zero_ctx *z, struct eng_snapshot *recorded,
                               struct base_error *error)
{
    if (!recorded || recorded->tile_io)
        return ZERO_OK;
    const struct eng_tiles *tiles = &z->tier->tiles;
    const struct off_tile_io_config config = tile_io_config(z, tiles->count, tiles->largest);
    return off_tile_io_create(&recorded->tile_io, &config, error);
}

static void destroy(struct eng_snapshot *recorded)
{
    off_tile_io_destroy(recorded->tile_io);
    eng_tile_codec.destroy(recorded->coder);
    base_free(recorded->memory);
    base_tables_free(&recorded->tables);
    base_free(recorded);
}

static void leave_snapshot(const zero_ctx *z, struct eng_snapshot *recorded)
{
    if (!recorded)
        return;
    if (recorded->begun) {
        off_tile_io_stop(recorded->tile_io);
        recorded->next = z->tier->left_by_saves;
        z->tier->left_by_saves = recorded;
    } else {
        destroy(recorded);
    }
}

void eng_recorded_end(struct eng_tier *tier)
{
    for (struct eng_snapshot *recorded; (recorded = tier->left_by_saves);) {
        tier->left_by_saves = recorded->next;
        destroy(recorded);
    }
}

/* ------------------------------------------------------------------ when */

static zero_result begin_snapshot(zero_ctx *z, struct eng_snapshot *recorded,
                                  struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    if (!recorded)
        return ZERO_OK;
    assert(recorded->tile_io);
    tier->turn = z->updates;
    // A save that was given up may have left some on their way. One that was ended by a disk that
    // hangs was the last: its memory may be the kernel's still.
    for (size_t i = 0; i < recorded->place_count; i++) {
        struct place *place = &recorded->places[i];
        const zero_result r = off_tile_io_wait(recorded->tile_io, &place->move, error);
        if (r && !place->error.result)
            return r;
        base_error_clear(error);
        place->tile = SIZE_MAX;
    }
    for (size_t i = 0; i < tier->tiles.count; i++)
        recorded->contents[i] = off_tilefile_recorded(tier->tilefile, i);
    recorded->newest = SIZE_MAX;
    recorded->begun = true;
    return ZERO_OK;
}

static size_t blocks_before(const zero_ctx *z, const struct eng_snapshot *recorded, size_t tile)
{
    const uint64_t next = off_tilefile_next_place(z->tier->tilefile, tile);
    return recorded->contents[tile].offset == next ? recorded->blocks[tile] : 0;
}

/* ------------------------------------------------------------------ reading */

/** Verifies what was read of a tile, and puts it to its place, in the tile I/O's thread. */
static void arrive(void *user, size_t tile, void *stored)
{
    struct place *place = user;
    const struct eng_tier *tier = place->recorded->tier;
    const struct off_contents *contents = &place->recorded->contents[tile];
    const size_t bytes = tier->tiles.bytes[tile];
    assert(place->tile == tile);
    struct base_error damage = {0};
    if (off_tilefile_check_recorded(tier->tilefile, tile, contents, stored, &place->error))
        return;
    if (contents->stored == bytes)
        memcpy(place->memory, stored, bytes);
    else if (eng_tile_codec.decode(place->recorded->coder, tile, stored, contents->stored,
                                   place->memory, bytes, &damage))
        zero_fail(&place->error, damage.result, "%s: tile %zu, %zu bytes at offset %" PRIu64 ": %s",
                  tier->path, tile, contents->stored, contents->offset, damage.message);
}

static struct place *place_of(struct eng_snapshot *recorded, size_t tile)
{
    for (size_t i = 0; i < recorded->place_count; i++)
        if (recorded->places[i].tile == tile)
            return &recorded->places[i];
    return NULL;
}

/** Has a tile read to the place that is needed least. */
static void read_tile(struct eng_snapshot *recorded, size_t tile)
{
    struct place *place = recorded->places;
    assert(tile < recorded->tier->tiles.count);
    for (size_t i = 1; i < recorded->place_count; i++)
        if (recorded->places[i].used < place->used)
            place = &recorded->places[i];
    off_tile_io_wait(recorded->tile_io, &place->move, NULL);
    base_error_clear(&place->error);
    place->tile = tile;
    place->used = ++recorded->uses;
    place->move = (struct off_tile_op){
        .direction = OFF_READ,
        .tile = tile,
        .exchange = arrive,
        .user = place,
        .recorded = &recorded->contents[tile],
        .failure = &place->error,
    };
    off_tile_io_start(recorded->tile_io, &place->move);
}

/** The tile of the first element that is saved from *first of a slice on; SIZE_MAX: there is none.
 * The two are then where the next tile's begin. */
static size_t next_tile(const zero_ctx *z, const struct eng_slice **slice, uint64_t *first)
{
    for (; *slice < z->layout.slices + z->layout.slice_count; (*slice)++, *first = 0) {
        const struct eng_range own = eng_own_range(&z->placement, *slice);
        const uint64_t begin = eng_range_first(&own);
        *first = *first > begin ? *first : begin;
        if (*first >= begin + own.count)
            continue;
        const size_t element = (*slice)->granule * BASE_GRANULE + (size_t)*first;
        *first += eng_tiles_left(&z->tier->tiles, (*slice)->bucket, element);
        return eng_tiles_piece(&z->tier->tiles, (*slice)->bucket, element / BASE_GRANULE)->tile;
    }
    return SIZE_MAX;
}

/** The first tiles, at most `most` and each once, that what is saved from an element of a slice on
 * lies in; how many. */
static size_t list_tiles(const zero_ctx *z, const struct eng_slice *slice, uint64_t first,
                         size_t most, size_t *list)
{
    size_t count = 0, tile;
    while (count < most && (tile = next_tile(z, &slice, &first)) != SIZE_MAX) {
        size_t i = 0;
        while (i < count && list[i] != tile)
            i++;
        list[count] = tile;
        count += i == count;
    }
    return count;
}

/** Has the tile of an element of a slice read, and those that come next. */
static void read_ahead(const zero_ctx *z, struct eng_snapshot *recorded,
                       const struct eng_slice *slice, uint64_t first)
{
    size_t list[MOST_AHEAD + 1];
    assert(recorded->ahead <= MOST_AHEAD);
    const size_t count = list_tiles(z, slice, first, recorded->ahead + 1, list);
    struct place *place;
    for (size_t i = 0; i < count; i++)
        if ((place = place_of(recorded, list[i])) != NULL)
            place->used = ++recorded->uses;
    for (size_t i = 0; i < count; i++)
        if (!place_of(recorded, list[i]))
            read_tile(recorded, list[i]);
}

/** A tile as it was recorded, in memory, which an element of a slice lies in. */
static zero_result load(const zero_ctx *z, struct eng_snapshot *recorded, size_t tile,
                        const struct eng_slice *slice, uint64_t first, const unsigned char **memory,
                        struct base_error *error)
{
    if (recorded->newest != tile)
        read_ahead(z, recorded, slice, first);
    struct place *place = place_of(recorded, tile);
    assert(place); // it was there, or is one of those just read
    zero_result r = off_tile_io_wait(recorded->tile_io, &place->move, error);
    if (!r && place->error.result)
        r = zero_fail(error, place->error.result, "%s", place->error.message);
    recorded->newest = r ? SIZE_MAX : tile;
    if (r)
        place->tile = SIZE_MAX;
    *memory = place->memory;
    return r;
}

static zero_result read_elements(const zero_ctx *z, struct eng_snapshot *recorded,
                                 const struct ckpt_source *source, const struct eng_slice *slice,
                                 int field, uint64_t first, size_t all, const void **elements,
                                 struct base_error *error)
{
    const struct eng_tiles *tiles = &z->tier->tiles;
    const size_t origin = slice->granule * BASE_GRANULE, start = origin + (size_t)first;
    zero_result r = ZERO_OK;
    size_t count;
    assert(all > 0 && all <= CKPT_BLOCK_ELEMENTS);
    (void)source;
    for (size_t at = start, end = start + all; !r && at < end; at += count) {
        const struct eng_piece *piece = eng_tiles_piece(tiles, slice->bucket, at / BASE_GRANULE);
        const size_t left = (piece->first + piece->granules) * BASE_GRANULE - at;
        const size_t size = field == 0 ? piece->weight_size : piece->moment_size;
        const unsigned char *memory;
        count = end - at < left ? end - at : left;
        r = load(z, recorded, piece->tile, slice, at - origin, &memory, error);
        if (r)
            break;
        memory += eng_piece_offset(piece, field, at);
        *elements = count == all ? memory : recorded->block;
        if (count < all)
            memcpy(recorded->block + (at - start) * size, memory, count * size);
    }
    return r;
}

const struct eng_snapshot_ops eng_nvme_snapshot = {
    .size = sizeof(struct eng_snapshot_ops),
    .bytes = snapshot_bytes,
    .make = make_snapshot,
    .open = take_memory,
    .free = leave_snapshot,
    .take_room = eng_no_snapshot_room,
    .leave_room = eng_no_snapshot_leave,
    .begin = begin_snapshot,
    .read = read_elements,
    .blocks_before = blocks_before,
};
