/**
 * zero/store/strip_file.h: strips (zero/store/strips.h) in a file of their own, which has no name
 * and nothing to come back at.
 *
 * Passes go through those of the tiles that are in memory, in the tiles' order
 * (offload/pipeline.h), piece by piece; single ones are moved at any other time
 * (offload/tile_io.h).
 */
#ifndef ZERO_STORE_STRIP_FILE_H
#define ZERO_STORE_STRIP_FILE_H

#include "offload/pipeline.h"
#include "offload/tile_io.h"
#include "offload/tilefile.h"
#include "zero/core/context.h"
#include "zero/store/strips.h"

struct eng_strip_file {
    struct eng_strips strips;
    struct off_tilefile *tilefile; /**< NULL, like the two below: there are no strips */
    struct off_pipeline *pipeline;
    struct off_tile_io *tile_io;
    bool makes;    /**< the pass under way makes strips, instead of reading them */
    bool at_strip; /**< it is at one: */
    struct off_tile strip;
};

/** Strips in memory at once: of a pass, and of moves. */
struct eng_strip_buffers {
    size_t pass, moves;
};

/** Adds what a file of these strips takes to *file, but for what steps move, and all tables, those
 * of the strips included, to *tables. */
void eng_strip_file_needs(const zero_ctx *z, const struct eng_strips *strips,
                          struct eng_strip_buffers buffers, struct eng_file_needs *file,
                          size_t *tables);

/** Opens the file of file->strips. Errors as of off_tilefile_open(), off_pipeline_create() and
 * off_tile_io_create(); close follows in any case. */
zero_result eng_strip_file_open(const zero_ctx *z, struct eng_strip_file *file,
                                struct eng_strip_buffers buffers, struct base_error *error);
/** Frees the strips, too, with all tables that were added to theirs. */
void eng_strip_file_close(struct eng_strip_file *file);

/** What passes and moves have done so far, together. */
struct off_io_counts eng_strip_file_counts(const struct eng_strip_file *file);

/** Whether a pass goes through a strip. */
typedef bool (*eng_strip_wanted_fn)(const zero_ctx *z, const struct eng_strip *strip);

/**
 * Begins a pass through the strips of the first `tiles` tiles of tier->order, to read them, or to
 * make all of them anew. Of a group there are all tiles or none, one after the other; from the
 * first to the last if tier->up, else the other way, as with the pieces of each. wanted NULL: all
 * of them.
 */
void eng_strip_file_begin(const zero_ctx *z, struct eng_strip_file *file, size_t tiles,
                          eng_strip_wanted_fn wanted, bool makes);
/** Whether the strip that the pass is at has a piece, or else the next one can be had without
 * waiting. */
bool eng_strip_file_ready(const struct eng_strip_file *file, size_t piece);
/** Where the next piece of the pass that is in a strip has its bytes, until the next call. Errors
 * as of off_pipeline_next(). */
zero_result eng_strip_file_piece(struct eng_strip_file *file, size_t piece, unsigned char **bytes,
                                 struct base_error *error);
/** Ends it, with all written. Errors as of off_pipeline_end(). */
zero_result eng_strip_file_end(struct eng_strip_file *file, struct base_error *error);

#endif
