/**
 * zero/zero.h: a sharded optimizer runtime. This header is the manual.
 *
 * A training program registers its tensors, commits, and then, for every micro-batch, gathers
 * the parameters of a unit before it uses them and hands over the unit's gradients when they are
 * complete; zero_step() updates. The same calls run at stage 0 (everything replicated) to 3
 * (parameters, gradients and optimizer state sharded), on any number of ranks, and give the same
 * bits in every case, as far as the program's gradient of a micro-batch is a function of
 * (parameters, step, micro-batch index).
 *
 *     zero_open -> zero_add_group, zero_add_param ... -> zero_commit
 *     every step: for i in 0 .. zero_micro_count-1:
 *                     zero_micro_begin
 *                     forward:  zero_gather, zero_param_ptr, zero_release      a unit at a time
 *                     backward: the same, and zero_grad_open, zero_grad_ptr, zero_grad_done
 *                     (or zero_unit_ptrs and zero_unit_done, which are several of these at once)
 *                     zero_metric
 *                 zero_step, zero_step_info            (zero_step_in_backward before the last
 * backward, or zero_skip_step instead of zero_step) between steps: zero_eval_begin, micro-batches
 * without backward, zero_eval_end; zero_stop_requested (zero/job.h) zero_close
 *
 * Conventions
 *  - Who calls: *local* (any rank, any time), *collective* (every rank calls it), *collective,
 *    ordered* (every rank calls it, in the same order as the other ordered calls).
 *  - Errors are values. A *fatal* error (ZERO_E_PEER, _TIMEOUT, _DIVERGED, _ABORTED, _NOMEM, _IO,
 *    _DEVICE, _NONFINITE, _LIMIT on the step path) is sticky, and every rank's: every later call of
 *    any rank but the local getters and zero_close() returns the first one. It leaves no rank's
 *    weights and moments in the middle of an update, unless zero_step_in_backward() began it, the
 * disk that has them failed, or the update itself is not finite (zero_nonfinite). Pointers given
 * out stay mapped until zero_close(), and those asked for after a fatal error lead to memory nobody
 * else uses: so the calls between zero_micro_begin() and zero_step() may go unchecked; zero_step()
 * refuses. zero_last_error() has the numbers.
 *  - ZERO_E_INVALID and ZERO_E_STATE, where documented, change nothing. They are errors of the
 *    program, found the first time it runs, and pointers are NULL where it has no right to any:
 *    while it is new, check every call.
 *  - Structs carry struct_size first. Fields are only ever appended. A larger struct of a newer
 *    caller is accepted if its unknown tail is zero. In *config* structs zero means "the default"
 *    and ZERO_OFF "none"; hyper-parameters and step arguments are literal.
 *  - Threads: one context may be used by one thread at a time; contexts are independent.
 *    zero_abort(), zero_stop_requested() and zero_request_stop() may be called from any thread.
 *  - A child made by fork() has no part in its parent's contexts: there every call but local
 *    getters and zero_close() fails with ZERO_E_STATE and changes nothing that the parent or a
 *    peer sees. A child does not get the library's connections and locks either, so the death of
 *    a rank whose child (a data loader, say) lives on is noticed as soon as any other. Memory
 *    may be read: pointers given out before fork() stay valid in the child, with what they held.
 *  - The library never aborts, exits or prints. What a call returns as an error is the program's to
 *    show, by zero_last_error(), and the default log does not show it again: it writes to standard
 *    error what no call returns, such as a save that failed behind the steps (set `log_level` to
 *    ZERO_OFF to silence it). A log callback of the program's gets each fatal error, too, once, at
 *    ZERO_LOG_ERROR: one that writes where the program shows errors leaves that level out.
 */
#ifndef ZERO_H
#define ZERO_H

#include <zero/checkpoint.h>
#include <zero/configuration.h>
#include <zero/job.h>
#include <zero/schedule.h>
#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0

#define ZERO_MAX_DIMS 8

typedef int32_t zero_param; /**< dense, from 0, in order of registration */
typedef int32_t zero_unit;  /**< dense, from 0 */
typedef int32_t zero_group; /**< dense, from 0 */
typedef void *zero_stream;  /**< a cudaStream_t; NULL on the CPU */

/* ------------------------------------------------------------------ life */

/**
 * Joins the job. *Collective.* Rank and world: config->world and rank if world > 0, else from the
 * environment of zero-run, torchrun, mpirun, srun and others (zero(7), Launchers); without any, one
 * rank. Waits for the other ranks at most timeout_s. After 10 s, and then at growing intervals, a
 * rank that waits warns (config->log) where it waits and which ranks are missing. Several contexts
 * have to be opened in the same order on all ranks.
 *
 * On success *z is a context to be closed by zero_close(). On failure *z is NULL and
 * zero_last_error(NULL) has this thread's message. config NULL: all defaults. The struct and its
 * strings are copied.
 *
 * ZERO_E_INVALID a field, environment variable or option is out of range or unknown, two launchers
 * disagree, or one says that this process is one of several and not which; ZERO_E_UNSUPPORTED what
 * the transport has not, as gather=shared with tcp;
 * ZERO_E_TIMEOUT ranks are missing (the message says which, and where they were waited for);
 * ZERO_E_NOMEM; ZERO_E_IO.
 */
ZERO_API zero_result zero_open(zero_ctx **z, const zero_config *config);

