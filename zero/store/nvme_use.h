/**
 * zero/store/nvme_use.h: what the engine calls of state in files. Where there is none, walks and
 * visits go through memory, or see what is on a device through buffers (zero/store/host_visit.h),
 * and the rest does nothing.
 */
#ifndef ZERO_STORE_NVME_USE_H
#define ZERO_STORE_NVME_USE_H

#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/store/nvme_compress.h"
#include "zero/zero.h"

struct eng_plan_disk;
struct eng_tiles;

/** How the state of the rank with this placement is cut into tiles, in a file, and in memory where
 * it passes through a device. To be freed; ZERO_E_NOMEM: *tiles is empty. */
zero_result eng_tier_cut(const zero_ctx *z, const struct eng_placement *placement,
                         struct eng_tiles *tiles, struct base_error *error);

/** What a rank has in files of their own. */
enum eng_file { ENG_FILE_STATE, ENG_FILE_PARAMS, ENG_FILE_SUMS, ENG_FILES };

/** All zero: there is none. */
struct eng_file_needs {
    uint64_t bytes;   /**< of the file */
    size_t memory;    /**< of what it is moved through: buffers of a stream, and of a tile I/O */
    uint64_t read;    /**< by a step: of parameters an estimate, as if each unit were gathered twice
                           in a micro-batch; of sums at most once a micro-batch, the update
                           included */
    uint64_t written; /**< by a step: of sums at most once a micro-batch */
};

/** What an update takes, and state, parameters and sums in files: all zero but the first without.
 */
struct eng_tier_needs {
    size_t segments;          /**< bytes of the tables of updates */
    size_t tiles, tile_bytes; /**< of state, and bytes of the largest */
    size_t buffers;           /**< tiles of state in memory at once */
    size_t tables;            /**< bytes in memory beside buffers */
    struct eng_file_needs files[ENG_FILES];
};

/** Of the rank with this placement. ZERO_E_NOMEM; ZERO_E_INVALID: host_bytes is too little. */
zero_result eng_tier_needs(const zero_ctx *z, const struct eng_placement *placement, int stage,
                           int rank, struct eng_tier_needs *needs, struct base_error *error);

/** Finds what is free in the directory of files, and how those are used that are open. */
void eng_tier_disk(const zero_ctx *z, struct eng_plan_disk *disk);
/** Finds how it is used, how fast it is, memory, and the update, in about a second. Errors as of
 * off_disk_probe(); ZERO_E_NOMEM. */
zero_result eng_tier_probe(const zero_ctx *z, struct eng_plan_disk *disk, struct base_error *error);

/** Opens the file, if the configuration asks for one. Collective. ZERO_E_STATE: another process has
 * it; ZERO_E_LIMIT, ZERO_E_IO, ZERO_E_UNSUPPORTED, ZERO_E_NOMEM. */
zero_result eng_tier_open(zero_ctx *z);
/** Removes the file after a clean end, else leaves it. What the kernel does not come back from for
 * timeout_s is left to it, with a warning. */
void eng_tier_close(zero_ctx *z);

/** What a walk or visit may do to the state. */
enum eng_access {
    ENG_LOOK,
    ENG_LOOK_AT_WEIGHTS, /**< and at nothing else: visits only */
    ENG_CHANGE,          /**< an eng_tier_record() is to follow before the next one */
    ENG_REPLACE,         /**< the same; what is there counts for nothing: zeros, where it is not in
                              memory anyway */
    ENG_REREAD,          /**< as ENG_LOOK; what follows from it is made anew */
};

/** Elements of a slice that are in memory, all of their state. */
struct eng_part {
    const struct eng_slice *slice;
    size_t first, count;
};
typedef zero_result (*eng_part_fn)(zero_ctx *z, void *user, const struct eng_part *part,
                                   struct base_error *error);

/** Visits all this rank's state of sections that train, or are frozen, part by part. *Local.* */
zero_result eng_state_walk(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                           void *user, struct base_error *error);
/** Visits elements of a slice, which this rank's state must cover. *Local.* */
zero_result eng_state_visit(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                            eng_part_fn visit, void *user, struct base_error *error);

/** Where field `field` (0: weights, 1 + k: moment k) of an element is, whose tile is in memory. */
void *eng_tier_field(const zero_ctx *z, int field, size_t section, size_t element);
/** Copies weights that are not only in the tile to it. */
void eng_tier_keep(const zero_ctx *z, size_t section, size_t element, size_t count);

/* Working copies in a file: of config.params_nvme only. */

/** Starts to read what this rank has of a unit, each part to its place in the slot. Never waits. */
void eng_tier_stage(zero_ctx *z, zero_unit unit, unsigned char *slot);
/** Waits for it. Failures are fatal. */
zero_result eng_tier_stage_wait(zero_ctx *z, zero_unit unit);

/* Gradient sums in a file, of config.grads_nvme; else these do nothing. Failures are fatal. */

/** A unit's gradient is opened: what there is of its sums is on its way to memory from here on, if
 * there is room for it. */
