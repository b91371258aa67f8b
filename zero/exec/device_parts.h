/**
 * zero/exec/device_parts.h: what the files of this folder share, and who copies state to and from a
 * device: streams, events and arrays.
 *
 *     device_program.c     life, public calls, what both executors on a GPU share.
 *     device_queue.c       to wait, to copy, and to say what has failed.
 *     device_state.c       memory where state is on the device.
 *     device_reduce.c      gradients: opened, and added up; a rank's own, with reduction=local,
 *                          before they travel.
 *     device_step.c        a step: decision and update.
 *     device_outcome.c     what comes back of both, and metrics.
 *     device_ranges.c      the segments that an update works through.
 *     device_tiles.c       state of the host or of files that passes through the device: its tiles,
 *     device_passes.c      and their way through it.
 *     device_digest.c      fingerprints, and hashes of gradients that are compared.
 *     device_needs.c       memory that a plan counts: there, and of the host.
 *
 * Streams: those of the program's calls, and the engine's own. Where state is on the device that
 * one is urgent, and all that changes state is queued on it; else gradients leave on one more, and
 * working copies come on another, both beside the program's work.
 *
 * Events, and tickets of the transport, of units [u], buckets [b], gather slots [g] and gradient
 * slots [s]. device_updated() chooses which of the first three an update records:
 *
 *     name           is behind                                   is waited for before
 *     shown          the whole update                            a working copy is read
 *     persisted      the update of what persists, if by units    that is read
 *     lent[u]        the unit's update, or its copy to the GPU   the unit is read
 *     read[u]        what the program has queued with the unit   its values are written
 *     copied[g]      what has last read the slot                 another unit comes there
 *     taken[s]       what has last read the slot                 a gradient is opened there
 *     handed         what the call's stream was given            own streams go on with that
 *     valued         metrics on their way                        the host reads them
 *     judged         a step's record on its way                  the host takes the step in
 *     summed[half]   the sums of what was received there         more is received there
 *     published[b], gathered[g]   a collective                   the values that it brings are read
 */
#ifndef ZERO_EXEC_DEVICE_PARTS_H
#define ZERO_EXEC_DEVICE_PARTS_H

#include "zero/core/context.h"

#include "base/device.h"
#include "base/kernels/device_kernels.h"
#include "collectives/gpu/gcomm.h"
#include "zero/core/exec_table.h"
#include "zero/exec/gpu.h"
#include "zero/model/state_tiles.h"

enum {
    DEVICE_PINS = 4,
    DEVICE_VALUES_BYTES = 4096,           /**< of metrics: a page of their own */
    DEVICE_OPEN_STEPS = 2,                /**< whose verdict is under way, at most, */
    DEVICE_STEPS = DEVICE_OPEN_STEPS + 1, /**< and with the one that is computed */
};

/** Arrays of the device's memory, one behind the other, where state is there. */
enum device_piece {
    DEVICE_PARAMS,
    DEVICE_GATHERED,
    DEVICE_GRADS,
    DEVICE_RECEIVED, /**< what other ranks contribute, of two units in turn */
    DEVICE_SUMS,
    DEVICE_BLOCKS,
    DEVICE_MOMENTS,
    DEVICE_MASTERS,
    DEVICE_SQUARES, /**< of each granule this rank sums */
    DEVICE_BALLOT,
    DEVICE_BALLOTS, /**< of all ranks */
    DEVICE_COURSE,
    DEVICE_GATE,
    DEVICE_WRONG,  /**< what updates have stored that is not finite */
    DEVICE_BAD,    /**< a number a bucket, */
    DEVICE_RECORD, /**< and behind the record the same numbers, of the step it is about */
    DEVICE_PREPARED,
    DEVICE_SCALARS,
    DEVICE_KEYS,
    DEVICE_SEGMENTS,
    DEVICE_HASHED,    /**< what a digest works through, */
    DEVICE_DIGEST,    /**< and a sum a tensor */
    DEVICE_GRADIENTS, /**< the same of gradients that are compared, where a slot begins, */
    DEVICE_HASHES,    /**< with two sums a slice */
    DEVICE_GAPS,      /**< between slices of gradients, where a slot begins */
    DEVICE_PIECES
};

/** A step whose verdict is under way. */
struct device_step {
    double max_norm, lr;
    bool fused;   /**< a part of its update was made before */
    void *judged; /**< event behind its record's way to the host */
    struct base_device_record *record;
};

