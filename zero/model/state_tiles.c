#include "zero/model/state_tiles.h"

#include <assert.h>
#include <string.h>

/** Where the next piece goes; without tables pieces and tiles are only counted. */
struct cutter {
    struct eng_tiles *tiles;
    size_t tile_bytes;
    size_t pieces, count; /**< so far; tiles include the one that is being filled */
    size_t used;          /**< bytes of that one */
};

static void next_tile(struct cutter *cutter)
{
    struct eng_tiles *tiles = cutter->tiles;
    if (tiles->of_tile)
        tiles->of_tile[cutter->count].first = cutter->pieces;
    cutter->count++;
    cutter->used = 0;
}

static void add_piece(struct cutter *cutter, const struct eng_piece *piece, size_t bytes)
{
    assert(cutter->count > 0 && piece->granules > 0 && bytes > 0);
    struct eng_tiles *tiles = cutter->tiles;
    const size_t tile = cutter->count - 1;
    if (tiles->pieces) {
        tiles->pieces[cutter->pieces] = *piece;
        tiles->of_tile[tile].count++;
        tiles->bytes[tile] += bytes;
        if (tiles->bytes[tile] > tiles->largest)
            tiles->largest = tiles->bytes[tile];
        if (tiles->of_bucket[piece->bucket].count++ == 0)
            tiles->of_bucket[piece->bucket].first = cutter->pieces;
    }
    cutter->pieces++;
    cutter->used += bytes;
}

static void cut_bucket(struct cutter *cutter, const struct eng_layout *layout,
                       const struct eng_placement *placement, size_t s, zero_dtype moment_dtype)
{
    const struct eng_bucket *bucket = &layout->buckets[s];
    const struct eng_bucket_place *place = &placement->buckets[s];
    struct eng_piece piece = {
        .bucket = s,
        .first = place->state_first,
        .weight_size = place->master ? sizeof(float) : eng_dtype_size(bucket->dtype),
        .moment_size = eng_dtype_size(moment_dtype),
        .moments = bucket->frozen ? 0 : bucket->moments,
        .never_negative = bucket->never_negative,
    };
    const size_t granule =
        BASE_GRANULE * (piece.weight_size + (size_t)piece.moments * piece.moment_size);
    assert(granule > 0 && cutter->count > 0);
    for (size_t left = place->state_granules; left > 0; left -= piece.granules) {
        if (cutter->used + granule > cutter->tile_bytes && cutter->used > 0)
            next_tile(cutter);
        const size_t room = (cutter->tile_bytes - cutter->used) / granule;
        piece.granules = room == 0 ? 1 : left < room ? left : room;
        piece.tile = cutter->count - 1;
        piece.offset = cutter->used;
        add_piece(cutter, &piece, piece.granules * granule);
        piece.first += piece.granules;
    }
}

/** Cuts all buckets that train, or all that are frozen, from a tile of their own on. */
static void cut_buckets(struct cutter *cutter, const struct eng_layout *layout,
                        const struct eng_placement *placement, bool frozen, zero_dtype moment_dtype)
{
    next_tile(cutter);
    for (size_t s = 0; s < layout->bucket_count; s++)
        if (layout->buckets[s].frozen == frozen)
            cut_bucket(cutter, layout, placement, s, moment_dtype);
    if (cutter->used == 0)
        cutter->count--;
}

static void cut(struct eng_tiles *tiles, const struct eng_layout *layout,
                const struct eng_placement *placement, zero_dtype moment_dtype, size_t tile_bytes)
{
    struct cutter cutter = {.tiles = tiles, .tile_bytes = tile_bytes};
    cut_buckets(&cutter, layout, placement, false, moment_dtype);
    assert(!tiles->pieces || tiles->training == cutter.count);
    tiles->training = cutter.count;
    cut_buckets(&cutter, layout, placement, true, moment_dtype);
    assert(!tiles->pieces || (tiles->count == cutter.count && tiles->piece_count == cutter.pieces));
    tiles->count = cutter.count;
    tiles->piece_count = cutter.pieces;
}

zero_result eng_tiles_make(struct eng_tiles *tiles, const struct eng_layout *layout,
                           const struct eng_placement *placement, zero_dtype moment_dtype,
                           size_t tile_bytes, size_t in_group, struct base_error *error)
{
    *tiles = (struct eng_tiles){.in_group = in_group};
    cut(tiles, layout, placement, moment_dtype, tile_bytes);
    const size_t count = tiles->count;
    struct base_tables *tables = &tiles->tables;
    tiles->pieces = base_tables_add(tables, tiles->piece_count, sizeof *tiles->pieces);
    tiles->of_bucket = base_tables_add(tables, layout->bucket_count, sizeof *tiles->of_bucket);
    tiles->of_tile = base_tables_add(tables, count + 1, sizeof *tiles->of_tile);
    tiles->bytes = base_tables_add(tables, count + 1, sizeof *tiles->bytes);
    if (tables->failed) {
        eng_tiles_free(tiles);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the table of %zu tiles", count);
    }
    cut(tiles, layout, placement, moment_dtype, tile_bytes);
    return ZERO_OK;
}

void eng_tiles_free(struct eng_tiles *tiles)
{
    base_tables_free(&tiles->tables);
    *tiles = (struct eng_tiles){.count = 0};
}

struct eng_piece_range eng_tiles_group(const struct eng_tiles *tiles, size_t tile)
{
    assert(tile < tiles->count && tiles->in_group > 0);
    const size_t begin = tile < tiles->training ? 0 : tiles->training;
    const size_t end = tile < tiles->training ? tiles->training : tiles->count;
    const size_t first = begin + (tile - begin) / tiles->in_group * tiles->in_group;
    return (struct eng_piece_range){
        .first = first,
        .count = end - first < tiles->in_group ? end - first : tiles->in_group,
    };
}

struct eng_piece *eng_tiles_piece(const struct eng_tiles *tiles, size_t bucket, size_t granule)
{
    const struct eng_piece_range range = tiles->of_bucket[bucket];
    assert(range.count > 0);
    size_t low = range.first, high = range.first + range.count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (tiles->pieces[middle].first <= granule)
            low = middle;
        else
            high = middle;
    }
    return &tiles->pieces[low];
}

size_t eng_tiles_left(const struct eng_tiles *tiles, size_t bucket, size_t element)
{
    const struct eng_piece *piece = eng_tiles_piece(tiles, bucket, element / BASE_GRANULE);
    return (piece->first + piece->granules) * BASE_GRANULE - element;
}

size_t eng_piece_offset(const struct eng_piece *piece, int field, size_t element)
{
    const size_t all = piece->granules * BASE_GRANULE;
    const size_t at = element - piece->first * BASE_GRANULE;
    assert(element >= piece->first * BASE_GRANULE && at < all);
    assert(field >= 0 && field <= piece->moments);
    if (field == 0)
        return piece->offset + at * piece->weight_size;
    return piece->offset + all * piece->weight_size +
           ((size_t)(field - 1) * all + at) * piece->moment_size;
}
