/**
 * The context and what its files call of each other, from the top down; calls run down only.
 *
 *   open_close.c                life: open, close, and what can be asked at any time
 *   public_collectives.c            the other public header, <zero/collectives.h>
 *   commit.c                 from the registered model to memory with first values
 *   first_values.c                  whether all ranks give the same ones
 *   state/                   checkpoints: what decides the future, to files and back
 *   tier/                    optimizer state that is in a file, and in memory only in passing
 *   step.c, whole_tensors.c, fingerprint.c    a step; whole tensors; the digest
 *   param_access.c, batch_size.c        parts of a tensor, and V, between steps
 *   fused.c                  a step that is announced: updated while its sums are in cache
 *   step_outcome.h                step_outcome.c, nonfinite_policy.c, metric.c: agree on a step;
 * what if gradients are not finite; means of metrics outcome.h                outcome.c: whether
 * what an update has made is finite update.c, master_weights.c       update; write master weights
 *   gather.c, gradient.c, micro_batch.c    the calls of a micro-batch
 *   evaluation.c             passes without gradients, between steps
 *   frozen.c                 what is not updated at present
 *   unit_calls.c                   the calls of a unit, several at once
 *   borrow.c                 working copies and gradients in the caller's memory
 *   verify_micro.c                 micro-batches that are computed twice
 *   paranoid.c, paranoid_fault.c    windows that enforce when what may be touched, and say so
 *   device/                  working copies and gradients on a device, where the program computes
 *   native.c                 micro-batches added up before they travel
 *   prefetch.c, publish.c    working copies on their way before they are asked for
 *   gather_slots.c, gather_order.c, bucket_gather.c    where gathered units live; the order of
 * gathers; all-gathers host_memory.c                 allocates the placement; where a section's
 * bytes are api_call.c                   entering and leaving a call, failures stop.h
 * stop_request.c, stop_signals.c: requests to stop, and signals that are some telemetry.c what
 * zero-run sees of all this budget.h                 budget.c, host_fit.c, gpu_fit.c: what ranks
 * need; whether hosts and GPUs have that plan_make.c, placement.c, layout.c, registry.c    how
 * much, where, who, what: no context, pure
 */
#ifndef ZERO_CORE_CONTEXT_H
#define ZERO_CORE_CONTEXT_H

#include "base/arena.h"
#include "base/exact_sum.h"
#include "base/log.h"
#include "base/pool.h"
#include "checkpoint/manifest.h"
#include "collectives/comm.h"
#include "collectives/control/control.h"
#include "zero/config/config.h"
#include "zero/exec/gpu.h"
#include "zero/kernels/scale.h"
#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/model/registry.h"
#include "zero/plan/plan.h"
#include "zero/plan/updater_choice.h"
#include "zero/snapshot/run_identity.h"
#include "zero/step/outcome.h"
#include "zero/store/nvme_use.h"

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
    bool trains;      /**< some tensor of it is updated: its gradient is needed */
    uint64_t handed; /**< order of its last hand-over, before the first one from the last unit on */
    uint64_t version; /**< of the parameters, when a value of it changed last */
};

/** Collective operations of one section. Two requests alternate for gathers, so that a rank need
 * not wait for its slowest peer before it gathers the same section again. */
struct eng_section_io {
    zero_ctx *z;
    size_t section;
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
    bool ahead;          /**< the reduction under way, or complete, updates too */
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

/** A gradient slot. */
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
    size_t section;
    zero_group group;
    size_t first;          /**< element of the section, at a granule */
    size_t count;          /**< without padding */
    const float *gradient; /**< the owner's sums of them; of sums in a file: during its update */
};

/** What zero-run is told; all zero where nobody listens. */
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

/** A request to stop. Any thread and signal handlers come here. */
struct eng_stop {
    _Atomic uint32_t asked;   /**< by this rank's program */
    _Atomic uint32_t listens; /**< 1: the program has called zero_stop_requested() */
    _Atomic uint64_t agreed;  /**< one more than the steps that were finished when all ranks learned
                                   of it; 0: there is no request */
    bool counted;             /**< among the contexts of its process */
};

/** What zero_save_poll() tells, from any thread. */
struct eng_save_status {
    _Atomic uint64_t changes; /**< odd while what is told of a save becomes that of the next one */
    _Atomic int phase;        /**< see snapshot/save_state.c */
    _Atomic uint64_t step, began_ns, ended_ns, blocked_ns;
    _Atomic uint64_t done_bytes, state_bytes, file_bytes;
    _Atomic uint64_t fingerprint[2];
};