/** A metric as it was given: by the program, or as a float from the device. */
union device_value {
    double given;
    float fetched;
};

/** Metrics of a step whose verdict may be under way. */
struct device_metrics {
    struct eng_metrics names;
    union device_value *values; /**< [metric][local micro-batch], */
    uint8_t *fetched;           /**< and which of them come from the device */
};

/** State on the device. */
struct device_state {
    struct base_tables tables;
    unsigned char *memory; /**< NCCL's own, if it registers that */
    size_t offsets[DEVICE_PIECES + 1];
    size_t segment_count;
    bool rounds;   /**< some weights or moments are not fp32 */
    bool stale;    /**< the segments are not those of what trains now */
    bool sole;     /**< they have gradients instead of sums: device_sole() */
    bool roomy;    /**< device_gradients_fit() */
    bool squared;  /**< the step's squares are in the ballot */
    bool fused;    /**< it is fused, and updated from the first gradient on */
    bool by_units; /**< the last update was one of unit after unit, */
    bool at_once;  /**< or of all in one go */
    bool unproved; /**< of an update it is not known here whether what it has stored is finite */
    size_t key_count;
    void *persisted;       /**< event behind the update of what persists, where it is by units */
    unsigned char *pinned; /**< records, and what is prepared, of the steps under way */
    struct device_step steps[DEVICE_OPEN_STEPS];
    int open;          /**< of them: the last ones up to .newest */
    uint64_t newest;   /**< number of the newest step with a verdict */
    uint64_t began_ns; /**< when the newest step's work was begun to be queued */
    unsigned char *prepared[DEVICE_STEPS]; /**< memory of the host that scalars and keys of each
                                                come from */
    uint64_t first_update;                 /**< that those of the newest one are for */
    unsigned char *metric_memory;
    struct device_metrics metrics[DEVICE_STEPS];
    struct device_tiles *tiles;           /**< NULL: nothing passes through the device */
    struct gcomm *peers;                  /**< NULL: there is one rank */
    struct gcomm_scattered *scattered;    /**< of the buckets of a unit that is on its way, */
    struct coll_span *spans;              /**< with theirs, */
    struct gcomm_reduced *reduced;        /**< or that are summed on their way, */
    struct gcomm_gathered *parts;         /**< or that is gathered */
    struct base_device_segment *segments; /**< as they are on the device */
    size_t *bucket_segments;              /**< first segment of each bucket, one more at the end */
    size_t *unit_gaps;                    /**< first gap of each unit, one more at the end */
    size_t *unit_hashed; /**< the same of gradients that are hashed; NULL: none is compared */
    uint64_t *published; /**< tickets of buckets that were sent on their way, */
    uint64_t *gathered;  /**< and of gather slots */
    uint64_t last;       /**< the last ticket */
    unsigned turn;       /**< of the halves of what is received, */
    void *summed[2];     /**< events behind what has last read them */
};

struct eng_device {
    struct base_tables tables; /**< of buckets and events */
    const struct base_device *ops;
    int number;
    bool entered;       /**< by this thread, for the call under way */
    void *own;          /**< stream for what no stream was given for */
    zero_stream stream; /**< of the call under way */
    unsigned char *params, *grads;
    size_t params_bytes;
    size_t *buckets; /**< byte of each in params */
    void *down, *up; /**< streams of gradients and working copies, where state is the host's */
    void *shown, *valued, *handed;
    void **read, **lent, **copied, **taken;
    void *pinned[DEVICE_PINS];
    zero_unit waiting;            /**< whose gradient is on its way to the host; -1: none */
    float *values;                /**< of metrics that are on their way, */
    int metrics[ENG_MAX_METRICS]; /**< which ones, of the micro-batch under way */
    int value_count;
    const struct base_device_kernels *kernels; /**< what the engine computes there; NULL: nothing */
    void *kernel_state;
    struct device_state *state; /**< NULL: that of the host */
};

/** An array of the device's memory. */
static inline void *device_piece(const struct eng_device *d, enum device_piece piece)
{
    return d->state->memory + d->state->offsets[piece];
}

/** The event behind the last update of a unit (-1: of all that persists): from there on its working
 * copy is the new one, and no kernel reads its sums. */
