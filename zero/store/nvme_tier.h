/**
 * zero/store/nvme_tier.h: a rank's state in a file, tile by tile in memory only while it is used.
 *
 *   nvme_store.c     the table of the store.
 *   nvme_tier.c      opening and closing: memory, the file, and what ranks tell each other of it.
 *   nvme_pass.c      tiles one after the other: to look, to change; where a tile is meanwhile.
 *   nvme_update.c    tiles one after the other: to update.
 *   tile_order.c     in which order a fused step updates tiles.
 *   nvme_codec.c     how tiles are made smaller.
 *   nvme_compress.c  whether they are made smaller.
 *   nvme_io_use.c    which I/O engine moves tiles, and why.
 *   nvme_record.c    records: what a finished step leaves, and how a job comes back at it.
 *   nvme_point.c     the recovery point of the job before, until this job gives it up.
 *   nvme_snapshot.c  for checkpoints: what was recorded, read behind the next steps.
 *   nvme_params.c    working copies, in a file of their own.
 *   nvme_sums.c      gradient sums, in a file of their own; nvme_sums_update.c reads them.
 *   stale_files.c    files that this job takes nothing from.
 *
 * What is in memory anyway (an f32 working copy, which is its own master, and a 16-bit one without
 * masters) is used there. Tiles have a copy of it, made when a tile is given back changed: so all
 * that decides the future is in the file.
 *
 * A pass that changes tiles changes nothing that the last record counts, and what it has written is
 * not read again before a record. All ranks record at the same moments, and change tiles
 * only when they know that all have: they have exchanged something in between.
 */
#ifndef ZERO_STORE_NVME_TIER_H
#define ZERO_STORE_NVME_TIER_H

#include "offload/io/io_engine.h"
#include "offload/pipeline.h"
#include "offload/tilefile.h"
#include "zero/core/context.h"
#include "zero/model/state_tiles.h"
#include "zero/store/nvme_compress.h"
#include "zero/store/nvme_params.h"
#include "zero/store/nvme_sums.h"
#include "zero/store/tile_order.h"

/**
 * What a job that ended without zero_close() has left. `found`: a point that all ranks have, which
 * is kept until this job comes back at it or writes over it.
 *
 * `broken`: ranks have points, and not the same one, or some have none: a host or a disk is another
 * one, or a file is gone. What they have may be all that is left of the job, and the user may put
 * back what is missing: so it is kept as a whole point is, and told. But where a host was lost for
 * good a job must go on from its checkpoint without a user's help. So it is no error of
 * zero_commit(), and one of zero_resume() only if there is no checkpoint either.
 *
 * What a job that died in its first step leaves is none of both: a rank has recorded that step, all
 * have the beginning before it.
 */
struct eng_recovery {
    bool found, broken;
    bool passed;         /**< zero_resume() has taken something else */
    int age;             /**< of this rank's record when the file was opened */
    uint64_t generation; /**< of that record; broken: of the newest one of all ranks */
    uint64_t step;       /**< the last one it finished; broken: on this rank */
    char ranks[256];     /**< broken: who has what */
    unsigned char *payload;
    size_t payload_bytes; /**< of that record's */
};

enum {
    ENG_TIER_PATH = ENG_PATH_BYTES + 64,
    ENG_STATE_FORMAT = 2, /**< of records, of fields in tiles, and of how these are encoded: another
                               one is another job */
};

struct eng_tier {
    uint64_t job; /**< hash of what it is, at commit */
    char path[ENG_TIER_PATH];
    struct eng_tiles tiles;
    struct base_tables tables;
    struct off_blocking_calls
        *blocking_calls; /**< whatever touches the file but the pipeline, from commit to close */
    struct off_tilefile *tilefile;
    bool remove;                   /**< the file, in the end */
    struct off_pipeline *pipeline; /**< NULL: there are no tiles */
    size_t buffers;                /**< of it */
    struct eng_compression compression;
    unsigned char **memory; /**< of each tile; NULL: it is in none */
    size_t *order;          /**< tiles of the pass under way, */
    bool up;       /**< from the first one to the last, or the other way, as in each group */
    uint64_t turn; /**< updates that there had been when the last save began: it is read upwards,
                        and so goes the second one behind it, which follows it */
    size_t chosen, updated; /**< with so many tiles, of which so many are updated, */
    size_t put;             /**< and given back: on a device later */
    uint64_t began_ns;      /**< when zero_step() began to update, or to go on */
    struct eng_due *due;    /**< of a fused step: when each has its sums */
    size_t *left;           /**< pieces of each bucket that an update has before it */
    uint64_t generation;    /**< of the newest record: the same on all ranks */
    unsigned char *payload; /**< a record's content, of payload_room bytes */
    size_t payload_room;
    int recorded; /**< records found when the file was opened */
    struct eng_recovery recovery;
    struct eng_params params;           /**< if working copies are in a file, too */
    struct eng_sums sums;               /**< of gradients, if those are in a file */
    struct eng_snapshot *left_by_saves; /**< to the end: reads of theirs may not have come back */
    int engine_ranks[OFF_IO_ENGINES];   /**< how many ranks have each engine */
    int passed_rank;                    /**< the first rank with the least one, */
    struct base_error passed;           /**< and why it has no better one */
};

