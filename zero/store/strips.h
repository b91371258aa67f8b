/**
 * zero/store/strips.h: what a unit has of something that follows tiles: working copies, or sums of
 * gradients. A pure function of (layout, tiles, size of each piece).
 *
 * A strip is a run of pieces of one unit in one group of tiles (zero/model/state_tiles.h), one
 * behind the other, and is moved as a whole. It has so many bytes of each piece as there are of
 * what it is for; pieces of which there is nothing are in no strip, and one between others ends
 * theirs. Strips are in the order of pieces, so those of a unit that train follow each other, and
 * those that are frozen, and those that a tile has pieces of: of these only the first and the last
 * have pieces of other tiles, too.
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
    size_t *bytes;                 /**< of each strip, once more: for off_tilefile_config */
    struct eng_piece_run *of_tile; /**< strips that have pieces of each tile; here and below: */
    struct eng_piece_run *of_unit; /**< those that train, parallel to the layout's units, */
    struct eng_piece_run *frozen_of_unit; /**< and those that are frozen */
    size_t *offset_of_piece;              /**< byte of its strip, parallel to the pieces */
    size_t largest;                       /**< bytes of the largest */
};

/** Bytes of a piece in its strip; 0: it is in none. */
typedef size_t (*eng_piece_bytes_fn)(const void *user, const struct eng_piece *piece);

/** ZERO_E_NOMEM: *strips is empty. */
zero_result eng_strips_make(struct eng_strips *strips, const struct eng_layout *layout,
                            const struct eng_tiles *tiles, eng_piece_bytes_fn bytes_of,
                            const void *user, struct base_error *error);
void eng_strips_free(struct eng_strips *strips);

/** Bytes of the tables. */
size_t eng_strips_bytes(const struct eng_strips *strips, const struct eng_layout *layout,
                        const struct eng_tiles *tiles);

#endif