static inline void *device_updated(const zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    if (!d->state->by_units)
        return d->shown;
    return unit < 0 ? d->state->persisted : d->lent[unit];
}

/** Where a step's verdict comes to, and its metrics. */
static inline struct device_step *device_step_of(const zero_ctx *z, uint64_t step)
{
    return &z->device->state->steps[step % DEVICE_OPEN_STEPS];
}

static inline struct device_metrics *device_metrics_of(const zero_ctx *z, uint64_t step)
{
    return &z->device->state->metrics[step % DEVICE_STEPS];
}

/** What is to blame in each bucket, behind the record of a step's verdict; free while there is
 * none. */
static inline uint64_t *device_blamed(const zero_ctx *z, uint64_t step)
{
    return (uint64_t *)(void *)(device_step_of(z, step)->record + 1);
}

struct eng_decision;
struct eng_grad_opening;

/* ---- device_queue.c */

/** A failure of the device, with where and what for. */
zero_result device_tell(const zero_ctx *z, const struct base_error *inner, const char *what,
                        struct base_error *error);
/** Takes it over. */
zero_result device_failed(zero_ctx *z, const struct base_error *inner, const char *what);
/** Waits for an event, and helps other ranks meanwhile, as every wait does. */
zero_result device_await(zero_ctx *z, void *event, const char *what);
/** Copies to the host, or to the device, behind everything that is queued so far, and waits. */
zero_result device_copy(const zero_ctx *z, void *to, const void *from, size_t bytes,
                        struct base_error *error);
/** Room in the host for a table of the device, all 0; NULL: *error says so. */
void *device_table(size_t count, size_t size, struct base_error *error);
/** Makes a table what a piece of the device's memory has, waits for it, and frees the table. */
zero_result device_upload(const zero_ctx *z, enum device_piece piece, void *table, size_t bytes,
                          struct base_error *error);
/** What the engine's own stream is given from now on begins after everything that the program has
 * queued so far and that reads working copies. */
zero_result device_quiet(const zero_ctx *z, struct base_error *error);

/* ---- device_program.c: entries of struct eng_exec, and what they have in common */

zero_result device_exec_make(zero_ctx *z, struct base_error *error);
void device_close(zero_ctx *z);
zero_result device_enter(zero_ctx *z);
void device_leave(zero_ctx *z);
zero_result device_take_stream(zero_ctx *z, zero_stream stream);
zero_result device_released(zero_ctx *z, zero_unit unit);
zero_result device_metric_fetch(zero_ctx *z, int metric, const float *value);
zero_result device_metric_values(zero_ctx *z);
/** Bytes of the host for what device_exec_make() makes, beside state on the device. */
size_t device_tables_bytes(const zero_ctx *z, const struct eng_placement *placement);
/** Begins to copy the value of a metric. */
zero_result device_value(zero_ctx *z, float *to, const float *from);
/** Bytes of a bucket's working copy. */
static inline size_t device_bucket_bytes(const struct eng_bucket *bucket)
{
    return bucket->granules * BASE_GRANULE * eng_dtype_size(bucket->dtype);
}

/* ---- device_outcome.c: entries of struct eng_exec */

void device_metric_set(const zero_ctx *z, int metric, double value);
zero_result device_take_in(zero_ctx *z, int open);
zero_result device_prove(zero_ctx *z);
zero_result device_learn(zero_ctx *z);
void device_look(const zero_ctx *z, bool waits);
void device_steps_close(zero_ctx *z);
/** Begins to copy the value of a metric of a step's micro-batch. */
zero_result device_step_value(zero_ctx *z, int metric, const float *value);
/** Makes squares part of the ballot, once a step. */
zero_result device_add_squares(const zero_ctx *z, struct base_error *error);

/* ---- device_step.c: entries of struct eng_exec */

zero_result device_step_begin(zero_ctx *z);
zero_result device_fuse(zero_ctx *z);
zero_result device_decide(zero_ctx *z, const zero_step_args *args, struct eng_decision *decision);
zero_result device_update(zero_ctx *z, enum eng_update_kind *kind);
zero_result device_step_end(zero_ctx *z);
zero_result device_skip(zero_ctx *z);
/* Entries of the stores whose state is on the device, or passes through it. */
zero_result device_update_begin(zero_ctx *z, struct eng_update_pass *pass);
zero_result device_update_bucket(zero_ctx *z, size_t bucket);
zero_result device_update_end(zero_ctx *z, zero_result r);
/** Updates what may be in a fused step, behind a unit's sums and all that reads its
 * working copy. */
