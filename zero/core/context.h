/**
 * zero/core/context.h: the context, which all files of the engine share.
 */
#ifndef ZERO_CORE_CONTEXT_H
#define ZERO_CORE_CONTEXT_H

#include "base/arena.h"
#include "base/exact_sum.h"
#include "base/kernels/decide.h"
#include "base/log.h"
#include "base/pool.h"
#include "checkpoint/manifest/manifest.h"
#include "collectives/comm/comm.h"
#include "collectives/control/control.h"
#include "zero/config/config.h"
#include "zero/core/store_table.h"
#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/model/registry.h"
#include "zero/plan/plan.h"

#include <pthread.h>

#define ENG_MAX_METRICS 16
#define ENG_METRIC_NAME 32
#define ENG_UNIT_NAME 48
#define ENG_UNIT_LIST 256

/** A unit's working copy at this rank. */
struct eng_unit {
    char name[ENG_UNIT_NAME]; /**< eng_layout_unit_name() */
    int holds;                /**< zero_gather() calls without their zero_release() */
    int slot;                 /**< gather slot that has or will have it, -1 none */
    size_t next;              /**< place of its next gather in the replay, SIZE_MAX if none */
    int grad_slot;            /**< gradient slot while open */
    int sum_slot; /**< gradient slot that is reduced; stages 0, 1: the unit's for ever; -1:
                       none yet */
    bool grad_open;
    bool grad_handed; /**< in the current micro-batch */
    bool closed;      /**< and its owners may write its values until the step ends: no gathers */
    bool trains;      /**< some tensor of it is updated: its gradient is needed */
    uint64_t handed; /**< order of its last hand-over, before the first one from the last unit on */
    uint64_t version; /**< of the parameters, when a value of it changed last */
};

/** Collective operations of one bucket. Two requests alternate for gathers, so that a rank need
 * not wait for its slowest peer before it gathers the same bucket again. */
struct eng_bucket_io {
    zero_ctx *z;
    size_t bucket;
    bool trains;      /**< some tensor of it is updated: it is reduced and published */
    uint64_t version; /**< of the parameters, when a value of it changed last, */
    uint64_t lent;    /**< and when it was copied to where the program has it last, */
    uint64_t shown;   /**< or to a window that is always open */
    int round;        /**< local micro-batch of the reduction */
    struct coll_request gather[2];
    struct coll_request reduce;
    unsigned turn; /**< which of the gathers was started last */
    bool reduce_started;
    bool publish_pending;
    bool sums;           /**< its updates can add contributions up themselves */
    bool fused;          /**< the reduction under way, or complete, updates too */
    size_t next_segment; /**< that it updates next */
};

/** A gather slot. */
struct eng_gather_slot {
    size_t offset;
    zero_unit unit;    /**< -1: empty */
    uint64_t version;  /**< of the parameters it has */
    uint64_t last_use; /**< counts gathers: for replacement without a trace */
    bool in_flight;
    bool staging; /**< in flight is what comes from a file; its all-gather is not started */
    bool keeps;   /**< the update under way leaves this rank's new values there */
};

/**
 * A gradient slot. With `keeps` nothing is zeroed, with `again` no padding.
 *
 *     free --- exec->grad_open(): zeros ---> open --- exec->grad_close() ---> read by the reduction
 *      ^                                                                                |
 *      +----------- take_slot(): no peer reads it, or another unit takes it ------------+
 *
 * reduction=local: a unit's slot is opened again with its sum (`keeps`), which the reduction reads
 * after the last micro-batch only. A gradient that overwrites takes a spare slot: eng_local_slot().
 */
struct eng_grad_slot {
    size_t offset, home; /**< where it is, and where it is unless exec/device_reduce.c moves it */
    zero_unit unit;      /**< whose gradient it holds or held, -1: never used */
    bool open;
    bool clean;      /**< its padding is zeros */
    uint64_t handed; /**< order in which it was handed over: the oldest is reused first */
};

/** One gather of a trace. */
struct eng_gather {
    zero_unit unit;
    size_t again; /**< of a replay: place of the unit's next gather, SIZE_MAX if none */
};

/** The order of gathers into slots of one micro-batch. */
struct eng_trace {
    struct eng_gather *gathers;
    size_t count;
};

