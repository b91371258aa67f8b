/**
 * zero/core/exec_table.h: who computes, and where the program finds working copies and gradients.
 *
 * One table of operations a kind of executor. zero_open() chooses it, and zero_commit() again, with
 * another result only where offload_update=auto had left it open. After that z->exec never changes.
 * What an executor has nothing to do for is an entry that does nothing: no caller asks which
 * executor there is.
 *
 *     name        the program computes   gradients are summed   state is
 *     host        on the host            on the host            in memory of the host, or in files.
 *     cuda_host   on a GPU               on the host            in memory of the host, or in files.
 *     cuda        on a GPU               on the GPU             on the GPU, or passes through it.
 *
 * When the decision on step n falls, and who hears of it:
 *
 *     call                 host, cuda_host                      cuda
 *     zero_step() of n     decide(): hooks.decided()            decide(): queued on the GPU
 *                          update(): the caller updates         update(): queued behind it
 *                          step_end(): hooks.told()
 *     a later call                                              take_in(): decided(), told()
 *     zero_step_wait()                                          prove(): hooks.proved()
 *
 * Every entry is *local* unless it says otherwise: it exchanges nothing with other ranks. Entries
 * return ZERO_OK or a failure that z->error has, except where they take an error to fill.
 */
#ifndef ZERO_CORE_EXEC_TABLE_H
#define ZERO_CORE_EXEC_TABLE_H

#include "base/hash.h"
#include "base/kernels/device_kernels.h"
#include "zero/core/context.h"

/** What a gradient is opened for. */
enum eng_grad_purpose {
    ENG_GRAD_ADD,   /**< kernels add into zeros */
    ENG_GRAD_WRITE, /**< kernels overwrite what they find */
    ENG_GRAD_NONE,  /**< it stays zeros */
};

/** How a gradient is opened. */
struct eng_grad_opening {
    enum eng_grad_purpose purpose;
    bool keeps; /**< the slot has the sum of earlier micro-batches, which stays */
    bool again; /**< the slot had this unit's gradient before, and its padding is zeros */
};

/** What all ranks have decided about a step. It begins as what they have agreed on (eng_verdict),
 * or comes of a GPU's record; zero_step_result tells the program of it. */
struct eng_decision {
    uint64_t step;
    double norm;
    bool finite; /**< the step updates */
    bool early;  /**< a part of its update was made in backward */
    struct eng_bad bad;
    struct eng_wrong
        wrong; /**< what updates before this step have stored; param UINT64_MAX: none */
    double max_norm, lr;
    struct eng_metrics *metrics; /**< ranks have still to exchange their values, which are in
                                      z->micro.values; NULL: they have */
};

/** How a step is updated. */
enum eng_update_kind {
    ENG_NO_UPDATE,      /**< it is decided, and skipped */
    ENG_UPDATE_DECIDED, /**< it is decided, and updates */
    ENG_UPDATE_QUEUED,  /**< the update is queued behind the decision, which may leave it out */
};

/** Functions by which executors tell what they learn of steps. zero/step sets z->stepping.hooks in
 * zero_open(). */
struct eng_step_hooks {
    /** A step is decided: keeps its result, and applies the policy for steps that are not finite.
     * Collective if the decision has metrics. A failure is fatal. */
    zero_result (*decided)(zero_ctx *z, struct eng_decision *decision);
    /** What has become of the newest step that is decided is told to zero-run. */
    void (*told)(zero_ctx *z, double lr);
    /** The updates up to step `step` are made: fails if `wrong` names a value that is not finite,
     * on any rank. Collective, ordered. */
    zero_result (*proved)(zero_ctx *z, struct eng_wrong wrong, uint64_t step);
    /** A value of a metric of the micro-batch under way has arrived. */
    void (*value)(const zero_ctx *z, int metric, double value);
};

struct eng_exec {
    size_t size; /**< of this struct */
    const char *name;

    /* ---- life */

    /** Allocates what the executor needs, when the host's memory is there. ZERO_E_NOMEM,
     * ZERO_E_DEVICE, ZERO_E_UNSUPPORTED in *error. */
    zero_result (*make)(zero_ctx *z, struct base_error *error);
    /** Waits for all work, and frees everything; before memory of the host is freed. */
    void (*close)(zero_ctx *z);

    /* ---- a public call */

    /** A call begins: its stream is the engine's own. */
    zero_result (*enter)(zero_ctx *z);
    void (*leave)(zero_ctx *z);
    /** The rest of the call is ordered behind `stream`. ZERO_E_INVALID: the program computes on the
     * host, and gives a stream. */
    zero_result (*take_stream)(zero_ctx *z, zero_stream stream);

    /* ---- working copies */

    /** A gather may wait or copy at any stage, so its time is worth a look at the clock. */
    bool gathers_take_time;
    /** A unit is gathered: its values are where the program reads them, for what is queued on the
     * call's stream next. */
    zero_result (*show)(zero_ctx *z, zero_unit unit);
    /** A unit that is ready was handed on: what its reduction has updated already, in a fused step,
     * is on its way there before the step ends. */
    zero_result (*show_updated)(zero_ctx *z, zero_unit unit);
    /** New values of all that persists are where the program reads them; what else is current is on
     * its way. */
    zero_result (*show_persistent)(zero_ctx *z);
    /** What was queued on the call's stream so far is all that reads a unit. */
    zero_result (*released)(zero_ctx *z, zero_unit unit);
    /** Waits for what the call's stream was given, where the next call may use another one. */
    zero_result (*join)(zero_ctx *z);
    /** Waits until no copy reads memory of the host any more: any, or one of a gather slot. */
    zero_result (*settle)(zero_ctx *z);
    zero_result (*settle_slot)(zero_ctx *z, int slot);
    /** Where the program reads a slice of a gathered unit. */
    const void *(*param)(const zero_ctx *z, const struct eng_slice *slice);
    /** Memory that a program may read for a slice after a fatal error; NULL: there is none. */
    const void *(*dummy_param)(zero_ctx *z, const struct eng_slice *slice);