/**
 * Leaves the job and frees everything, pointers given out included. *Local*: it waits for nobody
 * beyond reads of this rank's memory that are under way, and, for twice timeout_s at most, for a
 * disk that state is on: what does not come back by then is left to it with the memory it needs,
 * and a warning in the log. Accepts NULL and contexts after an error.
 *
 * But a checkpoint that is being saved is completed first, as by zero_save_wait(): then it is
 * *collective, ordered*. After a fatal error and inside a step it is given up instead. Either
 * failure is a warning in the log; a program that wants the result calls zero_save_wait() before.
 * So is a last step on a GPU that has failed, or whose verdict other ranks would have to be asked
 * for: zero_step_wait().
 *
 * In a child made by fork() it does nothing.
 */
ZERO_API void zero_close(zero_ctx *z);

/** Makes every rank's current and next call return ZERO_E_ABORTED with `reason`. *Local*, any
 * thread. Calling it again changes nothing. */
ZERO_API void zero_abort(zero_ctx *z, const char *reason);

/** *Local.* This rank, 0 .. world-1. */
ZERO_API int32_t zero_rank(const zero_ctx *z);
/** *Local.* Number of ranks. */
ZERO_API int32_t zero_world(const zero_ctx *z);
/** *Local.* The GPU this rank computes on, by its number there (configuration key `device`); -1: it
 * computes on the CPU. */
ZERO_API int32_t zero_device(const zero_ctx *z);

/** *Local.* The message of the last failure in this context (z NULL: of the last failed
 * zero_open() or zero_team_create() in this thread), "" if none; valid until the next failure. */
ZERO_API const char *zero_last_error(const zero_ctx *z);

/* ------------------------------------------------------------------ the model */

/** How weight decay acts. */
typedef enum zero_decay {
    ZERO_DECAY_DEFAULT = 0,   /**< the optimizer's own: see zero_group_desc */
    ZERO_DECAY_DECOUPLED = 1, /**< w *= 1 - lr * weight_decay (Loshchilov, Hutter 2019) */
    ZERO_DECAY_L2 = 2,        /**< weight_decay * w is added to the gradient, after clipping */
} zero_decay;

/**
 * Rounding. Gradients are summed, and weights and moments updated, in fp32; what is stored with 16
 * bits is rounded once. Working copies of master weights, first values, and gradients on their way
 * are rounded to nearest even. Weights without masters (master=none) and bf16 moments are rounded
 * stochastically: up or down to a neighbour, with probabilities that make the stored value's mean
 * the exact one, so that steps smaller than half a unit in the last place are not lost. The random
 * bits are a function of (seed, tensor's name, slice, element, updates, which of weight and
 * moments), so the result is the same at every world size and stage.
 *
 * The error: one rounding moves a value by less than a unit in its last place, u (bf16: at most
 * 2^-7 of the value, f16: 2^-10), with mean 0 and a standard deviation of at most u / 2. A moment
 * with the factor beta forgets it like everything else: it is off by at most
 * u / 2 / sqrt(1 - beta^2) (standard deviation): in bf16 0.9 % of the value at beta 0.9, 1.3 % at
 * 0.95, 8.7 % at 0.999. Adam divides by the root of the second moment, so its step is off by half
 * of that. What forgets nothing, a weight without a master or Adagrad's moment, keeps the sum of
 * its roundings: after n updates a standard deviation of at most u / 2 * sqrt(n).
 */

/**
 * Parameters that share an optimizer and its hyper-parameters.
 *
 *  name       moments  decay      step, from the scaled and clipped gradient g
 *  "adamw"    2        decoupled  Adam with bias correction (Kingma, Ba 2015; Loshchilov, Hutter
 *                                 2019): lr * m / (sqrt(v) + eps)
 *  "adam"     2        L2         the same
 *  "sgd"      1        L2         m = beta1 * m + g, no dampening: lr * m, or with Nesterov's form
 *                                 (Sutskever et al. 2013) lr * (g + beta1 * m)
 *  "lion"     1        decoupled  lr * sign(beta1 * m + (1 - beta1) * g), then
 *                                 m = beta2 * m + (1 - beta2) * g (Chen et al. 2023)
 *  "adagrad"  1        L2         m = m + g * g: lr * g / (sqrt(m) + eps) (Duchi et al. 2011)
 *
 * Moments are values an element, zero at first. The decay is the default; each optimizer takes
 * either. Groups of one model may have different optimizers.
 */
typedef struct zero_group_desc {
    uint32_t struct_size;
    zero_decay decay;
    const char *name;      /**< default "group<n>" */
    const char *optimizer; /**< default "adamw"; or one of <zero/optimizer.h> */
    int32_t nesterov;      /**< 1: Nesterov's form; "sgd" only */
} zero_group_desc;

/**
 * Hyper-parameters of one group for one step; literal. Fields that the group's optimizer does not
 * name play no part in the update. Of those that it does, lr, eps and weight_decay are 0 or more,
 * the betas from 0 to below 1, also when rounded to fp32, in which they are used: what is then
 * infinite, or 0 though the value is not, is refused; lr * weight_decay of a decoupled decay is
 * at most 1; Nesterov's form needs a beta1 above 0. With an eps of 0 an element whose gradients
 * have all been 0 becomes a NaN, which is ZERO_E_NONFINITE from zero_step().
 */
typedef struct zero_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} zero_hyper;

