#include "zero/store/strips.h"

#include <assert.h>

/** Where the next piece goes; without tables strips are only counted. */
struct cutter {
    struct eng_strips *strips;
    const struct eng_layout *layout;
    size_t count;
    bool ended; /**< the next piece begins a strip */
};

/** One more strip in a range, whose first one it may be. */
static void count_strip(struct eng_piece_range *range, size_t strip)
{
    assert(range->count == 0 || strip == range->first + range->count);
    if (range->count++ == 0)
        range->first = strip;
}

static void begin_strip(struct cutter *cutter, const struct eng_tiles *tiles, size_t first_piece)
{
    struct eng_strips *strips = cutter->strips;
    const struct eng_bucket *bucket = &cutter->layout->buckets[tiles->pieces[first_piece].bucket];
    const size_t strip = cutter->count++;
    cutter->ended = false;
    if (!strips->list)
        return;
    strips->list[strip] = (struct eng_strip){.unit = bucket->unit, .first_piece = first_piece};
    count_strip(bucket->frozen ? &strips->frozen_of_unit[bucket->unit]
                               : &strips->of_unit[bucket->unit],
                strip);
}

static void add_piece(struct cutter *cutter, const struct eng_tiles *tiles, size_t piece,
                      size_t bytes)
{
    struct eng_strips *strips = cutter->strips;
    assert(cutter->count > 0 && bytes > 0);
    const size_t number = cutter->count - 1;
    if (!strips->list)
        return;
    struct eng_strip *strip = &strips->list[number];
    assert(strip->first_piece + strip->pieces == piece);
    struct eng_piece_range *of_tile = &strips->of_tile[tiles->pieces[piece].tile];
    if (of_tile->count == 0 || of_tile->first + of_tile->count - 1 < number)
        count_strip(of_tile, number);
    strips->offset_of_piece[piece] = strip->bytes;
    strip->pieces++;
    strip->bytes += bytes;
    strips->bytes[number] = strip->bytes;
    if (strip->bytes > strips->largest)
        strips->largest = strip->bytes;
}

/** Whether a piece and the one before it may be in one strip. */
static bool go_together(const struct eng_layout *layout, const struct eng_tiles *tiles,
                        const struct eng_piece *piece)
{
    assert(piece > tiles->pieces);
    const struct eng_piece *before = piece - 1;
    return eng_tiles_group(tiles, before->tile).first ==
               eng_tiles_group(tiles, piece->tile).first &&
           layout->buckets[before->bucket].unit == layout->buckets[piece->bucket].unit;
}

static void cut(struct eng_strips *strips, const struct eng_layout *layout,
                const struct eng_tiles *tiles, eng_piece_bytes_fn bytes_of, const void *user)
{
    struct cutter cutter = {.strips = strips, .layout = layout, .ended = true};
    for (size_t i = 0; i < tiles->piece_count; i++) {
        const size_t bytes = bytes_of(user, &tiles->pieces[i]);
        if (bytes > 0 && (cutter.ended || !go_together(layout, tiles, &tiles->pieces[i])))
            begin_strip(&cutter, tiles, i);
        if (bytes > 0)
            add_piece(&cutter, tiles, i, bytes);
        else
            cutter.ended = true;
    }
    assert(!strips->list || strips->count == cutter.count);
    strips->count = cutter.count;
}

zero_result eng_strips_make(struct eng_strips *strips, const struct eng_layout *layout,
                            const struct eng_tiles *tiles, eng_piece_bytes_fn bytes_of,
                            const void *user, struct base_error *error)
{
    *strips = (struct eng_strips){.count = 0};
    cut(strips, layout, tiles, bytes_of, user);
    const size_t count = strips->count;
    struct base_tables *tables = &strips->tables;
    strips->bytes = base_tables_add(tables, count + 1, sizeof *strips->bytes);
    strips->of_tile = base_tables_add(tables, tiles->count + 1, sizeof *strips->of_tile);
    strips->of_unit = base_tables_add(tables, layout->unit_count, sizeof *strips->of_unit);
    strips->frozen_of_unit = base_tables_add(tables, layout->unit_count, sizeof *strips->of_unit);
    strips->offset_of_piece = base_tables_add(tables, tiles->piece_count + 1, sizeof(size_t));
    strips->order = base_tables_add(tables, count + 1, sizeof *strips->order);
    strips->list = base_tables_add(tables, count + 1, sizeof *strips->list);
    if (tables->failed) {
        eng_strips_free(strips);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the table of %zu strips", count);
    }
    cut(strips, layout, tiles, bytes_of, user);
    return ZERO_OK;
}

void eng_strips_free(struct eng_strips *strips)
{
    base_tables_free(&strips->tables);
    *strips = (struct eng_strips){.count = 0};
}