struct zero_ctx {
    struct eng_config config;
    struct base_log log;
    struct base_error error;
    zero_result fatal;
    bool committed;
    uint32_t generation; /**< of the process that has opened it: base_generation() */
    struct base_error
        refused;         /**< the first registration that was refused: zero_commit() says so */
    uint32_t fp_control; /**< the caller's floating-point state, during a call */

    struct coll_comm *comm;
    struct base_pool *pool;
    const struct eng_kernels *kernels;

    struct eng_model model;
    struct eng_layout layout;
    struct eng_placement placement;
    struct eng_plan plan;
    struct eng_updater updater; /**< offload_update=auto */

    /** What peers read; slots only where they are staged. */
    struct coll_arena *params_arena, *grads_arena, *sums_arena, *slots_arena;
    struct base_arena private_memory; /**< what they don't */
    unsigned char *params, *grads;
    const unsigned char *params_view; /**< params as the program sees them */
    float *sums, *blocks, *masters;
    unsigned char *moments, *slots;
    struct eng_unit *units;
    struct eng_section_io *io;
    struct eng_gather_slot *gather_slots;
    struct eng_grad_slot *grad_slots;
    struct eng_windows param_windows, grad_windows; /**< if paranoid */
    void *nowhere;                                  /**< see eng_nowhere() */
    uint64_t *hashes_mine, *hashes_all;             /**< verify_micro: see verify_micro.c */
    struct eng_segment *segments;
    size_t *section_segments; /**< first segment of each section, one more at the end */
    bool past_caches;         /**< an update goes through more than the caches hold */

    struct coll_span *all_sums;    /**< stage 0: bytes of each rank's, if all are here; else NULL */
    struct coll_request sums_read; /**< stage 0: "this rank has read all sums", or fetches them */
    bool sums_lent;                /**< it was started, and not every rank is known to have */
    bool grads_lent;               /**< and it means gradient slots, too */
    bool adds_again;               /**< see eng_adds_again() */
    struct coll_span *everyone;    /**< a block of every rank, for publications */

    struct eng_traces step_traces, evaluation_traces;
    struct eng_traces *traces; /**< those of the micro-batch under way or finished last */
    size_t replay_at;
    bool replaying;
    uint64_t version; /**< of the parameters: counts publications */
    uint64_t gathers_seen, grads_handed;
    int held_units, open_grads;

    uint64_t step, updates;
    uint64_t prepared; /**< number of the update that the scalars are for, from 1 */
    int micro;         /**< local micro-batch under way or finished last, -1 before the first */
    int micro_count;   /**< a step and rank */
    int32_t planned_micro_batches; /**< V at commit, which memory was decided for, */
    bool planned_blocks;           /**< and whether blocks may be left unfinished */
    struct eng_evaluation evaluation;
    struct eng_metrics metrics;    /**< of the step or evaluation under way */
    struct eng_metrics means;      /**< of the last one that ended */
    int metric_next;               /**< how many the micro-batch under way has given */
    struct base_exact_sum squares; /**< of this rank's sums, granule by granule */
    bool squares_overflow;
    struct eng_bad bad;
    struct eng_outcome outcome;
    unsigned char *verdict_mine, *verdict_all;
    zero_hyper *hyper;          /**< of the last step, one a group */
    union eng_scalars *scalars; /**< of the step under way, one a group */
    zero_step_args announced;   /**< by zero_step_ahead(); struct_size 0: nothing */
    bool stepped;
    zero_step_result result;
    struct eng_scale scale;
    zero_statistics stats;
    struct eng_watch watch;
    struct eng_stop stop;

    struct eng_device *device; /**< where the program computes; NULL: on the host */
    struct eng_bounce
        *bounce;             /**< what the host sees of state on a device; NULL: it is not there */
    struct eng_tier *tier;   /**< state in a file; NULL: all of it is in memory */
    struct eng_blobs *blobs; /**< what is attached; NULL: nothing yet */
    struct eng_runs runs;    /**< whose checkpoints it saves */
    struct eng_save *save;   /**< NULL before the first zero_save() */
    struct eng_save_status save_status;
};

/** Whether state is on the device where the program computes: params, sums, moments, and so on are
 * addresses there, which only device/ and work on its streams may touch. With config.streamed
 * moments and masters are memory of the host: what the device has changed is in them when
 * its copies are waited for (store/device_tiles.c). */
static inline bool eng_state_on_device(const zero_ctx *z)
{
    return z->config.resident;
}