/** What AdamW's authors and PyTorch take: 1e-3, 0.9, 0.999, 1e-8, 0.01. */
static inline zero_hyper zero_hyper_default(void)
{
    const zero_hyper hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01};
    return hyper;
}

/**
 * Gives first values: writes `count` fp32 values of slice `slice` of the parameter called `name`,
 * elements first .. first+count-1, to out. Must be a pure function of name, slice and element, the
 * same on every rank, and without side effects: each rank asks for the elements that it owns and,
 * so that ranks can be compared, for some that others own, for an element more than once, in any
 * order and in ranges that depend on the world size. Called during zero_commit() in the caller's
 * thread. Anything but ZERO_OK fails the commit with that result, on all ranks (a positive one with
 * ZERO_E_INVALID). So does a finite value beyond what the tensor's dtype holds (f16: 65504), with
 * ZERO_E_INVALID; the message names it.
 */
typedef zero_result (*zero_fill_fn)(void *user, const char *name, int32_t slice, uint64_t first,
                                    uint64_t count, float *out);

/** One tensor. */
typedef struct zero_param_desc {
    uint32_t struct_size;
    zero_dtype dtype; /**< of the working copy: f32, bf16, f16; default ZERO_F32 */
    const char *name; /**< unique, 1 .. 255 bytes of printable ASCII without blanks; not
                           "__metadata__", which no file of safetensors can have */
    uint64_t shape[ZERO_MAX_DIMS];
    int32_t ndim;       /**< 0 (a scalar) .. ZERO_MAX_DIMS; every extent at least 1 */
    zero_unit unit;     /**< the unit it is gathered with; the first one if stacked */
    int32_t unit_count; /**< default 1. n > 1: stacked; shape[0] == n, and slice s (the elements
                             of index s of the first dimension) belongs to unit `unit + s` */
    zero_group group;   /**< whose hyper-parameters apply */
    const void *data;   /**< first values, of type dtype, the whole tensor, the same on every
                             rank; read during zero_commit() only */
    zero_fill_fn fill;  /**< instead of data; neither: zeros */
    void *fill_user;
    void *borrow; /**< stages 0 to 2, without offload_params=nvme: the caller's buffer for the
                       working copy (whole, row-major, of type dtype; may be `data`), which
                       zero_gather() copies to it once an update; zero_param_ptr() is there. What
                       was copied stays there behind zero_release() and zero_step(): after a step
                       it is one update old until the next gather, or zero_refresh(). Lives until
                       zero_close(); only read it */
    void *grad;   /**< stages 0, 1: the caller's buffer for the gradient (whole, row-major, of type
                       grad_dtype), zeros at first, into which kernels add at any time;
                       zero_grad_ptr() is there. zero_grad_done() takes what is there and zeroes
                       it */
    int32_t frozen; /**< 1: never updated. It has a working copy like any other, which is what is
                         fingerprinted, exported and imported, and no gradient, no master weights
                         and no moments: zero_grad_ptr() is NULL, and a unit of nothing else has no
                         gradient to hand over. 0: it trains */
    zero_dtype grad_dtype; /**< of the gradient, as zero_grad_ptr() gives it: f32, bf16, f16;
                                default: dtype; with frozen the default only */
} zero_param_desc;

