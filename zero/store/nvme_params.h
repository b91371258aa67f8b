/**
 * zero/store/nvme_params.h: working copies in a file of their own, in strips (zero/store/strips.h).
 *
 * The weights are in the tiles. Whenever some weights of a tile are written, or the rank does not
 * know what the file has of it, its strips are made anew while it is in memory. So the file has at
 * any time what follows from the state, and needs no recovery point. The tile I/O's thread
 * (offload/tile_io.h) reads the strips of a unit that is to be gathered, each to its place in a
 * gather slot.
 */
#ifndef ZERO_STORE_NVME_PARAMS_H
#define ZERO_STORE_NVME_PARAMS_H

#include "zero/core/context.h"
#include "zero/store/strip_file.h"

/** Where a unit's strips go, for the tile I/O's thread. */
struct eng_stage {
    const zero_ctx *z;
    unsigned char *slot;
};

struct eng_params {
    struct eng_strip_file file; /**< passes write it, moves read it */
    struct eng_stage *stages;   /**< one a unit */
    struct off_tile_op *moves;  /**< one a strip */
};

struct eng_tier_needs;

/** Adds what working copies take to what state takes, whose tiles these are. ZERO_E_NOMEM. */
zero_result eng_params_needs(const zero_ctx *z, const struct eng_placement *placement,
                             const struct eng_tiles *tiles, struct eng_tier_needs *needs,
                             struct base_error *error);

/** Errors as of off_tilefile_open(), off_pipeline_create() and off_tile_io_create(); close follows
 * in any case. */
zero_result eng_params_open(zero_ctx *z, struct base_error *error);
void eng_params_close(struct eng_params *params);

/** Begins to make the strips of `count` tiles, at least one, of tier->order anew. */
void eng_params_begin(zero_ctx *z, size_t count);
/** Whether there is room for those of the next tile, or for the next of them where they are
 * several. */
bool eng_params_ready(const zero_ctx *z, size_t tile);
/** Those of the next one, which is in memory. Errors as of off_pipeline_next(). */
zero_result eng_params_make(zero_ctx *z, size_t tile, struct base_error *error);
/** Ends it when all are written; an error that there is already stays. */
void eng_params_end(zero_ctx *z, struct base_error *error);

#endif
