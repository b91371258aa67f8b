/**
 * zero/model/state_tiles.h: how a rank's state is cut into tiles: a pure function of (layout,
 * placement, precision, tile_bytes, tiles in a group).
 *
 * A piece is a range of granules of one bucket, a tile some pieces one behind the other. In a piece
 * its fields lie one behind the other, each of all its granules: the weights as
 * eng_best_weights() has them, then the moments. Pieces are in the order of buckets, those that
 * train before those that are frozen; no tile has both.
 *
 * Tiles that follow each other make a group, of one kind, too: what strips (zero/store/strips.h)
 * are cut from. So tiles are as small as the disk likes them, and strips are not.
 */
#ifndef ZERO_MODEL_STATE_TILES_H
#define ZERO_MODEL_STATE_TILES_H

#include "zero/model/layout.h"
#include "zero/model/placement.h"

struct eng_piece {
    size_t bucket;
    size_t first, granules; /**< of the bucket */
    size_t tile;
    size_t offset;                  /**< byte of its weights in the tile */
    size_t weight_size;             /**< bytes of an element's weight, */
    size_t moment_size;             /**< and of each moment, */
    int moments;                    /**< of which there are so many */
    unsigned never_negative;        /**< as of its bucket */
    size_t first_segment, segments; /**< that update it: host_update.c */
};

/** Some that follow each other: pieces, tiles, or strips. */
struct eng_piece_range {
    size_t first, count;
};

struct eng_tiles {
    struct eng_piece *pieces; /**< tile by tile */
    size_t piece_count;
    struct eng_piece_range *of_bucket; /**< parallel to the layout's */
    struct eng_piece_range *of_tile;
    size_t *bytes;          /**< of each tile */
    size_t count, training; /**< tiles; those that train are the first */
    size_t in_group;        /**< the last group of either kind may have fewer */
    size_t largest;         /**< bytes of the largest */
    struct base_tables tables;
};

/** Cuts the state of the rank whose placement it is into tiles of at most `tile_bytes`, or of one
 * granule where that is more, with `in_group` of them in a group. ZERO_E_NOMEM: *tiles is empty. */
zero_result eng_tiles_make(struct eng_tiles *tiles, const struct eng_layout *layout,
                           const struct eng_placement *placement, zero_dtype moment_dtype,
                           size_t tile_bytes, size_t in_group, struct base_error *error);
void eng_tiles_free(struct eng_tiles *tiles);

/** The tiles of the group that a tile is in. */
struct eng_piece_range eng_tiles_group(const struct eng_tiles *tiles, size_t tile);

/** The piece that has a granule of a bucket; the placement must have it. */
struct eng_piece *eng_tiles_piece(const struct eng_tiles *tiles, size_t bucket, size_t granule);

/** Elements of its piece from element `element` of a bucket on. */
size_t eng_tiles_left(const struct eng_tiles *tiles, size_t bucket, size_t element);

/** Byte of the tile where field `field` (0: weights, 1 + k: moment k) of a piece's element lies. */
size_t eng_piece_offset(const struct eng_piece *piece, int field, size_t element);

#endif