static inline zero_group_desc zero_group_default(void)
{
    zero_group_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

static inline zero_param_desc zero_param_default(void)
{
    zero_param_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/** Adds a group before commit; *group (may be NULL) receives its id. *Local*, the same on every
 * rank. desc NULL: defaults, as is the one group of a model to which none was added.
 * ZERO_E_INVALID, ZERO_E_STATE after commit, ZERO_E_NOMEM. A refusal is remembered, see
 * zero_add_param(). */
ZERO_API zero_result zero_add_group(zero_ctx *z, zero_group *group, const zero_group_desc *desc);

/**
 * Registers a tensor before commit; *param (may be NULL) receives its id. *Local*, the same on
 * every rank (zero_commit() compares). The name is copied; data and fill must live until
 * zero_commit() returns. The engine keeps a working copy and a gradient beside those in borrow and
 * grad: their cost is in the plan, and nothing else changes. A tensor used twice (tied weights) is
 * registered once; its unit is simply open while others are. Units are numbered densely: commit
 * refuses a unit without a tensor.
 *
 * A table of tensors, or a stacked one, takes fewer lines with <zero/tensors.h>.
 *
 * ZERO_E_INVALID a field is out of range, borrow or grad are not for this stage or not aligned to
 * the type, or the name is taken; ZERO_E_STATE after commit; ZERO_E_NOMEM. A refusal is remembered:
 * zero_commit() fails with the first one, so that calls before it may go unchecked.
 */
ZERO_API zero_result zero_add_param(zero_ctx *z, zero_param *param, const zero_param_desc *desc);

/**
 * Decides the layout, makes the plan, allocates everything, and writes the first values.
 * *Collective.* Afterwards the model is fixed, and from the third step on the step path allocates
 * nothing.
 *
 * ZERO_PLANNED: the environment asked for the plan only (zero-run --plan); zero_plan_text() and
 * zero_plan_json() have it, and say whether it fits; close next. ZERO_E_INVALID: no tensor, an
 * empty unit, fewer granules (1,024 elements each) than ranks, or, with the result and message of
 * the first of them, a tensor, group, optimizer or blob was refused before, or a fill callback gave
 * another value when it was asked for an element again (one granule of each slice is asked for
 * twice, by a rank alone, too); ZERO_E_DIVERGED: ranks
 * registered different models (the message says which tensor), have other settings, or give other
 * first values (it names tensor, slice, element, values and ranks): of each slice up to six
 * granules are compared, its first and last among them, with `paranoid` all of them, also where a
 * checkpoint is loaded next; ZERO_E_NOMEM: the ranks of a host need more than it has, or those that
 * share a GPU more than is free there (memory_limit; the message has the numbers, what limits, and
 * what would need less), before anything is allocated, but for what offload_update "auto" measures
 * with, on all ranks; or an allocation failed all the same. Afterwards only zero_close() is left.
 */
ZERO_API zero_result zero_commit(zero_ctx *z);

/** *Local*, after commit: the plan as text; bytes a rank by purpose (of memory that the ranks of a
 * host share, this rank's part), how ranks come by parameters and gradients and why, and every
 * effective configuration value with its source. Valid until close, zero_set_micro_batches(), or a
 * zero_eval_begin() that allocates; "" before commit. */
ZERO_API const char *zero_plan_text(const zero_ctx *z);

/** *Local*, after commit: the plan as one JSON object, whose schema zero(7) describes: exact bytes
 * of every rank by tier and purpose, the most at once in zero_commit(), a step, zero_export() and
 * zero_import(), what the host has, choices, slots, and the configuration. Valid as long as
 * zero_plan_text(); "" before commit. */
ZERO_API const char *zero_plan_json(const zero_ctx *z);

/** *Local*: number of units, 0 before commit. */
ZERO_API int32_t zero_unit_count(const zero_ctx *z);

/* ------------------------------------------------------------------ a step */

/** What to compute in one local micro-batch. */
typedef struct zero_micro {
    uint32_t struct_size;
    int32_t counts; /**< 0: a duplicate that keeps the ranks in step; make the same calls, nothing
                         of it is used */
    uint64_t step;  /**< the step's index, from 0; of an evaluation: the next step's */
    uint64_t index; /**< the micro-batch to compute, 0 .. V-1; its data are a function of (seed,
                         step, index) */
} zero_micro;

static inline zero_micro zero_micro_default(void)
{
    zero_micro micro;
    memset(&micro, 0, sizeof micro);
    micro.struct_size = (uint32_t)sizeof micro;
    return micro;
}

/** *Local*: V, micro-batches a step over all ranks, see zero_set_micro_batches(); between
 * zero_eval_begin() and zero_eval_end() those of the evaluation. */
ZERO_API int32_t zero_micro_total(const zero_ctx *z);
/** *Local*: micro-batches each rank runs a step, or the evaluation: ceil(total / world); in a step
 * one more with verify_micro. */
ZERO_API int32_t zero_micro_count(const zero_ctx *z);

/**
 * Begins local micro-batch i (0 .. zero_micro_count-1, ascending) and says which one it is.
 * *Collective, ordered*; waits for no rank, but in an evaluation of a program that listens (see
 * zero_eval_begin()), and with offload_params=nvme for ranks that still read a buffer it takes.
 * micro may be NULL, else micro->struct_size is set by the caller. ZERO_E_STATE: out of order, a
 * unit or gradient is still open, or a unit's gradient was not handed over (but in an evaluation),
 * or a metric not given, in the micro-batch before (the message names it).
 */
ZERO_API zero_result zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro);

/**
 * Makes the working copy of a unit readable until the matching zero_release(). *Collective,
 * ordered.* Counted: a unit may be gathered several times and must be released as often. At
 * stages 1 to 3 it waits for the values of the last step; at stage 3 with gather=copy it copies
 * them, else it moves nothing; at stage 0 it costs nothing. Where state passes through a GPU, or
 * ranks send it to each other's, its stream waits for the unit's own update, at every stage. With
 * offload_params=nvme this rank's part, at stage 0 everything, is read from its file, and the
 * others' are copied. Also allowed outside a micro-batch, where nothing is fetched ahead.
 * ZERO_E_LIMIT: stage 3, whether or not gathers copy, or offload_params=nvme, and open_units units
 * are held already; the message names them and the key. It would come in every step again, so it is
 * fatal: what is held stays readable until zero_close(), nothing else goes on. offload_params=nvme:
 * ZERO_E_IO, ZERO_E_CORRUPT of the file, fatal; the message has the offset.
 */
ZERO_API zero_result zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream);

