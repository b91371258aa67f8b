// The state of a record, read while steps go on: the first change of a tile goes to its other
// place, so only the second has to wait, until what there is of the tile in the sources has been
// read.

#include "zero/state/state.h"
#include "zero/tier/tier.h"

#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/codec.h"
#include "zero/tier/codec.h"

#include <inttypes.h>
#include <string.h>

/** Blocks of checkpoints begin anywhere in tiles: fields of one that lies in two are read in turn.
 */
enum { CACHED = 2 };

struct eng_recorded {
    struct off_contents *contents; /**< of each tile */
    size_t *blocks;                /**< of the sources, to the last one that has a part of it */
    unsigned char *memory[CACHED];
    unsigned char *packed; /**< an encoded tile, as it is read */
    void *coder;           /**< that decodes it */
    size_t tile[CACHED];   /**< SIZE_MAX: none */
    int newest;
    unsigned char *block;      /**< where what lies in several tiles is put together */
    bool stuck;                /**< a read has not come back: it has the memory */
    struct eng_recorded *next; /**< of those it has happened to */
};

/** Finds out of which tiles a source is, whose blocks begin at `first_block`. */
static void place_source(const struct eng_tier *tier, struct eng_recorded *recorded,
                         const struct eng_slice *slice, const struct ckpt_source *source,
                         size_t first_block)
{
    const size_t origin = slice->granule * ENG_GRANULE;
    const uint64_t first = source->run.first, end = first + source->run.count;
    for (uint64_t at = first, next; at < end; at = next) {
        const size_t element = origin + (size_t)at;
        const struct eng_piece *piece =
            eng_tiles_piece(&tier->tiles, slice->section, element / ENG_GRANULE);
        next = at + eng_tiles_left(&tier->tiles, slice->section, element);
        const uint64_t count = (next < end ? next : end) - first;
        recorded->blocks[piece->tile] =
            first_block + (size_t)ckpt_block_count(first, count) * (size_t)source->fields;
    }
}