    /* ---- gradients */

    /** Gradient slots as the program addresses them, laid out as those of the host. */
    unsigned char *(*grads)(const zero_ctx *z);
    /** Memory that a program may write in place of a gradient after a fatal error. */
    void *(*dummy_grad)(zero_ctx *z);
    /** A unit's slot is made ready for what is queued on the call's stream next. */
    zero_result (*grad_open)(zero_ctx *z, zero_unit unit, const struct eng_grad_opening *opening);
    /** The program has handed a unit's gradient over. *ready: the unit whose gradient is where the
     * link reduces it, and is to be reduced; -1: none. That may be the unit handed over before,
     * while this one is copied to the host. */
    zero_result (*grad_close)(zero_ctx *z, zero_unit unit, zero_unit *ready);
    /** Waits for the gradient that is copied: *ready as above. */
    zero_result (*grad_flush)(zero_ctx *z, zero_unit *ready);
    /** verify_micro: hashes the gradient of a unit that is ready, a hash a slice; on the GPU to
     * memory of its own. */
    zero_result (*grad_hash)(zero_ctx *z, zero_unit unit, uint64_t *hashes);
    /** verify_micro: brings the step's hashes to the host, if they are on the GPU. */
    zero_result (*hashes)(zero_ctx *z, uint64_t *hashes);
    /** reduction=local: adds the gradient of a unit that is ready to those of the rank's earlier
     * micro-batches, if grad_close() has not. */
    zero_result (*grad_add)(zero_ctx *z, zero_unit unit);
    /** What eng_grad_prepare() does where gradients are reduced, on a stream of the GPU: makes
     * bytes zeros, and converts elements. Errors are in *error. */
    zero_result (*clear)(const zero_ctx *z, void *at, size_t bytes, void *stream,
                         struct base_error *error);
    zero_result (*convert)(const zero_ctx *z, const struct base_device_conversion *work,
                           void *stream, struct base_error *error);
    /** Adds elements in their own type where the program's gradients are, on the call's stream.
     * Errors are in *error. */
    zero_result (*add)(const zero_ctx *z, const struct base_device_addition *work,
                       struct base_error *error);

    /* ---- metrics */

    /** A metric of a step's micro-batch has this value. */
    void (*metric_set)(const zero_ctx *z, int metric, double value);
    /** The program has a metric's value at an address of its own: tells hooks.value() now, or when
     * it has arrived. */
    zero_result (*metric_fetch)(zero_ctx *z, int metric, const float *value);
    /** Waits for values that are fetched, and tells hooks.value(). */
    zero_result (*metric_values)(zero_ctx *z);
    /** Memory for the metrics of as many micro-batches as there are now, to be taken or dropped;
     * *memory NULL: none is needed. ZERO_E_NOMEM, ZERO_E_DEVICE in *error. */
    zero_result (*metrics_make)(const zero_ctx *z, unsigned char **memory,
                                struct base_error *error);
    /** It takes the place of what there was. Nothing of a step may be under way. */
    void (*metrics_take)(zero_ctx *z, unsigned char *memory);
    void (*metrics_drop)(const zero_ctx *z, unsigned char *memory);

    /* ---- a step */

    /** The decision on a step falls behind its gradients, after zero_step() has returned: in it
     * ranks exchange only what each asks for. */
    bool decides_later;
    /** What trains has changed. */
    void (*stale)(zero_ctx *z);
    /** The first micro-batch of a step begins. */
    zero_result (*begin)(zero_ctx *z);
    /** The step is fused: its update runs in backward from now on. */
    zero_result (*fuse)(zero_ctx *z);
    /** All gradients of the step are handed over, and ranks agree on `args`. Decides it, or queues
     * that: hooks.decided() hears of it now, or in take_in(), and the update that follows is
     * prepared. What *decision has of norm, finite and bad is known if not .decides_later. */
    zero_result (*decide)(zero_ctx *z, const zero_step_args *args, struct eng_decision *decision);
    /** Nothing that an update overwrites is read any more behind this. *kind: what the caller is to
     * do. Collective, ordered. */
    zero_result (*update)(zero_ctx *z, enum eng_update_kind *kind);
    /** zero_step() is about to return: what is known of the step is told. Collective, ordered. */
    zero_result (*step_end)(zero_ctx *z);
    /** Tells hooks.decided() of decisions that are known, and waits until at most `open` steps are
     * undecided. Collective, ordered, with several ranks. */
    zero_result (*take_in)(zero_ctx *z, int open);
    /** No step is undecided: waits for the updates, and tells hooks.proved() what they have stored.
     * Collective, ordered. */
    zero_result (*prove)(zero_ctx *z);
    /** Waits for the gradients and metrics of the step under way, and makes what is known of them
     * the host's: z->gradients.squares, .bad and so on. */
    zero_result (*learn)(zero_ctx *z);
    /** The step ends without an update: nothing of its gradients is left. */
    zero_result (*skip)(zero_ctx *z);
    /** A program asks for the newest decision: take_in() as a call of its own. waits: for all
     * steps. Collective, ordered, with several ranks if it waits. */
    void (*look)(const zero_ctx *z, bool waits);
    /** The context is closed: warns of steps that the program has not asked for. */
    void (*steps_close)(zero_ctx *z);

    /* ---- state */

    /** Hashes what this rank owns where it is, a sum a tensor. False: the caller walks the state. A
     * failure is in *error. */
    bool (*digest)(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error);
};

#endif