/** One is recorded in each micro-batch, and replayed ahead in the next of its kind. */
struct eng_traces {
    struct eng_trace recording, replay;
    size_t capacity; /**< of either */
};

/** Addresses through which the program sees parameters or gradients where that is enforced: see
 * paranoid.c. */
struct eng_windows {
    bool gradients;
    unsigned char *base;
    size_t bytes;    /**< of all windows, and of what lies between them */
    size_t *offsets; /**< of each slice's first window */
    uint8_t *turns;  /**< which of its windows is open, or was last, for each unit */
};

struct eng_metric {
    char name[ENG_METRIC_NAME];
    double mean;
};

/** Metrics in the order in which they are given. */
struct eng_metrics {
    struct eng_metric list[ENG_MAX_METRICS];
    int count;
};

/** A pass without gradients, between two steps. */
struct eng_evaluation {
    bool active;
    int total, count;          /**< its micro-batches, over all ranks and of each */
    int room;                  /**< micro-batches of a rank there is memory for */
    bool listens;              /**< the program of some rank does: requests to stop are learned */
    unsigned char *mine, *all; /**< what the ranks exchange at its end; see evaluation.c */
};

/** The first non-finite contribution this rank has seen, ordered by its fields. */
struct eng_bad {
    uint64_t micro; /**< UINT64_MAX: none */
    uint64_t param, slice, element;
};

/** A run of elements of one slice and one owner that one task updates. */
struct eng_segment {
    const struct eng_slice *slice;
    size_t bucket;
    zero_group group;
    size_t first;          /**< element of the bucket, at a granule */
    size_t count;          /**< without padding */
    const float *gradient; /**< the owner's sums of them; of sums in a file: during its update */
};

/** What zero-run is told; all zero without a zero-run. */
struct eng_watch {
    struct control_segment *segment;
    struct control_rank *area; /**< this rank's */
    bool traced;               /**< every stretch of time is recorded */
    zero_statistics before;    /**< at the end of the step before */
    uint64_t ended_ns;         /**< when that was; 0: the context is not committed */
    uint64_t first_step;       /**< the first one that was told; 0: none yet */
    uint64_t first_ns;         /**< when it ended */
    zero_statistics aside;     /**< when the evaluation under way began, */
    uint64_t aside_ns;         /**< and when that was */
};

/** Fields of eng_wrong; moment k is the first one's plus k; of a device's it is not known. */
enum { ENG_WRONG_WEIGHT, ENG_WRONG_COPY, ENG_WRONG_MOMENT, ENG_WRONG_SOMETHING = 8 };

/** The first value that an update has made and that is not finite, ordered by its fields. */
struct eng_wrong {
    uint64_t param; /**< UINT64_MAX: none */
    uint64_t slice, element;
    uint32_t field; /**< one of these */
    float value;    /**< of a working copy: its weight */
};

/** What updates have made; threads of the pool add to it. */
struct eng_outcome {
    pthread_mutex_t lock;
    struct eng_wrong first;
    bool large;      /**< the update under way has made a value that is large, or not finite */
    bool doubtful;   /**< and it may be the latter: ranks ask each other when it is over */
    bool some_large; /**< before it, some rank may have had a value that is large */
    uint64_t small;  /**< version of the parameters of which no weight or moment is large */
};

/** A request to stop. Any thread and signal handlers come here. */
struct eng_stop {
    _Atomic uint32_t asked;   /**< by this rank's program */
    _Atomic uint32_t listens; /**< 1: the program has called zero_stop_requested() */
    _Atomic uint64_t agreed;  /**< one more than the steps that were finished when all ranks learned
                                   of it; 0: there is no request */
    bool counted;             /**< among the contexts of its process */
    bool heard;               /**< some rank knew of it in the exchange of the step that ends */
};

/** How many runs and directories a context remembers of each kind. */
enum { ENG_RUNS = 16 };

/** Which directory it is, whatever its name; zeros: none. */
struct eng_folder {
    uint64_t device, inode;
};

/** A run of which a checkpoint was loaded. Rank 0 knows the directory that had it, and the step. */
struct eng_run {
    struct ckpt_run_id id;
    struct eng_folder from;
    uint64_t step;
};