/* ---- open_close.c */

/** How to meet the other ranks; borrows config. */
struct coll_config eng_coll_config(const struct eng_config *config);

/* ---- api_call.c */

/** Whether this process is a child of the one that opened the context. */
bool eng_in_child(const zero_ctx *z);

/** Enters a public call: refuses after a fatal error (or before commit if asked), sets the
 * floating-point state. z is not NULL. */
enum eng_phase { ENG_BEFORE_COMMIT, ENG_AFTER_COMMIT, ENG_ANY_PHASE };
zero_result eng_enter(zero_ctx *z, enum eng_phase phase, const char *call);
/** Leaves it and hands the result on. */
zero_result eng_leave(zero_ctx *z, zero_result result);
/** Takes the stream of the call under way; refuses one where the program computes on the host. */
zero_result eng_check_stream(zero_ctx *z, zero_stream stream);
/** A whole public call about one unit: enters, checks stream and unit, acts, leaves. */
zero_result eng_unit_call(zero_ctx *z, const char *call, zero_unit unit, zero_stream stream,
                          zero_result (*act)(zero_ctx *z, zero_unit unit));

/** Lists the units for which `is` is true by number and name, "1 (h.0), 4 (h.3)", cut where it does
 * not fit. */
void eng_list_units(const zero_ctx *z, bool (*is)(const struct eng_unit *unit),
                    char list[ENG_UNIT_LIST]);

/** Where calls without a context leave their message, one a thread; cleared. */
struct base_error *eng_thread_error(void);
const char *eng_thread_message(void);

