/**
 * zero/core/store_table.h: where a rank keeps its state, which is master weights and moments, sums
 * of gradients and working copies.
 *
 * One table of operations a kind of store. zero_open() chooses it, and zero_commit() again, once
 * for each configuration whose memory it counts; after that z->store never changes. What a store
 * has nothing to do for is an entry that does nothing, so callers never ask which store there is.
 *
 *     name      weights and moments are     the update reads and writes them
 *     host      in memory of the host       there.
 *     device    in memory of the GPU        there.
 *               or of the host              on the GPU: they pass through it, tile by tile.
 *     nvme      in a file, tile by tile     in memory of the host, or passing through the GPU.
 *
 * With `nvme` working copies and sums may be in files of their own, too (offload_params,
 * offload_grads); with `device` they are in memory of the GPU. So the host sees state
 * by walks and visits only: part by part, each in memory while it is visited.
 *
 * Every entry is *local* unless it says otherwise: it exchanges nothing with other ranks. Entries
 * return ZERO_OK or a failure that z->error has, except where they take an error to fill.
 */
#ifndef ZERO_CORE_STORE_TABLE_H
#define ZERO_CORE_STORE_TABLE_H

#include "zero/plan/plan.h"

struct ckpt_source;
struct eng_exchange_part;
struct eng_tiles;

/* ------------------------------------------------------------------ what a store needs */

/** What an update takes, and state, parameters and sums in files; without files the first alone. */
struct eng_tier_needs {
    size_t segments;          /**< bytes of the tables of updates */
    size_t tiles, tile_bytes; /**< of state, and bytes of the largest */
    size_t buffers;           /**< tiles of state in memory at once */
    size_t tables;            /**< bytes in memory beside buffers */
    struct eng_file_needs files[ENG_FILES];
};

/* ------------------------------------------------------------------ parts of the state */

/** What a walk or visit may do to the state. */
enum eng_access {
    ENG_LOOK,
    ENG_LOOK_AT_WEIGHTS, /**< and at nothing else: visits only */
    ENG_CHANGE,          /**< a record is to follow before the next one */
    ENG_REPLACE,         /**< as ENG_CHANGE; what is there counts for nothing: zeros, where it is
                              not in memory anyway */
    ENG_REREAD,          /**< as ENG_LOOK; what follows from it is made anew */
};

/** Elements of a slice that are in memory, all of their state. */
struct eng_part {
    const struct eng_slice *slice;
    size_t first, count;
};
typedef zero_result (*eng_part_fn)(zero_ctx *z, void *user, const struct eng_part *part,
                                   struct base_error *error);

/* ------------------------------------------------------------------ snapshots */

/** Where a rank's state is: a source for each slice that it owns something of. */
struct eng_sources {
    struct ckpt_source *list;
    const struct eng_slice **slice; /**< of each */
    size_t count;
};

/** The state as it was at the moment of a save, which the saver thread reads behind the next steps.
 * Each store has its own. */
struct eng_snapshot;

/** How a saver reads the state of a store. `snapshot` is what make() has made. */
struct eng_snapshot_ops {
    size_t size; /**< of this struct */

    /** Bytes of a snapshot, beside the saver's room for copies. */
    size_t (*bytes)(const zero_ctx *z, const struct eng_tier_needs *needs);
    /** Makes a snapshot of these sources, which outlive it; NULL where the store needs none.
     * ZERO_E_NOMEM, ZERO_E_DEVICE in *error; free follows in any case. */
    zero_result (*make)(const zero_ctx *z, const struct eng_sources *sources,
                        struct eng_snapshot **snapshot, struct base_error *error);
    /** Takes the memory that is touched and pinned at once, if it is not there: after the caller
     * has checked that there is room for it. ZERO_E_NOMEM; ZERO_E_LIMIT, ZERO_E_UNSUPPORTED: as
     * zero_commit(). */
    zero_result (*open)(const zero_ctx *z, struct eng_snapshot *snapshot, struct base_error *error);
    /** When the saver thread has ended, and has no room any more. */
    void (*free)(const zero_ctx *z, struct eng_snapshot *snapshot);

    /** Gets the saver's room ready for copy(). ZERO_E_DEVICE in *error. */
    zero_result (*take_room)(const zero_ctx *z, struct eng_snapshot *snapshot, void *room,
                             size_t bytes, struct base_error *error);
    /** Waits for copies under way, and gives the room back, if there is one. */
    void (*leave_room)(const zero_ctx *z, struct eng_snapshot *snapshot);