zero_result device_update_fused(zero_ctx *z, zero_unit unit, struct base_error *error);

/* ---- device_reduce.c */

/** An entry of struct eng_exec. */
zero_result device_grad_open(zero_ctx *z, zero_unit unit, const struct eng_grad_opening *opening);
/** Gaps between slices of gradients. */
size_t device_gaps_count(const zero_ctx *z);
/** Makes their table on the device, which never changes. */
zero_result device_gaps_make(const zero_ctx *z, struct base_error *error);
/** Whether the step has only one contribution, which the update reads instead of a sum: it is
 * looked at, for norm and verdict, and then has to stay. */
bool device_sole(const zero_ctx *z);
/** Where a unit's stays: in its own slot, or, if slots are for any unit, in the memory of its sums.
 */
unsigned char *device_gradient(const zero_ctx *z, zero_unit unit);
/** Whether all fit there. */
bool device_gradients_fit(const zero_ctx *z);
/** Adds what ranks contribute to a bucket to the sums; received: what others do, one behind the
 * other. reduction=local: takes over what is in the gradient's place, the sum of all ranks. */
zero_result device_sum(const zero_ctx *z, size_t s, const unsigned char *gradient,
                       const void *received, struct base_error *error);
/** An entry of struct eng_exec. */
zero_result device_add(const zero_ctx *z, const struct base_device_addition *work,
                       struct base_error *error);
/** reduction=local: adds the gradient handed over to those of the rank's micro-batches before,
 * which are in the unit's own slot. An entry of struct eng_exec. */
zero_result device_grad_add(zero_ctx *z, zero_unit unit);
/** Finds what is not finite in what this rank contributes to a unit. */
zero_result device_local_search(const zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                                void *stream, struct base_error *error);

/* ---- device_state.c */

/** Whether state can be there, before any is: it can run the kernels; and, for several ranks, what
 * device_transport needs is here. ZERO_E_UNSUPPORTED; ZERO_E_NOMEM, ZERO_E_DEVICE. */
zero_result device_can_update(const zero_ctx *z, struct base_error *error);
zero_result device_can_move(const zero_ctx *z, struct base_error *error);
/** Entries of struct eng_exec. */
zero_result device_metrics_make(const zero_ctx *z, unsigned char **memory,
                                struct base_error *error);
void device_metrics_take(zero_ctx *z, unsigned char *memory);
void device_metrics_drop(const zero_ctx *z, unsigned char *memory);
/** Adds what state on the device takes beside the placement. */
void device_state_need(const zero_ctx *z, const struct eng_placement *placement,
                       struct eng_need *need);
zero_result device_state_make(zero_ctx *z, struct base_error *error);
void device_state_free(zero_ctx *z);
/** Nothing of a sum is bad so far. No verdict is under way. */
zero_result device_bad_clear(const zero_ctx *z, struct base_error *error);

/* ---- device_ranges.c */

/** An entry of struct eng_exec. */
void device_stale(zero_ctx *z);
/** Makes device_segments() those of what trains now. */
zero_result device_segments_refresh(zero_ctx *z, struct base_error *error);
/** Updates some of device_segments(), if the verdict lets them; in a fused step, before it,
 * those whose sums are finite. */
zero_result device_update_segments(const zero_ctx *z, size_t first, size_t count,
                                   struct base_error *error);

/* ---- device_digest.c */

/** Entries of struct eng_exec. */
zero_result device_hashes(zero_ctx *z, uint64_t *hashes);
bool device_digest(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error);
/** How many parts a rank with this placement hashes; none of what passes through the
 * device. */
size_t device_digest_count(const zero_ctx *z, const struct eng_placement *placement);
/** How many there are of gradients; none unless some are compared. */
size_t device_gradients_count(const zero_ctx *z);
/** Makes the tables of both on the device, which never change. */
zero_result device_digest_make(const zero_ctx *z, struct base_error *error);
/** config.verify_micro: hashes the gradient that is handed over, before the stream of the call goes
 * on. */
zero_result device_hash_gradient(const zero_ctx *z, zero_unit unit, struct base_error *error);

#endif