/** Ends one zero_gather(). *Collective, ordered.* ZERO_E_STATE: the unit is not gathered. */
ZERO_API zero_result zero_release(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * The working copy of a slice (0 unless stacked): shape and dtype as registered, row-major,
 * aligned to 2 KiB (but for `borrow`; with paranoid=1 to 64 bytes), read-only. *Local.* Current
 * from zero_gather() of its unit to zero_release(); slices of at most persist_numel elements are so
 * from commit to close, but for the time inside zero_step(), zero_import() and zero_param_write().
 * In a fused step (zero_step_in_backward()) nothing else is readable once its gradient
 * was handed over. NULL if param or slice does not exist, or at stage 3 or with offload_params=nvme
 * if the unit is not gathered and the slice is not that small; after a fatal error then memory of
 * the slice's size with no values of it.
 *
 * With gather=shared all ranks of the host read the same memory, whose owners write it while this
 * rank is inside one of these calls, or, in a fused step, after zero_grad_done():
 * another thread that reads meanwhile may see a mixture. Writing there is a segmentation fault.
 */
ZERO_API const void *zero_param_ptr(zero_ctx *z, zero_param param, int32_t slice);

/**
 * Opens the unit's gradient in the current micro-batch: a buffer of each tensor's grad_dtype that
 * holds zeros (with reduction=local, what this rank's earlier micro-batches added), into which
 * kernels add. Stays open until zero_grad_done(); other units may be
 * opened meanwhile (tied weights). May wait until a buffer is free. *Collective, ordered.*
 * ZERO_E_STATE outside a micro-batch, in an evaluation, opened or handed over already, or the unit
 * has only tensors that were registered frozen; ZERO_E_LIMIT
 * as for zero_gather(), at stages 2 and 3, with grad_units.
 */
ZERO_API zero_result zero_grad_open(zero_ctx *z, zero_unit unit, zero_stream stream);

/** The same, without zeroing: the caller overwrites every element of every slice; a `grad` buffer,
 * which no call but zero_grad_done() zeroes, is as with zero_grad_open(). With
 * reduction=local the buffer is another one after the first micro-batch, and is added when it is
 * handed over: ZERO_E_LIMIT if grad_units of its size are open. */
ZERO_API zero_result zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream);

/** The gradient of a slice; *local*; valid while its unit's gradient is open, else NULL; after a
 * fatal error then memory of its size that goes nowhere. */
ZERO_API void *zero_grad_ptr(zero_ctx *z, zero_param param, int32_t slice);

/**
 * Hands the unit's gradient over: rounded to comm_dtype, it travels to its owners, who add the
 * micro-batches in the order 0, 1, ..., V-1 in fp32 (in blocks of sum_group, or rank by rank with
 * reduction=local). *Collective, ordered*, once a unit and micro-batch. The buffer must not be
 * touched afterwards; a caller's own (`grad`) is zeros again, and the next micro-batch's.
 * ZERO_E_STATE: not open.
 */
ZERO_API zero_result zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * Says that the unit has no gradient in this micro-batch, such as that of an expert without a
 * token: counts as zeros, the same bits as zero_grad_open() and zero_grad_done() with nothing added
 * in between; a `grad` buffer is neither read nor written. *Collective, ordered*: stands where
 * other ranks, which may have a gradient, call zero_grad_done(). Errors as those of
 * zero_grad_open().
 */
ZERO_API zero_result zero_grad_none(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * Gives the metric `name` of the current micro-batch: zero_metric_mean() has the mean over all V
 * of them after zero_step() (of an evaluation: after zero_eval_end()), summed in fp64 in the order
 * 0 .. V-1. *Local*, but the same names in the same order in every micro-batch of a step or
 * evaluation, on every rank, each once, at most 16; names of [A-Za-z0-9_.-], 1 .. 31 bytes, but not
 * what zero-run's metrics have anyway (step, updates, context, eval, norm, clip, skipped, lr,
 * loss_scale). zero-run shows "loss", and tokens a second if there is a metric "tokens", the number
 * in a micro-batch. ZERO_E_INVALID, ZERO_E_STATE; ZERO_E_LIMIT: a 17th; fatal.
 */
ZERO_API zero_result zero_metric(zero_ctx *z, const char *name, double value);

/**
 * The same with the value that *value has when the work queued on `stream` so far is done: memory
 * of the device, which work queued behind this call may overwrite. The program need not wait for
 * it. On the CPU, where stream is NULL, it is read before the call returns. Errors as those of
 * zero_metric(); ZERO_E_INVALID also: value is NULL, or stream is not.
 */
ZERO_API zero_result zero_metric_from(zero_ctx *z, const char *name, const float *value,
                                      zero_stream stream);

/** *Local*: the metric's mean over the micro-batches of the last step or evaluation that ended;
 * with all state on a GPU of the newest step that zero_step_info() tells of. ZERO_NOT_FOUND. */
ZERO_API zero_result zero_metric_mean(const zero_ctx *z, const char *name, double *mean);

/**
 * *Local*: the loss scale, 1 if there is none: multiply the loss, and so every gradient, of the
 * step's micro-batches by it; zero_step() divides it away. Changes in zero_step() only. The loss
 * itself, as a metric, is given without it. 1 before commit. With all state on a GPU a dynamic one
 * waits for the verdict on the last step, though not for its update (several ranks do so in
 * zero_step()).
 */
ZERO_API double zero_loss_scale(const zero_ctx *z);

/** Arguments of one step; literal, the same on every rank. */
typedef struct zero_step_args {
    uint32_t struct_size;
    int32_t group_count;     /**< as many as were added; 1 if none was */
    const zero_hyper *hyper; /**< one a group */
    uint64_t hyper_stride;   /**< sizeof(zero_hyper) */
    double scale;            /**< multiplies the sum of the V gradients, e.g. 1.0 / V; whatever
                                  the loss scale is; in fp32, in which neither it may be infinite
                                  nor its quotient with the loss scale 0 */
    double max_norm;         /**< clip the gradient, scaled and without the loss scale, to this
                                  norm; 0: don't */
} zero_step_args;

static inline zero_step_args zero_step_args_default(void)
{
    zero_step_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = (uint32_t)sizeof args;
    args.hyper_stride = sizeof(zero_hyper);
    args.scale = 1.0;
    return args;
}