/** Where field `field` (0: weights, 1 + k: moment k) of an element is, whose tile is in memory. */
void *eng_tier_field(const zero_ctx *z, int field, size_t bucket, size_t element);
/** Copies weights that are not only in the tile to it. */
void eng_tier_keep(const zero_ctx *z, size_t bucket, size_t element, size_t count);
/** This rank's sums from element `element` of a bucket on, and its unfinished blocks of it, where
 * sums are in a file; NULL: they are not in memory, or there are none. */
float *eng_tier_sums(const zero_ctx *z, size_t bucket, size_t element);
float *eng_tier_blocks(const zero_ctx *z, size_t bucket);

/** Tells all ranks which engine moves whose files. Collective. ZERO_E_NOMEM. */
zero_result eng_tier_share_io(zero_ctx *z);

/** Tells the plan of it. */
void eng_tier_disk_io(const struct eng_tier *tier, struct eng_plan_disk *disk);
void eng_plan_disk_io(struct eng_plan_disk *disk, const struct off_io_use *use);

/** Tells of files in the directory of other jobs that have ended without zero_close(), or of this
 * one with another model or configuration: no job will come back at them by itself. *Local.* */
void eng_tier_tell_others(const zero_ctx *z);

/** Whether a record of this number is something to come back at: all but beginnings are. */
bool eng_record_counts(uint64_t number);

/** Finds out what the job before has left, or makes that nothing. Collective. */
zero_result eng_tier_meet(zero_ctx *z);

/** Whether the recovery point of the job before is still there, whole or broken: first values are
 * the only record since, and the next one would take its place. */
bool eng_tier_has_point(const struct eng_tier *tier);

/** To be called before tiles change: the recovery point of the job before, which they are written
 * over, is none from here on. Unless zero_resume() has passed it over that is told. *Local.*
 * ZERO_E_IO, ZERO_E_TIMEOUT. */
zero_result eng_tier_leave_point(zero_ctx *z, struct base_error *error);

/** Waits for what is in tier->left_by_saves, and frees it. */
void eng_recorded_end(struct eng_tier *tier);

/** Ends the pass of tier->pipeline that `r` came of, and after an error has it count for nothing:
 * its result. */
zero_result eng_tier_pass_end(zero_ctx *z, zero_result r, struct base_error *error);
/** Gives a tile back; how long that waited for a save, in ns. */
uint64_t eng_tier_put(zero_ctx *z, const struct off_tile *tile, bool changed);

/** A walk to look through all tiles, those of frozen buckets, too. */
zero_result eng_tier_reread(zero_ctx *z, eng_part_fn visit, void *user, struct base_error *error);

/** Makes what is in memory anyway what the tile has of it; state must cover the elements. */
void eng_tier_take_back(const zero_ctx *z, size_t bucket, size_t element, size_t count);

/* Entries of eng_store_nvme (zero/core/store_table.h), by file; until the tier is open they do
 * nothing.
 */

/* ---- nvme_tier.c */
zero_result eng_tier_needs(const zero_ctx *z, const struct eng_placement *placement,
                           struct eng_tier_needs *needs, struct base_error *error);
void eng_tier_disk(const zero_ctx *z, struct eng_plan_disk *disk);
zero_result eng_tier_probe(const zero_ctx *z, struct eng_plan_disk *disk, struct base_error *error);
zero_result eng_tier_open(zero_ctx *z);
void eng_tier_close(zero_ctx *z);
void eng_tier_count(const zero_ctx *z, zero_statistics *stats);
/** How long the newest update took each rank, which decides whether tiles are written encoded. */
extern const struct eng_exchange_part eng_tier_part;
/* ---- nvme_pass.c */
zero_result eng_tier_walk(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                          void *user, struct base_error *error);
zero_result eng_tier_visit(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                           eng_part_fn visit, void *user, struct base_error *error);
void eng_tier_abandon(zero_ctx *z);
/* ---- nvme_snapshot.c */
extern const struct eng_snapshot_ops eng_nvme_snapshot;
/* ---- nvme_params.c */
void eng_tier_stage(zero_ctx *z, zero_unit unit, unsigned char *slot);
zero_result eng_tier_stage_wait(zero_ctx *z, zero_unit unit);
/* ---- nvme_sums.c */
zero_result eng_tier_sums_expect(zero_ctx *z, zero_unit unit);
zero_result eng_tier_sums_begin(zero_ctx *z, zero_unit unit);
void eng_tier_sums_progress(zero_ctx *z);
zero_result eng_tier_sums_finish(zero_ctx *z);
/* ---- nvme_update.c */
void eng_tier_fuse(zero_ctx *z);
zero_result eng_tier_update_begin(zero_ctx *z, struct eng_update_pass *pass);
zero_result eng_tier_update_bucket(zero_ctx *z, size_t bucket);
zero_result eng_tier_update_end(zero_ctx *z, zero_result r);
zero_result eng_tier_update_fused(zero_ctx *z);
/* ---- nvme_record.c */
zero_result eng_tier_record(zero_ctx *z);
zero_result eng_tier_record_beginning(zero_ctx *z);
size_t eng_tier_record_room(const zero_ctx *z);
zero_result eng_tier_take_point(zero_ctx *z, struct base_error *error);
/* ---- nvme_point.c */
bool eng_tier_recoverable(const zero_ctx *z, uint64_t *step);
void eng_tier_pass_over(zero_ctx *z);
const char *eng_tier_broken(const zero_ctx *z);
struct eng_point eng_tier_point(const zero_ctx *z);

#endif