    /** From here on the snapshot is the present state: as it will be when all is done that was
     * queued so far, or, of a store that records, as it was recorded last. ZERO_E_DEVICE;
     * ZERO_E_TIMEOUT: the disk has hung in a save before. */
    zero_result (*begin)(zero_ctx *z, struct eng_snapshot *snapshot, struct base_error *error);
    /** Reads at most a checkpoint's block of a source's field: *elements, until the next call. In
     * the saver thread, or another one, one at a time. NULL: the saver reads where the sources'
     * fields point to. ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT, ZERO_E_DEVICE in *error. */
    zero_result (*read)(const zero_ctx *z, struct eng_snapshot *snapshot,
                        const struct ckpt_source *source, const struct eng_slice *slice, int field,
                        uint64_t first, size_t count, const void **elements,
                        struct base_error *error);
    /** State is about to change (copy-on-write): begins to copy some elements to the saver's room.
     * NULL: the saver copies them itself. */
    zero_result (*copy)(const zero_ctx *z, struct eng_snapshot *snapshot,
                        const struct ckpt_source *source, int field, uint64_t first, size_t count,
                        void *to, struct base_error *error);
    /** How many blocks, in the order in which a saver reads the sources, it must have read before
     * a tile may be given back changed. 0: none, for the tile goes to its other place, as with its
     * first change since the snapshot began. */
    size_t (*blocks_before)(const zero_ctx *z, const struct eng_snapshot *snapshot, size_t tile);
};

/* ------------------------------------------------------------------ files */

/** Files that a store has, and the disk that they are on. */
struct eng_file_ops {
    size_t size; /**< of this struct */

    /** Finds what is free in the directory of files, and how those are used that are open. */
    void (*disk)(const zero_ctx *z, struct eng_plan_disk *disk);
    /** Finds how the disk is used, how fast it is, memory, and the update, in about a second.
     * Errors as of off_probe_disk(); ZERO_E_NOMEM. */
    zero_result (*probe)(const zero_ctx *z, struct eng_plan_disk *disk, struct base_error *error);
    /** Opens the files, when memory is there. Collective. ZERO_E_STATE: another process has one;
     * ZERO_E_LIMIT, ZERO_E_IO, ZERO_E_UNSUPPORTED, ZERO_E_NOMEM. */
    zero_result (*open)(zero_ctx *z);
    /** Removes the files after a clean end, else leaves them. What the kernel does not come back
     * from for timeout_s is left to it, with a warning. */
    void (*close)(zero_ctx *z);
    /** Counts what has been moved so far. */
    void (*count)(const zero_ctx *z, zero_statistics *stats);
    /** What ranks tell each other of their files when a step ends; NULL: nothing. */
    const struct eng_exchange_part *exchange;
};

/** How this rank's part of a unit gets into a gather slot before other ranks may have it. */
struct eng_staging_ops {
    size_t size; /**< of this struct */

    /** Whether it is staged at all: it comes from a file. Else it is in memory. */
    bool (*stages)(const zero_ctx *z);
    /** Starts to read what this rank has of a unit, each part to its place in the slot. Never
     * waits. */
    void (*start)(zero_ctx *z, zero_unit unit, unsigned char *slot);
    /** Waits for it. Failures are fatal. */
    zero_result (*wait)(zero_ctx *z, zero_unit unit);
};

/** Sums of gradients on their way between memory and a file. Failures are fatal. */
struct eng_sum_ops {
    size_t size; /**< of this struct */

    /** A unit's gradient is opened: what there is of its sums is on its way to memory from here on,
     * if there is room for it. */
    zero_result (*expect)(zero_ctx *z, zero_unit unit);
    /** Its reductions are about to start, which add to eng_own_sums() and eng_own_blocks(). */
    zero_result (*begin)(zero_ctx *z, zero_unit unit);
    /** Has sums written whose reductions are complete. Never waits. */
    void (*progress)(zero_ctx *z);
    /** All reductions of a step are complete: all sums are where the update finds them. */
    zero_result (*finish)(zero_ctx *z);
    /** This rank's sums from element `element` of a bucket on, and its unfinished blocks of it;
     * NULL: they are not in memory, or there are none. */
    float *(*own)(const zero_ctx *z, size_t bucket, size_t element);
    float *(*own_blocks)(const zero_ctx *z, size_t bucket);
};

/** What a record has beside tiles, and the store does not look into. The part of the engine that
 * knows sets z->saving.record in zero_open(). */
struct eng_record_content {
    /** Room for it, with some for what is added after zero_commit(). */
    size_t (*bytes)(const zero_ctx *z);
    /** Writes what is to be recorded now, and returns its size. */
    size_t (*write)(const zero_ctx *z, unsigned char *record);
    /** The last finished step that `record` tells of. */
    uint64_t (*step)(const unsigned char *record);
};

/** A recovery point, as far as it is in memory. */
struct eng_point {
    const unsigned char *record;
    size_t bytes;     /**< of the record */
    const char *path; /**< of the file that has it */
};

/** Records of finished steps, which are recovery points of a job that comes after. All ranks call
 * them at the same moments. */