/** Arguments of a step with the hyper-parameters of `group_count` groups, which are borrowed. */
static inline zero_step_args zero_step_args_for(const zero_hyper *hyper, int32_t group_count,
                                                double scale, double max_norm)
{
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = group_count;
    args.scale = scale;
    args.max_norm = max_norm;
    return args;
}

/** The newest step whose verdict is known. */
typedef struct zero_step_result {
    uint32_t struct_size;
    int32_t skipped;      /**< 1: non-finite, or too large: the update was left out */
    uint64_t step;        /**< batches so far, this one included */
    uint64_t updates;     /**< updates so far */
    double norm;          /**< 2-norm of scale / loss_scale * sum, before clipping */
    double clip;          /**< the factor min(1, max_norm / (norm + 1e-6)); 1 without */
    zero_param bad_param; /**< first non-finite contribution, by (micro-batch, parameter,
                               slice, element); of a step that failed for what its update made
                               that element, with bad_rank -1; -1 if none */
    int32_t bad_slice;
    uint64_t bad_element;
    uint64_t bad_micro; /**< its micro-batch (reduction=local: its rank's last), */
    int32_t bad_rank;   /**< and the rank that computed it */
    int32_t reserved;
    double loss_scale; /**< what this step's gradients were multiplied by; 1: by none */
    uint64_t skips;    /**< steps in a row that were not finite, up to this one; zero_skip_step()
                            neither counts nor ends the row */
} zero_step_result;

static inline zero_step_result zero_step_result_default(void)
{
    zero_step_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = (uint32_t)sizeof result;
    return result;
}

/**
 * Ends the step: waits for the gradients, computes the norm, agrees, clips, updates, and sends the
 * new values on their way. *Collective, ordered*, after zero_micro_count micro-batches. All ranks
 * return the same result.
 *
 * With state on a GPU (device=cuda, with nothing offloaded or offload_update=device) this is queued
 * there, behind `stream` and before what uses the new values, and the call returns; the host is at
 * most two steps ahead: it waits for the verdict on the step before the last one. With files it
 * waits for this step's, and for the tiles that pass through the GPU. ZERO_E_NONFINITE then comes
 * from a later call, of the second step after it (of an update that is not finite: the third) at
 * the latest or the first call between steps; no step that was queued meanwhile has changed
 * anything. The calls between steps wait for all that is queued, and any call for the driver, where
 * a stream has about a thousand copies and kernels to do, or some fifty functions of the host
 * behind such. Within a step calls wait for the GPU where bytes pass through the host: with
 * device_transport=host whatever moves some to other ranks; with offload_update=host
 * zero_grad_done(), for the gradient handed over before, and zero_step(), for the last one: with
 * reduction=local in the last micro-batch only, for what leaves the GPU then.
 *
 * ZERO_E_STATE: a unit is gathered, a gradient open, a micro-batch, gradient or metric is missing,
 * or an evaluation is under way (nothing changed). ZERO_E_INVALID: args out of range (nothing
 * changed). ZERO_E_NONFINITE: policy `error`, or a row of skips longer than skip_limit, or a
 * dynamic loss scale at loss_scale_min; no value changed; zero_last_error() names tensor, element,
 * micro-batch and rank; fatal. So it is if every gradient is finite and what the update makes is
 * not, whatever the policy: then values have changed, which no call shows.
 * ZERO_E_DIVERGED: ranks gave different args; fatal.
 */
ZERO_API zero_result zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream);

/**
 * Ends the step without an update, by the program's own decision: instead of zero_step(), with all
 * its waits but for new values, of which there are none. The batch counts, metrics are averaged,
 * weights, moments, hyper-parameters, the loss scale and the row of skips are as before, whether or
 * not gradients are finite. zero_step_info(): skipped is 1, norm that of a scale of 1. *Collective,
 * ordered*, after zero_micro_count micro-batches. ZERO_E_STATE as for zero_step(), or the
 * step is fused; ZERO_E_DIVERGED: another rank called zero_step(); fatal.
 */
ZERO_API zero_result zero_skip_step(zero_ctx *z);

/**
 * Fuses the update of the step under way into the backward pass: it runs while the gradients are
 * added up, and need not read them again. *Collective, ordered*; in the last local micro-batch,
 * before its first zero_grad_open(). zero_step() is due as ever, with the same args or NULL: it
 * agrees, and sends the new values on their way. The same bits and the same norm as without.
 *
 * For programs that neither clip nor skip. Until zero_step() returns, weights of units that were
 * handed over change while other ranks still compute: a unit is released before zero_grad_done(),
 * and gathered no more after it. At stages 1 to 3, and with one rank, the update is a part of
 * zero_grad_done() and of whatever else moves bytes, and the caller's thread does it alone; slices
 * of at most persist_numel elements, and everything at stage 0 with several ranks, are updated by
 * zero_step() as in any step.
 *
 * With offload_optimizer=nvme tiles are read from here on, in the order in which the last
 * micro-batch handed gradients over, or from the last unit to the first. zero_grad_done() updates
 * those whose sums are complete, as far as they have been read, with all of cpu_threads, and has
 * them written; it never waits for the disk, but for that of offload_params. What may be early is
 * as above, but by whole tiles, and the strips of working copies that are made of several, with
 * offload_params=nvme: one with anything that is not waits for zero_step(), and so does
 * everything with offload_grads=nvme, or offload_update=device.
 *
 * With state on a GPU the update of a unit is queued there with zero_grad_done(), behind its sums
 * and behind all that the program has queued to read the unit, and nobody waits for it. What passes
 * through the GPU from memory of the host does so by whole tiles meanwhile, but for what waits for
 * zero_step(). Where the host updates for a GPU, zero_grad_done() waits until the gradient handed
 * over before is in memory of the host and updates that unit, while the GPU computes the one handed
 * over now; with one rank the new working copy goes to the GPU at once.
 *
 * What comes too late to prevent is fatal. A NaN or an infinity in a gradient is ZERO_E_NONFINITE
 * in zero_step(). After that, or a fatal error before zero_step() has returned, the death of a rank
 * for instance, weights and moments of any part of the model may be those after the update, the
 * rest those before it: start again from a checkpoint. With offload_optimizer=nvme the file still
 * has the step before, whole: a job that is started again comes back at it (zero_resume()). Before
 * the first step of a job that is what the job before has left, if anything.
 *
 * ZERO_E_INVALID: args out of range, max_norm not 0, nonfinite=skip, the default with a loss scale;
 * ZERO_E_STATE: another moment of the step, or called already (nothing changed). In a fused
 * step zero_grad_done() and zero_grad_none() of a unit that is gathered, and zero_gather() of one
 * that was handed over, are ZERO_E_STATE, and so is zero_skip_step(); zero_step() with other args
 * than zero_step_in_backward() had is ZERO_E_INVALID, and ZERO_E_DIVERGED where ranks gave it other
 * args, or not all of them any, of which a call that moves gradients may tell before.
 */