struct eng_runs {
    struct ckpt_run_id own;          /**< what it began, or went on with */
    struct eng_run loaded[ENG_RUNS]; /**< whose checkpoints it has loaded, the newest first */
    int count;
    uint64_t loads;                    /**< how many so far */
    struct eng_folder saved[ENG_RUNS]; /**< rank 0's: the directories that it has saved in, */
    struct eng_folder
        passed[ENG_RUNS]; /**< the damaged checkpoints that zero_resume() passed over */
    unsigned saved_count, passed_count; /**< so far: the newest 16 are known */
};

/** What zero_save_poll() tells, from any thread. */
struct eng_save_status {
    _Atomic uint64_t changes; /**< odd while what is told of a save becomes that of the next one */
    _Atomic int phase;        /**< enum eng_save_phase */
    _Atomic uint64_t step, began_ns, ended_ns, blocked_ns;
    _Atomic uint64_t done_bytes, state_bytes, file_bytes;
    _Atomic uint64_t fingerprint[2];
};

/** What a rank keeps in memory, from zero_commit() on. */
struct eng_memory {
    struct coll_arena *params_arena;  /**< working copies, which peers read */
    struct coll_arena *grads_arena;   /**< gradients, which peers read */
    struct coll_arena *sums_arena;    /**< sums, which peers read */
    struct coll_arena *slots_arena;   /**< gather slots, where buckets are staged, or the host's */
    struct base_arena private_memory; /**< what no peer reads */
    struct base_tables tables;        /**< whose size the model decides */
    unsigned char *params, *grads;
    const unsigned char *params_view; /**< params as the program sees them, */
    const unsigned char *slots_view;  /**< and slots */
    float *sums, *blocks, *masters;
    unsigned char *moments, *slots;
    void *nowhere;             /**< see eng_nowhere() */
    struct eng_bounce *bounce; /**< the host's view of state on a device; NULL: it is not there */
    const struct eng_planner *planner;  /**< whether there is room for more: planner.h */
    const struct eng_call_bytes *calls; /**< what public calls take while they run: planner.h */
};

/** Gathers of units, and their order. */
struct eng_gathers {
    struct eng_gather_slot *slots;
    struct eng_traces step_traces, evaluation_traces;
    struct eng_traces *traces; /**< those of the micro-batch under way or finished last */
    size_t replay_at;
    bool replaying;
    uint64_t seen;
    int held_units;
};

/** Gradients of the step under way. */
struct eng_gradients {
    struct eng_grad_slot *slots;
    bool shared;   /**< slots pass from unit to unit; else each unit has one of its own */
    int most_open; /**< that the program may have open at once */
    uint64_t handed;
    int open;
    struct base_exact_sum squares; /**< of this rank's sums, granule by granule */
    bool squares_overflow;
    struct eng_bad bad;
};

struct eng_observer;

enum { ENG_MAX_OBSERVERS = 2 };

/** What finds errors of the program, where the configuration asks for it. */
struct eng_debug {
    const struct eng_observer *observers[ENG_MAX_OBSERVERS]; /**< see observers.h */
    int observer_count;
    struct eng_windows param_windows, grad_windows; /**< if paranoid */
    uint64_t *hashes_mine, *hashes_all;             /**< verify_micro: see verify_micro.c */
};

/** How this rank updates the state it owns. */
struct eng_updating {
    struct eng_segment *segments;
    size_t *bucket_segments; /**< first segment of each bucket, one more at the end */
    bool past_caches;        /**< an update goes through more than the caches hold */
    bool parted;             /**< each rank updates a part, and finds what is wrong in that only */
    bool begun;              /**< the pass of the update under way has begun, in a fused step before
                                  zero_step() */
    uint64_t began_ns;       /**< when the executor began the update under way; 0: it has not */
    bool adds_again;         /**< see eng_adds_again() */
    uint64_t prepared;       /**< number of the update that the scalars are for, from 1 */
    union eng_scalars *scalars;              /**< of the step under way, one a group */
    const struct eng_overwrite_guard *guard; /**< overwrite.h; NULL: nothing is read */
    struct eng_updater updater;              /**< offload_update=auto */
};

/** New values and sums on their way to the other ranks. */
struct eng_publication {
    struct coll_span *all_sums;    /**< stage 0: bytes of each rank's, if all are here; else NULL */
    struct coll_request sums_read; /**< stage 0: "this rank has read all sums", or fetches them */
    bool sums_lent;                /**< it was started, and not every rank is known to have */
    bool grads_lent;               /**< and it means gradient slots, too */
    struct coll_span *everyone;    /**< a block of every rank, for publications */
    uint64_t version;              /**< of the parameters: counts publications */
};