static void place_sources(const struct eng_tier *tier, struct eng_recorded *recorded,
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

zero_result eng_recorded_make(const zero_ctx *z, const struct eng_sources *sources,
                              struct eng_recorded **out, struct base_error *error)
{
    const struct eng_tier *tier = z->tier;
    *out = NULL;
    if (!tier)
        return ZERO_OK;
    struct eng_recorded *recorded = base_calloc(1, sizeof *recorded);
    *out = recorded;
    bool had = recorded != NULL;
    if (recorded) {
        recorded->contents = base_calloc(tier->tiles.count, sizeof *recorded->contents);
        recorded->blocks = base_calloc(tier->tiles.count, sizeof *recorded->blocks);
        recorded->block = base_calloc(CKPT_BLOCK_ELEMENTS, sizeof(float));
        recorded->packed =
            base_aligned_alloc(BASE_DIRECT_UNIT, off_slots_room_for(tier->tiles.largest));
        had = recorded->contents && recorded->blocks && recorded->block && recorded->packed;
    }
    for (int i = 0; had && i < CACHED; i++) {
        recorded->memory[i] =
            base_aligned_alloc(BASE_DIRECT_UNIT, off_slots_room_for(tier->tiles.largest));
        had = recorded->memory[i] != NULL;
    }
    if (!had)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for reading %zu tiles", tier->tiles.count);
    place_sources(tier, recorded, sources);
    return eng_tile_codec.create(&recorded->coder, &tier->tiles, error);
}

static void destroy(struct eng_recorded *recorded)
{
    for (int i = 0; i < CACHED; i++)
        base_free(recorded->memory[i]);
    eng_tile_codec.destroy(recorded->coder);
    base_free(recorded->packed);
    base_free(recorded->contents);
    base_free(recorded->blocks);
    base_free(recorded->block);
    base_free(recorded);
}

void eng_recorded_free(const zero_ctx *z, struct eng_recorded *recorded)
{
    if (!recorded)
        return;
    if (recorded->stuck) {
        recorded->next = z->tier->stuck;
        z->tier->stuck = recorded;
    } else {
        destroy(recorded);
    }
}

void eng_recorded_free_stuck(struct eng_tier *tier)
{
    for (struct eng_recorded *recorded; (recorded = tier->stuck);) {
        tier->stuck = recorded->next;
        destroy(recorded);
    }
}

size_t eng_recorded_bytes(const struct eng_tier_needs *needs)
{
    return needs->files[ENG_FILE_STATE].bytes > 0
               ? sizeof(struct eng_recorded) + eng_tile_codec.bytes(NULL) +
                     (CACHED + 1) * off_slots_room_for(needs->tile_bytes) +
                     needs->tiles * (sizeof(struct off_contents) + sizeof(size_t)) +
                     CKPT_BLOCK_ELEMENTS * sizeof(float)
               : 0;
}

void eng_recorded_begin(zero_ctx *z, struct eng_recorded *recorded)
{
    struct eng_tier *tier = z->tier;
    if (!recorded)
        return;
    tier->turn = z->updates;
    for (size_t i = 0; i < tier->tiles.count; i++)
        recorded->contents[i] = off_slots_recorded(tier->slots, i);
    for (int i = 0; i < CACHED; i++)
        recorded->tile[i] = SIZE_MAX;
}

size_t eng_recorded_blocks(const zero_ctx *z, const struct eng_recorded *recorded, size_t tile)
{
    const uint64_t next = off_slots_next_place(z->tier->slots, tile);
    return recorded->contents[tile].offset == next ? recorded->blocks[tile] : 0;
}

/** Reads a tile as it was recorded. */
static zero_result read_tile(const zero_ctx *z, struct eng_recorded *recorded, size_t tile,
                             unsigned char *memory, struct base_error *error)
{
    const struct eng_tier *tier = z->tier;
    const struct off_contents *contents = &recorded->contents[tile];
    const size_t bytes = tier->tiles.bytes[tile];
    const bool encoded = contents->stored < bytes;
    struct base_error damage = {0};
    const zero_result r =
        off_slots_read(tier->slots, tile, contents, encoded ? recorded->packed : memory, error);
    recorded->stuck = recorded->stuck || r == ZERO_E_TIMEOUT;
    if (r || !encoded)
        return r;
    if (eng_tile_codec.decode(recorded->coder, tile, recorded->packed, contents->stored, memory,
                              bytes, &damage))
        return zero_fail(error, damage.result, "%s: tile %zu, %zu bytes at offset %" PRIu64 ": %s",
                         tier->path, tile, contents->stored, contents->offset, damage.message);
    return ZERO_OK;
}

/** A tile as it was recorded, in memory. */
static zero_result load(const zero_ctx *z, struct eng_recorded *recorded, size_t tile,
                        const unsigned char **memory, struct base_error *error)
{
    int i = 0;
    while (i < CACHED && recorded->tile[i] != tile)
        i++;
    zero_result r = ZERO_OK;
    if (i == CACHED) {
        i = (recorded->newest + 1) % CACHED;
        recorded->tile[i] = SIZE_MAX;
        r = read_tile(z, recorded, tile, recorded->memory[i], error);
        if (!r)
            recorded->tile[i] = tile;
    }
    recorded->newest = i;
    *memory = recorded->memory[i];
    return r;
}

zero_result eng_recorded_read(const zero_ctx *z, struct eng_recorded *recorded,
                              const struct eng_part *part, int field, const void **elements,
                              struct base_error *error)
{
    const struct eng_tiles *tiles = &z->tier->tiles;
    const size_t section = part->slice->section;
    const size_t begin = part->slice->granule * ENG_GRANULE + part->first;
    zero_result r = ZERO_OK;
    size_t count;
    for (size_t at = begin, end = begin + part->count; !r && at < end; at += count) {
        const struct eng_piece *piece = eng_tiles_piece(tiles, section, at / ENG_GRANULE);
        const size_t left = (piece->first + piece->granules) * ENG_GRANULE - at;
        const size_t size = field == 0 ? piece->weight_size : piece->moment_size;
        const unsigned char *memory;
        count = end - at < left ? end - at : left;
        r = load(z, recorded, piece->tile, &memory, error);
        if (r)
            break;
        memory += eng_piece_offset(piece, field, at);
        *elements = count == part->count ? memory : recorded->block;
        if (count < part->count)
            memcpy(recorded->block + (at - begin) * size, memory, count * size);
    }
    return r;
}