ZERO_API zero_result zero_step_in_backward(zero_ctx *z, const zero_step_args *args);

/** *Local*: the last step's verdict, with all state on a GPU that of the newest step which the host
 * knows (zero_step_wait()); info->struct_size set by the caller. ZERO_AGAIN: it knows none yet;
 * ZERO_E_STATE before the first step. */
ZERO_API zero_result zero_step_info(const zero_ctx *z, zero_step_result *info);

/** Waits until the host knows the verdicts on all steps so far, and, between steps, that their
 * updates are finite: zero_step_info() and zero_metric_mean() then tell of the last one. For who
 * prints every step: only with all state on a GPU is there anything to wait for. *Collective,
 * ordered.* A step that has failed says so here as it would in a later call. ZERO_E_STATE before
 * commit. */
ZERO_API zero_result zero_step_wait(zero_ctx *z);

/**
 * The 2-norm of scale / loss scale * sum of the step's gradients, as zero_step() with that scale
 * will report it; after the last micro-batch of a step, before zero_step(). *Collective, ordered*;
 * waits for the gradients, also on a GPU, and for the ranks. A non-finite gradient gives a
 * non-finite norm. ZERO_E_STATE as for zero_step().
 */
ZERO_API zero_result zero_grad_norm(zero_ctx *z, double scale, double *norm);

/* ------------------------------------------------------------------ between steps */

/**
 * Begins an evaluation of `count` micro-batches over all ranks (1 .. 1,048,576): a pass without
 * gradients that leaves training as it is, in every bit. *Collective, ordered*, between two steps,
 * with nothing gathered; waits for the ranks.
 *
 *     zero_eval_begin(z, count);
 *     for (i = 0; i < zero_micro_count(z); i++) {
 *         zero_micro_begin(z, i, &micro);         the micro-batch to compute: 0 .. count-1
 *         zero_gather, zero_param_ptr, zero_release;  zero_metric
 *     }
 *     zero_eval_end(z);                           zero_metric_mean: over all `count`
 *
 * A program that listens, see zero_stop_requested(), may learn in the middle that the job is to
 * stop, on all ranks before the same micro-batch; for that zero_micro_begin() waits for the ranks,
 * from the second one on. It may leave the loop then, on all ranks at the same place, or go on.
 *
 * Micro-batch l is computed by rank l mod world, so its metrics and their means do not depend on
 * the number of ranks; micro.counts is 0 in the duplicates of a last round that is not full.
 * Evaluations have an order of gathers of their own that is replayed ahead (where there is a
 * prefetch_units), and leave that of training alone. Memory for the metrics, on each rank 128 bytes
 * a micro-batch and 128 more for each of its own, is allocated by the first evaluation of a size,
 * and in the plan from then on.
 *
 * ZERO_E_INVALID: count; ZERO_E_STATE: in a step or an evaluation, or a unit is gathered;
 * ZERO_E_NOMEM (not fatal here). After these nothing has changed. ZERO_E_DIVERGED: ranks gave
 * different counts; fatal.
 */
ZERO_API zero_result zero_eval_begin(zero_ctx *z, int32_t count);

/**
 * Ends it, after zero_micro_count micro-batches: from now on zero_metric_mean() has its means, on
 * every rank. *Collective, ordered*; waits for the ranks. zero-run's metrics file gets a line with
 * "eval", the number of micro-batches, beside the step and the means; its time counts for no step.
 *
 * ZERO_AGAIN: the job is to stop, and some rank has left the evaluation before its end: it is over,
 * without means or a line; zero_metric_mean() has those of before. Only where zero_stop_requested()
 * says so.
 * ZERO_E_STATE: there is none, a unit is gathered, or a micro-batch or metric is missing; nothing
 * changed. ZERO_E_DIVERGED: ranks gave different metrics; fatal.
 */
ZERO_API zero_result zero_eval_end(zero_ctx *z);