zero_result eng_tier_sums_expect(zero_ctx *z, zero_unit unit);
/** Its reductions are about to start: eng_tier_sums() and eng_tier_blocks() are what they add to.
 */
zero_result eng_tier_sums_begin(zero_ctx *z, zero_unit unit);
/** Has sums written whose reductions are complete. Never waits. */
void eng_tier_sums_progress(zero_ctx *z);
/** When all reductions of a step are complete: the file has all sums. */
zero_result eng_tier_sums_finish(zero_ctx *z);
/** This rank's sums from element `element` of a section on, and its unfinished blocks of it; NULL:
 * they are not in memory, or there are none. */
float *eng_tier_sums(const zero_ctx *z, size_t section, size_t element);
float *eng_tier_blocks(const zero_ctx *z, size_t section);

/** A step is fused: tiles are on their way to memory from here on, those first whose sums will
 * be complete first, in every step: only where all wait for zero_step() (stage 0 with several
 * ranks) do steps alternate; but what a save has still to read comes last, in the order in which
 * it reads. With sums in a file zero_step() does all of it. Never waits. */
void eng_tier_fuse(zero_ctx *z);
/** Updates tiles of a fused step, as long as the next one's sums are complete and it is in
 * memory. *Local.* Failures are fatal. */
zero_result eng_tier_update_fused(zero_ctx *z);
/** Updates all tiles, or those that are left of them, and publishes. Collective, ordered. */
zero_result eng_tier_update(zero_ctx *z);
/** How long the newest update took this rank, and what all ranks tell of theirs, `stride` bytes
 * apart: whether tiles are written encoded may follow from it. */
struct eng_update_time eng_tier_update_time(const zero_ctx *z);
void eng_tier_hear(zero_ctx *z, const void *times, size_t stride);
/** What state in a file has moved, and what it does at present. */
void eng_tier_count(const zero_ctx *z, zero_statistics *stats);
/** What was changed counts from here on, with what else decides the future. All ranks, at the same
 * moments. Failures are fatal. */
zero_result eng_tier_record(zero_ctx *z);
/** The same of first values: nobody comes back at those. */
zero_result eng_tier_record_beginning(zero_ctx *z);
/** State as it was recorded last, to be read by another thread behind the next steps: NULL where
 * state is in memory. */
struct eng_recorded;
struct eng_sources;
zero_result eng_recorded_make(const zero_ctx *z, const struct eng_sources *sources,
                              struct eng_recorded **recorded, struct base_error *error);
/** Takes the rest, what is touched and pinned at once, if it is not there: after somebody has
 * looked whether there is room for it. ZERO_E_NOMEM; ZERO_E_LIMIT, ZERO_E_UNSUPPORTED: as commit's.
 */
zero_result eng_recorded_open(const zero_ctx *z, struct eng_recorded *recorded,
                              struct base_error *error);
void eng_recorded_free(const zero_ctx *z, struct eng_recorded *recorded);
/** Bytes that it takes; 0 where state is in memory. */
size_t eng_recorded_bytes(const zero_ctx *z, const struct eng_tier_needs *needs);
/** From here on it is the present state. ZERO_E_TIMEOUT: the disk has hung in a save before. */
zero_result eng_recorded_begin(zero_ctx *z, struct eng_recorded *recorded,
                               struct base_error *error);
/** How many blocks, in the order in which a saver reads the sources, must have been read before a
 * tile may be given back changed: 0 where it goes to its other place, as with its first change
 * since. */
size_t eng_recorded_blocks(const zero_ctx *z, const struct eng_recorded *recorded, size_t tile);
/** Elements of a field of a part of at most a checkpoint's block: *elements, until the next call.
 * ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT. */
zero_result eng_recorded_read(const zero_ctx *z, struct eng_recorded *recorded,
                              const struct eng_part *part, int field, const void **elements,
                              struct base_error *error);
/** What was changed since the last record counts for nothing. *Local.* */
void eng_tier_abandon(zero_ctx *z);

/* Records of finished steps, which are recovery points of a job that comes after. */

/** What a record has beside tiles, and the store does not look into. The part of the engine that
 * knows sets z->record in zero_open(). */
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

/** Room of a record for its content; SIZE_MAX: there are no records. */
size_t eng_tier_record_room(const zero_ctx *z);
/** Whether there is a recovery point of a job before; *step: its last one. */
bool eng_tier_recoverable(const zero_ctx *z, uint64_t *step);
/** zero_resume() loads something else. */
void eng_tier_pass_over(zero_ctx *z);
/** What the ranks have where there is one, and not the same on all of them; else NULL. */
const char *eng_tier_broken(const zero_ctx *z);
/** The recovery point of the job before, which there is. */
struct eng_point eng_tier_point(const zero_ctx *z);
/** Makes that the newest record again, and its tiles the state. *Local.* ZERO_E_CORRUPT, ZERO_E_IO.
 */
zero_result eng_tier_take_point(zero_ctx *z, struct base_error *error);

#endif