struct eng_exchange_part;
struct eng_step_kind;

enum { ENG_MAX_PARTS = 8 };

/** What this rank says, and behind it what all say. */
struct eng_exchange_room {
    unsigned char *mine, *all;
};

/** What ranks tell each other when a step ends; `all` is free between steps. */
struct eng_exchanged {
    const struct eng_exchange_part *parts[ENG_MAX_PARTS]; /**< see exchange.h */
    int part_count;
    struct eng_exchange_room room;
};

/** The micro-batches of a step or an evaluation. */
struct eng_micro {
    int index;           /**< local micro-batch under way or finished last, -1 before the first */
    int count;           /**< a step and rank */
    int again;           /**< of another rank, which an observer has computed again behind them */
    int32_t planned;     /**< V at commit, which memory was decided for */
    bool planned_blocks; /**< whether memory allows blocks to be left unfinished */
    struct eng_metrics metrics; /**< of the step or evaluation under way */
    double *values;             /**< of a step's metrics: [metric][local micro-batch] */
    struct eng_metrics means;   /**< of the last one that ended */
    int metric_next;            /**< how many metrics the micro-batch under way has given */
    struct eng_evaluation evaluation;
};

/** A step from its arguments to its result. */
struct eng_stepping {
    struct eng_outcome outcome;
    zero_hyper *hyper;                /**< of the last step, one a group */
    const struct eng_step_kind *kind; /**< of the step under way: step_kind.h */
    zero_step_args fused;             /**< arguments of zero_step_in_backward() */
    bool early; /**< buckets of the step under way are updated before zero_step(), unless they
                     persist; the same on all ranks */
    bool stepped;
    zero_step_result result;
    struct base_scale scale;
    const struct eng_step_hooks *hooks; /**< executors tell them what they learn of steps */
    struct eng_exchanged exchange;
    const struct eng_step_request *request; /**< of the exchange under way */
    struct eng_verdict *verdict;            /**< where its result goes */
};

/** What decides whether a public call may run, and what it restores at its end. */
struct eng_call {
    bool committed;            /**< zero_commit() has succeeded */
    uint32_t generation;       /**< of the process that has opened the context: base_generation() */
    uint32_t fp_control;       /**< the caller's floating-point state, during a call */
    struct base_error refused; /**< the first refused registration, which zero_commit() tells */
};

/** What the host computes with. */
struct eng_cpu {
    struct base_pool *pool;
    const struct base_kernels *kernels;
};

/** What the context has to do with the job that zero-run, or another launcher, has started. */
struct eng_job {
    struct eng_watch watch;
    struct eng_stop stop;
};

/** What the context saves. */
struct eng_saving {
    struct eng_blobs *blobs; /**< what is attached; NULL: nothing yet */
    struct eng_runs runs;    /**< whose checkpoints it saves */
    struct eng_save *save;   /**< NULL before the first zero_save() */
    struct eng_save_status status;
    const struct eng_record_content *record; /**< what a record of state in a file has beside it */
};

struct zero_ctx {
    struct eng_config config;
    struct base_error error;
    zero_result fatal;
    struct eng_call call;

    struct coll_comm *comm;
    struct eng_cpu cpu;

    struct eng_model model;
    struct eng_layout layout;
    struct eng_placement placement;
    struct eng_plan plan;

    struct eng_memory memory;
    struct eng_unit *units;
    struct eng_bucket_io *io;
    struct eng_gathers gathers;
    struct eng_gradients gradients;
    struct eng_updating update;
    struct eng_publication publication;
    struct eng_micro micro;
    struct eng_stepping stepping;
    struct eng_debug debug;

    uint64_t step, updates;
    zero_statistics stats;
    struct eng_job job;

    const struct eng_exec *exec;   /**< who computes: exec_table.h */
    const struct eng_link *link;   /**< how buckets move: link_table.h */
    struct eng_device *device;     /**< where the program computes; NULL: on the host */
    const struct eng_store *store; /**< where state is kept: store_table.h */
    struct eng_tier *tier;         /**< state in a file; NULL: all of it is in memory */
    struct eng_saving saving;
};

#endif