/**
 * 128 bits that decide the future: master weights (the working copy where there are none) and
 * moments of every tensor, by name; step, updates, V, sum_group, seed, the last hyper-parameters,
 * each group's optimizer and decay, which groups are frozen, the loss scale and its clean steps if
 * there is one; and the bytes of every blob that is attached as ZERO_GLOBAL. The same at every
 * world size, stage, transport, way of gathering and prefetch depth (but for reduction=local: the
 * same world size, and where GPUs sum the same device_transport). Two runs of one program and
 * configuration (comm_dtype, reduction and each grad_dtype are not in it) are the same run if their
 * fingerprints are. *Collective.* digest: 16 bytes, printed in order as hex. ZERO_E_STATE: inside a
 * step or an evaluation.
 */
ZERO_API zero_result zero_fingerprint(zero_ctx *z, uint8_t digest[16]);

/**
 * Writes every tensor's master weights (with master=none the working copy), whole, as fp32, in
 * order of registration, to a safetensors file: rank 0 writes a temporary file beside it, syncs and
 * renames. *Collective*; all ranks return the same result. ZERO_E_IO: a file that was there before
 * is untouched. ZERO_E_INVALID: what is at `path` is no regular file.
 */
ZERO_API zero_result zero_export(zero_ctx *z, const char *path);

/**
 * Replaces master weights and working copies (to nearest even) by the tensors of a safetensors file
 * (F32, BF16 or F16), by name, or of all files of an index (model.safetensors.index.json: a path
 * that ends in ".json"); `prefix` (may be NULL) may stand before names in the file. Moments
 * stay. *Collective*; every rank reads the file, and all return the same result. A tensor that is
 * missing or has another shape or type, or a finite value that would be an infinity in the working
 * copy (in f16 from 65520 on; the message has tensor, element and value; infinities and NaNs of the
 * file are taken) is ZERO_E_INVALID, a damaged file ZERO_E_CORRUPT, one with
 * an unknown dtype ZERO_E_UNSUPPORTED, one that is not there ZERO_E_IO, and nothing was changed;
 * extra tensors are ignored. Tensors that were registered frozen are read twice, as nothing else
 * has room for them: should only the second time fail, the error is fatal.
 */
ZERO_API zero_result zero_import(zero_ctx *z, const char *path, const char *prefix);

/**
 * Sets V, the micro-batches a step over all ranks, from the next step on: the bits are those of a
 * run that goes on with that V. *Collective, ordered*, between steps. V is part of what zero_save()
 * saves, so that zero_load() takes it back, too.
 *
 * ZERO_E_INVALID: micro_batches is not in 1 .. 2^20 or doesn't go with the reduction, or needs
 * memory that was not planned: with sum_group, or with reduction=local, a V above the world size
 * where that at commit was not (with sum_group: was given, and was not). ZERO_E_STATE: inside a
 * step, or a unit is gathered. ZERO_E_NOMEM (not fatal here). After these nothing has changed.
 * ZERO_E_DIVERGED: ranks gave different numbers; fatal.
 */
ZERO_API zero_result zero_set_micro_batches(zero_ctx *z, int32_t micro_batches);

/**
 * Copies the master weights of elements first .. first+count-1 of a slice, as fp32, to `values` on
 * every rank. *Collective, ordered*, between steps.
 * ZERO_E_INVALID: no such slice or elements, or values is NULL (but for 0 elements); ZERO_E_STATE:
 * inside a step, or a unit is gathered. ZERO_E_DIVERGED: ranks asked for different elements;
 * fatal.
 */
ZERO_API zero_result zero_param_read(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                                     uint64_t count, float *values);

/**
 * Replaces the master weights of these elements by `values`, the same on every rank, and the
 * working copy by them rounded; moments stay. *Collective, ordered*, between steps. Errors as of
 * zero_param_read(); ZERO_E_INVALID also if a finite value would be an infinity in the working copy
 * (nothing changed); ZERO_E_DIVERGED also if values differ, and then no element was changed.
 */
ZERO_API zero_result zero_param_write(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                                      uint64_t count, const float *values);

/**
 * Freezes a group (frozen != 0), or lets it train again, from the next step on. While it is frozen
 * its tensors are not updated, and their gradients are neither in the norm nor checked for what is
 * not finite. Weights and moments stay, and training continues with them; bias correction counts
 * the updates of the context (zero_step_result.updates), those made meanwhile included. Steps still
 * take the group's hyper-parameters. *Collective*, between steps.
 *
 * A unit whose every tensor is frozen needs no gradient; one that is handed over is ignored and
 * does not travel. In other units the gradients of frozen tensors may hold anything. Frozen groups
 * are part of the fingerprint.
 *
 * ZERO_E_INVALID: there is no such group; ZERO_E_STATE: inside a step, or a unit is gathered
 * (nothing changed). ZERO_E_DIVERGED: ranks gave different arguments; fatal.
 */
ZERO_API zero_result zero_set_frozen(zero_ctx *z, zero_group group, int32_t frozen);

/** Combines `count` doubles over the ranks, in rank order, into values on every rank.
 * *Collective, ordered.* */
ZERO_API zero_result zero_allreduce(zero_ctx *z, double *values, uint64_t count, zero_op op);

/** Returns when every rank has called it. *Collective, ordered.* */
ZERO_API zero_result zero_barrier(zero_ctx *z);

#ifdef __cplusplus
}
#endif

#include <zero/statistics.h>
#include <zero/tensors.h>

#endif
