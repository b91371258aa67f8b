/**
 * zero/store/strips.h: what a unit has of something that follows tiles: working copies, or sums of
 * gradients. A pure function of (layout, tiles, size of each piece).
 *
 * A strip is a range of pieces of one unit in one group of tiles (zero/model/state_tiles.h), one
 * behind the other, and is moved as a whole. It has all bytes that follow each piece: a working
 * copy's, or sums. A piece without such bytes is in no strip, and ends the strip of the pieces
 * before it. Strips are in the order of pieces. So the strips of a unit that train follow each
 * other, as do those that are frozen. The strips of a tile follow each other, too, and only the
 * first and the last of them have pieces of other tiles.
 */
#ifndef ZERO_STORE_STRIPS_H
#define ZERO_STORE_STRIPS_H

#include "zero/model/state_tiles.h"

struct eng_strip {
    zero_unit unit;
    size_t first_piece, pieces;
    size_t bytes;
};

struct eng_strips {
    struct eng_strip *list;
    size_t count;
    size_t *bytes;                   /**< of each strip, once more: for off_tilefile_config */
    struct eng_piece_range *of_tile; /**< strips that have pieces of each tile; here and below: */
    struct eng_piece_range *of_unit; /**< those that train, parallel to the layout's units, */
    struct eng_piece_range *frozen_of_unit; /**< and those that are frozen */
    size_t *offset_of_piece;                /**< byte of its strip, parallel to the pieces */
    size_t *order;                          /**< room for those of a pass, in its order */
    size_t largest;                         /**< bytes of the largest */
    struct base_tables tables;
};

/** Bytes of a piece in its strip; 0: it is in none. */
typedef size_t (*eng_piece_bytes_fn)(const void *user, const struct eng_piece *piece);

/** ZERO_E_NOMEM: *strips is empty. */
zero_result eng_strips_make(struct eng_strips *strips, const struct eng_layout *layout,
                            const struct eng_tiles *tiles, eng_piece_bytes_fn bytes_of,
                            const void *user, struct base_error *error);
void eng_strips_free(struct eng_strips *strips);

#endif