/** Tells the program's log callback, if there is one, of a fatal failure. */
void eng_log_failure(const struct base_log *log, const char *component, const char *message);
/** Records a failure with its message. Fatal ones become sticky and are told to all ranks. */
zero_result eng_fail(zero_ctx *z, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** A fatal failure all ranks have found together: sticky, nobody need be told. */
zero_result eng_fail_agreed(zero_ctx *z, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Takes over a failure whose message is in *error. */
zero_result eng_fail_from(zero_ctx *z, const struct base_error *error);
/** Takes over the communicator's failure; `result` is what its call returned. */
zero_result eng_comm_failed(zero_ctx *z, zero_result result);
/** coll_exchange() whose wait is in the statistics. */
zero_result eng_exchange(zero_ctx *z, const void *mine, size_t bytes, void *all);
/** Collective: ZERO_OK if no rank has a failure in *mine, else the lowest failing rank's result,
 * and its message as the last error, on every rank. Not sticky. `what` names the undertaking. */
zero_result eng_agree(zero_ctx *z, const struct base_error *mine, const char *what);
/** The same about files: ZERO_NOT_FOUND, a benign answer elsewhere, is ZERO_E_IO. */
zero_result eng_agree_on_file(zero_ctx *z, const struct base_error *mine, const char *what);

/** Collective, ordered, between steps: ZERO_E_DIVERGED, fatal, unless every rank gives the same
 * value; `what` says what they gave. */
zero_result eng_same(zero_ctx *z, uint64_t value, const char *what);

/* ---- telemetry.c */

/** Looks whether zero-run listens. ZERO_E_INVALID, ZERO_E_VERSION, ZERO_E_NOMEM. */
zero_result eng_watch_open(zero_ctx *z, struct base_error *error);
void eng_watch_close(zero_ctx *z);
/** The program has entered `call`, which is about `unit` (-1: none). eng_leave() says that it has
 * returned. */
void eng_watch_call(const zero_ctx *z, const char *call, zero_unit unit);
/** The first step is timed from here. */
void eng_watch_start(zero_ctx *z);
/** Ends a stretch of time: adds it to *seconds, and records it if somebody makes a trace. unit -1:
 * it is about none. */
void eng_stretch(zero_ctx *z, enum control_what what, zero_unit unit, uint64_t begin_ns,
                 double *seconds);
/** When zero_step() was entered, for eng_watch_step(); 0 if nobody wants to know. */
uint64_t eng_watch_step_begin(const zero_ctx *z);
/** A step has ended: tells what it was like. */
void eng_watch_step(zero_ctx *z, uint64_t begin_ns);
/** An evaluation begins, and has ended: its time is no step's. */
void eng_watch_evaluation_begin(zero_ctx *z);
void eng_watch_evaluation_end(zero_ctx *z);

/* ---- host_memory.c */

zero_result eng_memory_allocate(zero_ctx *z);
void eng_memory_free(zero_ctx *z);
/** Bytes of the tables beside tensors that a rank with this placement has; needs the layout only.
 */
size_t eng_memory_tables(const zero_ctx *z, const struct eng_placement *placement,
                         const struct eng_tier_needs *needs);
/** The byte where granule `granule` of a section's home lies. */
unsigned char *eng_home(const zero_ctx *z, size_t section, size_t granule);
/** fp32 master weights from element `element` of a section on, which must have them; state must
 * cover the element, here and below. Of state on a device: there, but in memory while a visit to it
 * is under way; so is eng_home(). */
float *eng_weights(const zero_ctx *z, size_t section, size_t element);
/** The same, or the working copy where there are no masters; *size: bytes of an element. */
void *eng_best_weights(const zero_ctx *z, size_t section, size_t element, size_t *size);
/** Of type config.moment_dtype. */
void *eng_moments(const zero_ctx *z, int which, size_t section, size_t element);
float *eng_own_sums(const zero_ctx *z, size_t section, size_t element);
/** The sums of the rank that owns the element; of others at stage 0 only. */
const float *eng_sums(const zero_ctx *z, int owner, size_t section, size_t element);
/** Where a program that goes on after a fatal error reads and writes without harm: zeros at first,
 * as large as the largest slice, nobody else's. NULL without such an error, or if there is none to
 * be had. */
void *eng_nowhere(zero_ctx *z);
/** This rank's unfinished blocks of a section; NULL if no round leaves any. */
float *eng_own_blocks(const zero_ctx *z, size_t section);

/* ---- commit.c */

/** Keeps the failure of a registration for zero_commit(), unless there was one before. */
void eng_remember_refusal(zero_ctx *z, const struct base_error *error);

/** Bytes that zero_commit() uses beside layout and transport before the rows are allocated. */
size_t eng_commit_bytes(const zero_ctx *z);

/* ---- whole_tensors.c */

/** Bytes that zero_export() and zero_import() use on a rank beside the rows; those of a file's
 * header are an estimate. */
size_t eng_export_bytes(const zero_ctx *z, int rank);
size_t eng_import_bytes(const zero_ctx *z);

/* ---- master_weights.c */

/** Gives fp32 values of elements first .. first+count-1 of a slice. */
typedef zero_result (*eng_source_fn)(const zero_ctx *z, void *user, const struct eng_slice *slice,
                                     uint64_t first, uint64_t count, float *out,
                                     struct base_error *error);
/** ZERO_E_INVALID if one of these values of a slice is finite and would be an infinity in `dtype`;
 * `what` says whose they are. */
zero_result eng_values_fit(const zero_ctx *z, zero_dtype dtype, const struct eng_slice *slice,
                           uint64_t first, uint64_t count, const float *values, const char *what,
                           struct base_error *error);
/** Whether sums are scratch between steps, where values may wait: neither in a file nor on a
 * device.
 */
bool eng_sums_are_scratch(const zero_ctx *z);
/** Reads this rank's runs from the source into its sums, once eng_sums_reclaim() has returned;
 * where sums are no scratch the source is only tried. Changes no weight. */
zero_result eng_values_read(zero_ctx *z, eng_source_fn source, void *user,
                            struct base_error *error);
/** Tries the source of what this rank writes of frozen tensors, which have no sums. */
zero_result eng_values_try_frozen(zero_ctx *z, eng_source_fn source, void *user,
                                  struct base_error *error);
/** Reads what no sums keep, through a tile, into weights and working copy: frozen tensors, and
 * where sums are no scratch all others, with `access` as below. Where the source was tried before
 * it is read again. */
zero_result eng_values_write(zero_ctx *z, enum eng_access access, eng_source_fn source, void *user,
                             struct base_error *error);
/** Makes what eng_values_read() read into sums the master weights (access ENG_REPLACE: moments
 * become zeros), and publishes. Collective, ordered, when all ranks have read and written. A
 * failure meanwhile leaves all of this rank's values written. */
zero_result eng_values_install(zero_ctx *z, enum eng_access access);
/** Writes master weights and working copy from element `element` of a section on; this rank's state
 * must cover them. */
void eng_values_put(zero_ctx *z, size_t section, size_t element, size_t count, const float *values);
/** Makes the working copy of master weights that were written in place, from a granule on. */
void eng_values_refresh(zero_ctx *z, size_t section, size_t element, size_t count);
/** Elements *first .. *end-1 of a slice are those that this rank writes. */
void eng_state_part(const zero_ctx *z, const struct eng_slice *slice, size_t *first, size_t *end);
/** Reads master weights, or the working copy where there are none. *Local.* ZERO_E_IO,
 * ZERO_E_CORRUPT: of state in files; ZERO_E_DEVICE. */
zero_result eng_values_get(zero_ctx *z, const struct eng_part *part, float *values,
                           struct base_error *error);
/** First values: data, fill, or zeros. */
zero_result eng_values_first(const zero_ctx *z, void *user, const struct eng_slice *slice,
                             uint64_t first, uint64_t count, float *out, struct base_error *error);

/* ---- bucket_gather.c, gather_slots.c, gather_order.c, prefetch.c */

/** What messages of the transport call a unit. */
struct coll_label eng_unit_label(const zero_ctx *z, zero_unit unit);
/** All-gathers a section of the parameters in whichever of its two requests is free. Of one that is
 * staged this rank's run lies in its place in recv. */
zero_result eng_section_gather(zero_ctx *z, size_t section, void *recv);
/** Waits for the last one. */
zero_result eng_section_gather_wait(zero_ctx *z, size_t section);
/** Waits until no peer reads what this rank gave to any of them. */
zero_result eng_section_gather_drain(zero_ctx *z, size_t section);

/** The unit's slot has current values or is about to have them. */
bool eng_slot_current(const zero_ctx *z, zero_unit unit);
/** The slot to use for a unit, its old content gone; *chosen is -1 if none but held ones are left,
 * or, for a prefetch, if what would go is needed sooner. */
zero_result eng_slot_choose(zero_ctx *z, zero_unit unit, bool prefetch, int *chosen);
/** Starts the gather of a unit's sharded sections into a slot: where they are staged, what this
 * rank has of them comes from a file first. */
zero_result eng_slot_fill(zero_ctx *z, zero_unit unit, int slot);
/** Waits for what comes from a file, if that is so, and starts the all-gather. Collective, ordered.
 */
zero_result eng_slot_post(zero_ctx *z, struct eng_gather_slot *slot);
/** Completes what is under way into a slot; one whose all-gather was not started is empty then. */
zero_result eng_slot_settle(zero_ctx *z, struct eng_gather_slot *slot);
/** An update begins that writes parameters to a file: takes slots for the units that will be
 * gathered first, in which it leaves this rank's new values, which need not be read then. */
zero_result eng_slots_keep(zero_ctx *z);
/** It has ended: what was left in them is as if it had been read. */
void eng_slots_kept(zero_ctx *z);
/** Completes everything under way into slots: from here on they read no peer's memory, and no file.
 */
zero_result eng_slots_settle(zero_ctx *z);

/** A micro-batch begins: what the last one of its kind recorded is replayed from now on. */
void eng_trace_begin(zero_ctx *z);
zero_result eng_trace_gathered(zero_ctx *z, zero_unit unit);
/** How many gathers until the unit's next one, SIZE_MAX if unknown or none. */
size_t eng_trace_distance(const zero_ctx *z, zero_unit unit);
void eng_trace_free(zero_ctx *z);

/** Starts gathers of the units that come next. */
zero_result eng_prefetch(zero_ctx *z);
/** The same, in a call that is not about gathers: what it waits for is in the statistics. */
zero_result eng_prefetch_aside(zero_ctx *z);

/* ---- step.c */

/** Takes over a step's arguments, after a look at them: ZERO_E_INVALID. */
zero_result eng_step_args(zero_ctx *z, const char *call, const zero_step_args *user,
                          zero_step_args *args);
/** Hyper-parameters of a group. */
const zero_hyper *eng_step_hyper(const zero_step_args *args, size_t group);
/** Keeps them, as those of the last step. */
void eng_step_keep(zero_ctx *z, const zero_step_args *args);
/** The context is closed: steps whose verdict nobody has asked for are told of. */
void eng_step_close(zero_ctx *z);
/** Makes it the newest step whose verdict is known. */
struct eng_verdict;
void eng_step_record(zero_ctx *z, uint64_t step, const struct eng_verdict *verdict,
                     double max_norm);
/** With state on the device: takes in what is known of steps whose verdict is under way, or waits
 * for all of it. */
void eng_step_look(const zero_ctx *z, bool waits);
/** Makes z->scalars of z->hyper, for the update that comes next. */
void eng_step_prepare(zero_ctx *z, double gradient_scale);

/* ---- fused.c */

static inline bool eng_announced(const zero_ctx *z)
{
    return z->announced.struct_size != 0;
}
/** The arguments of the step that was announced; user's, if given, must be the same:
 * ZERO_E_INVALID. */
zero_result eng_ahead_args(zero_ctx *z, const zero_step_args *user, zero_step_args *args);
/** Whether a unit's values may be overwritten from now on, until the step ends: its gradient was
 * handed over in a step that is announced. */
bool eng_ahead_closed(const zero_ctx *z, zero_unit unit);
/** Before a unit's gradient is handed over in an announced step: refuses if the unit is gathered,
 * and completes all this rank reads of others. */
zero_result eng_ahead_hand_over(zero_ctx *z, zero_unit unit);
/** Whether anything of an announced step may be updated before zero_step(); the same on all ranks.
 */
bool eng_ahead_possible(const zero_ctx *z);
/** Whether a section of an announced step may be updated before zero_step(), as soon as all ranks
 * have handed it over. The same on all ranks. */
bool eng_ahead_early(const zero_ctx *z, size_t section);
/** Whether its update belongs to its last reduction, which is about to start. */
bool eng_ahead_begin(zero_ctx *z, size_t section);
/** Whether the step fails for what was seen: at least no weight becomes a NaN. */
bool eng_ahead_hopeless(const zero_ctx *z);
/** Updates the elements first .. first+count-1 of this rank's run of a section. */
void eng_ahead_tile(struct eng_section_io *io, size_t first, size_t count, const float *sum);
/** The same for contributions: a coll_take_fn whose user is the section's eng_section_io. */
size_t eng_ahead_take(void *user, size_t first, size_t count,
                      const struct coll_contributions *from);

/* ---- gather.c */

/** A slice's working copy; NULL if no slot has its unit. */
const unsigned char *eng_gathered(const zero_ctx *z, const struct eng_slice *slice);

/* ---- gradient.c, micro_batch.c */

/** Waits until every reduction of this step is complete here. */
zero_result eng_grad_finish(zero_ctx *z);
/** Gradients were not finite: the next ones find zeros around them, whatever has been written. */
void eng_grad_doubt(zero_ctx *z);
/** Sends what still comes from a device on its way. Collective, ordered. */
zero_result eng_grad_flush(zero_ctx *z);
/** Adds the sum of a granule's squares to those of the step. */
void eng_add_square_sum(zero_ctx *z, double squares);
/** Ranks whose micro-batch of this round counts: all but in a last round that is not full. */
int eng_contributors(const zero_ctx *z, int round);
/** Makes *to the earlier one of both. */
void eng_bad_min(struct eng_bad *to, const struct eng_bad *from);
/** Micro-batches of the step or evaluation under way, over all ranks and of each. */
int eng_micro_total(const zero_ctx *z);
int eng_micro_count(const zero_ctx *z);
/** Refuses if a unit is gathered, a gradient open, or it or a metric missing in the micro-batch
 * under way. */
zero_result eng_micro_check(zero_ctx *z, const char *call);
/** Refuses inside a step or an evaluation. */
zero_result eng_not_inside(zero_ctx *z, const char *call);
/** The same, and all that a device knows of its steps is known here. Collective, ordered. */
zero_result eng_outside(zero_ctx *z, const char *call);
/** The same, and while a unit is gathered. */
zero_result eng_between_steps(zero_ctx *z, const char *call);

/* ---- frozen.c */

/** Whether a tensor is not updated at present. */
bool eng_frozen(const zero_ctx *z, zero_param param);
/** Finds anew which sections and units train. */
void eng_frozen_refresh(zero_ctx *z);
/** Makes the gradients of frozen tensors zeros where they travel with others. */
void eng_frozen_clear(zero_ctx *z, zero_unit unit, unsigned char *gradient);

/* ---- borrow.c */

/** The slice in the caller's memory, NULL if the working copy is the engine's alone. */
void *eng_borrowed(const zero_ctx *z, const struct eng_slice *slice);
/** The slice's gradient in the caller's memory, NULL if it is the engine's. */
void *eng_own_gradient(const zero_ctx *z, const struct eng_slice *slice);
/** Copies values that have changed to the caller's memory. */
void eng_borrow_section(zero_ctx *z, size_t section);
void eng_borrow_unit(zero_ctx *z, zero_unit unit);
/** Copies the caller's gradients of a unit to its slot, or adds them where the slot has a sum, and
 * zeroes them. */
void eng_take_gradients(zero_ctx *z, zero_unit unit);

/* ---- verify_micro.c: all do nothing unless config.verify_micro */

/** Bytes of its tables. */
size_t eng_verify_bytes(const zero_ctx *z);
zero_result eng_verify_make(zero_ctx *z, struct base_error *error);
void eng_verify_free(zero_ctx *z);
/** Whether the micro-batch under way is one that is computed again, and which that is. */
bool eng_verifying(const zero_ctx *z);
uint64_t eng_verify_index(const zero_ctx *z);
/** Whether the gradients of the micro-batch under way, which is none of an evaluation, are hashed.
 */
bool eng_verify_hashes(const zero_ctx *z);
/** Keeps the hashes of a unit's gradient if they are, and it is in memory of the host. */
void eng_verify_hash(zero_ctx *z, zero_unit unit, const unsigned char *gradient);
/** ZERO_E_DIVERGED, fatal and agreed, if a gradient was another one the second time. */
zero_result eng_verify_compare(zero_ctx *z);

/* ---- paranoid.c: all but the first four only if config.paranoid */

zero_result eng_paranoid_make(zero_ctx *z, struct base_error *error);
void eng_paranoid_free(zero_ctx *z);
/** Bytes of its tables. */
size_t eng_paranoid_tables(const zero_ctx *z);
/** Bytes of addresses that windows have, open or not. */
size_t eng_paranoid_addresses(const zero_ctx *z);
/** If a fault at `address` is one of a window, says what was touched. Calls nothing that allocates
 * or locks. */
bool eng_paranoid_describe(const zero_ctx *z, const void *address, char *message, size_t bytes);
/** Opens a window with what is gathered; closes it. */
zero_result eng_paranoid_gathered(zero_ctx *z, zero_unit unit);
zero_result eng_paranoid_released(zero_ctx *z, zero_unit unit);
/** Opens a window with what the gradient's slot has, or with NaN; copies it back and closes it. */
zero_result eng_paranoid_grad_opened(zero_ctx *z, zero_unit unit, bool raw);
zero_result eng_paranoid_grad_done(zero_ctx *z, zero_unit unit);
/** Values of what persists may have changed: copies them to its windows. */
zero_result eng_paranoid_renew(zero_ctx *z);
/** A slice in the open window. */
const void *eng_paranoid_param(const zero_ctx *z, const struct eng_slice *slice);
void *eng_paranoid_grad(const zero_ctx *z, const struct eng_slice *slice);

/* ---- paranoid_fault.c */

/** From here on a fault in this context's windows is described on standard error before it has its
 * effect; until eng_paranoid_unwatch(), which does nothing unless it was watched. ZERO_E_LIMIT,
 * ZERO_E_IO. */
zero_result eng_paranoid_watch(zero_ctx *z, struct base_error *error);
void eng_paranoid_unwatch(const zero_ctx *z);

/* ---- native.c */

/** Adds `count` elements in their own type. */
void eng_native_sum(const struct eng_kernels *kernels, zero_dtype dtype, void *to, const void *from,
                    size_t count);

/** Whether a rank adds up micro-batches of its own, by as many as are planned for. */
bool eng_native_adds(const zero_ctx *z);
/** The slot for a unit's gradient: that of its sum, or, for one that overwrites (raw) in a later
 * micro-batch, a spare one of its class; -1: none is free. */
int eng_native_slot(const zero_ctx *z, zero_unit unit, bool raw);
/** Adds a gradient that was written to a spare slot to the unit's sum. */
void eng_native_add(zero_ctx *z, zero_unit unit);

/* ---- publish.c */

/** Brings the others' sums, which are complete, to a rank that can't read them where they lie.
 * Collective, ordered. */
zero_result eng_sums_fetch(zero_ctx *z);
/** Tells the others that this rank has read their sums, or their gradients where it adds them up
 * again. Collective, ordered. */
zero_result eng_sums_return(zero_ctx *z);
/** Waits until no peer reads this rank's sums, or gradients, any more: before they are written
 * again. */
zero_result eng_sums_reclaim(zero_ctx *z);
/** Sends a section's new values on their way to whoever keeps it whole, or says that they are
 * there. Collective, ordered. */
zero_result eng_publish_start(zero_ctx *z, size_t section);
/** All of them, whose values are new, and waits for them. Collective, ordered. */
zero_result eng_publish_all(zero_ctx *z);
zero_result eng_publish_wait(zero_ctx *z, zero_unit unit);
/** Whether a section's new values need not be waited for. */
bool eng_publish_ended(const zero_ctx *z, size_t section);
/** Waits for everything, or for what is promised to be current without a gather: what persists. */
zero_result eng_publish_finish(zero_ctx *z, bool everything);

/* ---- update.c, stochastic.c */

/** Updates every unit with z->scalars and publishes it. A failure meanwhile leaves nothing half
 * updated on this rank, where state is in memory: it only stops the publishing. */
zero_result eng_update_all(zero_ctx *z);
/** Updates some of a section's segments, dealt out over the pool's threads. */
void eng_update_range(zero_ctx *z, size_t section, size_t first, size_t count);
/** Updates a run of elements. */
void eng_update_segment(zero_ctx *z, const struct eng_segment *segment);
/** The same with the sum of contributions as gradient, whose squares are added to the step's, as
 * far as sums are finite: returns how many elements. Where io->sums of its section. */
size_t eng_update_summed(zero_ctx *z, const struct eng_segment *segment,
                         const struct eng_contributions *from);
/**
 * Whether nobody keeps the sums of a section's reduction: they are looked at, for norm and verdict,
 * and each rank adds all contributions up again while it updates. At stage 0, where the model is
 * small: no line of memory is written that others have read, and the arithmetic of the update hides
 * what it costs to add. The same on all ranks.
 */
bool eng_adds_again(const zero_ctx *z, size_t section);
/** The optimizer's view of some elements of a segment, from element `first` of the section on, all
 * in memory; what is there with 16 bits only is left out. */
struct eng_update eng_update_run(const zero_ctx *z, const struct eng_segment *segment, size_t first,
                                 size_t count, const float *gradient);
/** The key of the random numbers of a slice's elements in an update: of the weight (purpose 0), or
 * of moment `purpose` - 1. */
uint64_t eng_rounding_key(const zero_ctx *z, const struct eng_slice *slice, uint64_t purpose,
                          uint64_t update);
/** Updates a segment that has no master weights or bf16 moments. */
void eng_update_rounded(zero_ctx *z, const struct eng_segment *segment);
zero_result eng_segments_make(zero_ctx *z);
struct eng_tiles;
size_t eng_segments_bytes(const zero_ctx *z, const struct eng_tiles *tiles, int stage, int rank);

/* ---- batch_size.c */

/** Makes V another one, which a checkpoint has, from the next step on; `call` wants it. Collective.
 * Errors as of zero_set_micro_batches(). */
zero_result eng_batch_change(zero_ctx *z, int32_t micro_batches, const char *call);

/* ---- snapshot/save_state.c, snapshot/copy_on_write.c; see snapshot/snapshot.h for the rest of
 * state/ */

/** What this rank says of its save in a step's exchange. */
uint64_t eng_save_word(const zero_ctx *z);
/** Acts on what all ranks have said, rank r at words + r * stride. Collective. */
zero_result eng_save_advance(zero_ctx *z, const void *words, size_t stride);
/** To be called before weights or moments change: nothing of them is read any more by a save. Of
 * state in a file nothing is until a tile is given back: then it is eng_save_hold_tile(). */
void eng_save_hold(zero_ctx *z);
/** To be called before a changed tile of state is given back: a save does not read any more what it
 * is written over. How long that was waited for. *Local.* */
uint64_t eng_save_hold_tile(zero_ctx *z, size_t tile);
/** Whether it would return at once. */
bool eng_save_has_read(const zero_ctx *z, size_t tile);
/** Bytes that saving takes on a rank, with the options of the last zero_save(); of a context that
 * has not saved yet, with the default ones. */
size_t eng_save_bytes(const zero_ctx *z, int rank, const struct eng_tier_needs *needs);
/** Bytes that loading a checkpoint takes on a rank while it lasts, at most, if as many ranks have
 * saved it: what is attached is there twice until all else has been read. */
size_t eng_load_bytes(const zero_ctx *z, int rank);
/** Completes a save that is under way, with the other ranks, or gives it up where they can't be
 * waited for, and frees what saving has allocated. */
void eng_save_close(zero_ctx *z);

/* ---- evaluation.c */

/** Where the values of its metrics are kept: [metric][local micro-batch]. */
double *eng_evaluation_metrics(const zero_ctx *z);
/** Bytes of that memory, which grows with the largest evaluation so far. */
size_t eng_evaluation_bytes(const zero_ctx *z);
void eng_evaluation_free(zero_ctx *z);
/** Between two micro-batches of an evaluation, and at its end: learns of requests to stop, if some
 * rank's program listens. Collective, ordered. */
zero_result eng_evaluation_listen(zero_ctx *z);

#endif