struct eng_record_ops {
    size_t size; /**< of this struct */

    /** Each finished step is recorded: zero_resume() comes back at it without a checkpoint, and
     * what a save reads is a record. Else nothing below does anything, and a save reads, or copies,
     * the state itself. */
    bool kept;
    /** What was changed counts from here on, with what else decides the future. Failures are
     * fatal. */
    zero_result (*record)(zero_ctx *z);
    /** record() for first values: no job comes back at those. */
    zero_result (*record_beginning)(zero_ctx *z);
    /** What was changed since the last record counts for nothing. */
    void (*abandon)(zero_ctx *z);
    /** Room of a record for its content; SIZE_MAX: there are no records. */
    size_t (*room)(const zero_ctx *z);
    /** Whether the job before has left a recovery point; *step: the last step that it finished. */
    bool (*recoverable)(const zero_ctx *z, uint64_t *step);
    /** zero_resume() loads something else. */
    void (*pass_over)(zero_ctx *z);
    /** What the ranks have where there is a recovery point, and not the same on all of them; else
     * NULL. */
    const char *(*broken)(const zero_ctx *z);
    /** The recovery point of the job before, which there is. */
    struct eng_point (*point)(const zero_ctx *z);
    /** Makes that the newest record again, and its tiles the state. ZERO_E_CORRUPT, ZERO_E_IO. */
    zero_result (*take_point)(zero_ctx *z, struct base_error *error);
};

/* ------------------------------------------------------------------ the table */

/** How an update goes through the buckets: upwards, in one turn, unless it says otherwise. */
struct eng_update_pass {
    bool persistent_first; /**< what persists, then the rest */
    bool down;             /**< from the last bucket to the first one */
    bool completes;        /**< what cannot be published is updated all the same */
};

struct eng_store {
    size_t size; /**< of this struct */
    const char *name;

    /** A walk may fail, on some ranks, so all have to agree on how it went. */
    bool walks_fail;
    /** In a fused step reductions update what they sum, while that is in the cache. Else
     * update_fused() does, tile by tile. */
    bool fuses_reductions;

    /** Tells what a rank with this placement needs. ZERO_E_NOMEM; ZERO_E_INVALID: host_bytes is too
     * little. */
    zero_result (*needs)(const zero_ctx *z, const struct eng_placement *placement,
                         struct eng_tier_needs *needs, struct base_error *error);
    /** Gives back what it has of the device, which is closed next. */
    void (*leave_device)(zero_ctx *z);

    /** Where a working copy is, from a granule of its bucket on. */
    void *(*home)(const zero_ctx *z, size_t bucket, size_t granule);
    /** Where field `field` of an element is: 0 is weights, or the working copy where there are no
     * others; 1 + k is moment k. A tile of a file has it while it is in memory. State on a device
     * is in memory while it is visited, and else on the device. */
    void *(*field)(const zero_ctx *z, int field, size_t bucket, size_t element);

    /** Visits all this rank's state of buckets that train, or are frozen, part by part. Also
     * errors as of `visit`, and ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT, ZERO_E_DEVICE. */
    zero_result (*walk)(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                        void *user, struct base_error *error);
    /** Visits elements of a slice, which this rank's state must cover. Errors as of walk. */
    zero_result (*visit)(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                         eng_part_fn visit, void *user, struct base_error *error);

    /** A step is fused from here on. Tiles are on their way to memory, those first whose sums will
     * be complete first; but what a save has still to read comes last, in the order in which it
     * reads. Never waits. */
    void (*fuse)(zero_ctx *z);
    /** Updates tiles of a fused step, as long as the next one's sums are complete and it is in
     * memory. Failures are fatal. */
    zero_result (*update_fused)(zero_ctx *z);

    /** How state is cut into tiles, which are in memory each as a whole; NULL: it is not. */
    struct eng_tiles *(*tiles)(const zero_ctx *z);
    /** An update has changed these weights: the tile has a copy of what is in memory anyway. */
    void (*keep)(const zero_ctx *z, size_t bucket, size_t element, size_t count);
    /** An update begins, or goes on in a fused step that has begun: how it goes through the
     * buckets. */
    zero_result (*update_begin)(zero_ctx *z, struct eng_update_pass *pass);
    /** Updates what of a bucket was not updated before; nothing, if it does not train. */
    zero_result (*update_bucket)(zero_ctx *z, size_t bucket);
    /** Ends the pass that `r` has come of; returns it, or what fails in the end. */
    zero_result (*update_end)(zero_ctx *z, zero_result r);

    const struct eng_file_ops *files;
    const struct eng_staging_ops *staging;
    const struct eng_sum_ops *sums;
    const struct eng_record_ops *records;
    const struct eng_snapshot_ops *snapshot;
};

#endif
