/**
 * zero/tier/strip_file.h: strips (zero/tier/strips.h) in a file of their own, which has no name and
 * nothing to come back at.
 *
 * Passes go through those of the tiles that are in memory, in the tiles' order (offload/stream.h);
 * single ones are moved at any other time (offload/shuttle.h).
 */
#ifndef ZERO_TIER_STRIP_FILE_H
#define ZERO_TIER_STRIP_FILE_H

#include "offload/shuttle.h"
#include "offload/slots.h"
#include "offload/stream.h"
#include "zero/engine.h"
#include "zero/tier/strips.h"

struct eng_strip_file {
    struct eng_strips strips;
    struct off_slots *slots; /**< NULL, like the two below: there are no strips */
    struct off_stream *stream;
    struct off_shuttle *shuttle;
    size_t *order; /**< strips of the pass under way */
};

/** Strips in memory at once: of a pass, and of moves. */
struct eng_strip_buffers {
    size_t pass, moves;
};

/** Adds what a file of these strips takes to *file, but for what steps move, and its tables to
 * *tables; tiles: those of the strips. */
void eng_strip_file_needs(const zero_ctx *z, const struct eng_strips *strips,
                          const struct eng_tiles *tiles, struct eng_strip_buffers buffers,
                          struct eng_file_needs *file, size_t *tables);

/** Opens the file of file->strips. Errors as of off_slots_open(), off_stream_create() and
 * off_shuttle_create(); close follows in any case. */
zero_result eng_strip_file_open(const zero_ctx *z, struct eng_strip_file *file,
                                struct eng_strip_buffers buffers, struct base_error *error);
/** Frees the strips, too. */
void eng_strip_file_close(struct eng_strip_file *file);

/** Whether a pass goes through a strip. */
typedef bool (*eng_strip_wanted_fn)(const zero_ctx *z, const struct eng_strip *strip);

/** Makes file->order the strips of the first `tiles` tiles of tier->order: how many. wanted NULL:
 * all of them. */
size_t eng_strip_file_order(const zero_ctx *z, struct eng_strip_file *file, size_t tiles,
                            eng_strip_wanted_fn wanted);

#endif
