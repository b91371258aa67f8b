/**
 * zero/store/nvme_sums.h: gradient sums in a file of their own, in strips (zero/store/strips.h).
 *
 * A few slots in memory have the sums of a unit each, with its unfinished blocks behind them. From
 * the second micro-batch of a step on they are read when the unit's gradient is opened; they are
 * written when its reduction is complete, both behind the caller's back (offload/tile_io.h). At
 * stage 0 of several ranks both happen where gradients are handed over: sums that are whole go to
 * all ranks first. An update gets its strips one after the other, in step with the tiles that it
 * changes.
 *
 * What is in the file counts from the last reduction of a step to its update: there is nothing to
 * come back at, and nothing to begin with.
 */
#ifndef ZERO_STORE_NVME_SUMS_H
#define ZERO_STORE_NVME_SUMS_H

#include "zero/core/context.h"
#include "zero/store/strip_file.h"

enum eng_sum_state {
    ENG_SUMS_IDLE,    /**< the file has all of it that counts */
    ENG_SUMS_READING, /**< moves are under way */
    ENG_SUMS_ADDED,   /**< reductions were started that the file has nothing of */
    ENG_SUMS_WRITING, /**< moves are under way */
};

struct eng_sum_slot {
    const zero_ctx *z;
    unsigned char *memory;
    enum eng_sum_state state;
    zero_unit unit;            /**< whose sums it has, or is to have; -1: none */
    uint64_t used;             /**< order of its reductions: the one of longest ago goes first */
    bool whole;                /**< they were the last ones of their step */
    struct off_tile_op *moves; /**< one for each strip of the unit */
};

struct eng_sums {
    struct eng_strip_file file; /**< moves write and read it, an update's pass reads it */
    struct eng_sum_slot *slots;
    int slot_count;
    int *slot_of_unit; /**< -1: none */
    uint64_t uses;
    struct coll_request request; /**< stage 0: of all owners' sums of a bucket, */
    struct coll_span *spans;     /**< where these lie */
    struct off_tile_op *moves;
};

struct eng_tiles;
struct eng_tier_needs;

/** Adds what sums take to what state takes, whose tiles these are. ZERO_E_NOMEM. */
zero_result eng_sums_needs(const zero_ctx *z, const struct eng_placement *placement,
                           const struct eng_tiles *tiles, struct eng_tier_needs *needs,
                           struct base_error *error);

/** Errors as of off_tilefile_open(), off_pipeline_create() and off_tile_io_create(); close follows
 * in any case. */
zero_result eng_sums_open(zero_ctx *z, struct base_error *error);
void eng_sums_close(struct eng_sums *sums);

/** Begins an update of `count` tiles, at least one, of tier->order. */
void eng_sums_update_begin(zero_ctx *z, size_t count);
/** The next piece that it updates: its segments have their gradients until the next call. Errors as
 * of off_pipeline_next(). */
zero_result eng_sums_update_piece(zero_ctx *z, size_t piece, struct base_error *error);
/** Ends it; an error that there is already stays. */
void eng_sums_update_end(zero_ctx *z, struct base_error *error);

#endif
