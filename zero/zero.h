/**
 * zero/zero.h: a sharded optimizer runtime. This header has what a first program needs.
 *
 * A training program registers its tensors and commits. For every micro-batch it gathers the
 * parameters of a unit before it uses them, and hands over the unit's gradients when they are
 * complete. zero_step() then updates. The calls are the same at every stage. At stage 0 every rank
 * has everything; at stage 3 parameters, gradients and optimizer state are sharded.
 *
 * The bits are the same in every case, on any number of ranks. The program has its part in that:
 * its gradient of a micro-batch is a function of (parameters, step, micro-batch index).
 *
 *     zero_open -> zero_add_group, zero_add_param ... -> zero_commit
 *     every step: for i in 0 .. zero_micro_count-1:
 *                     zero_micro_begin
 *                     forward:  zero_gather, zero_param_ptr, zero_release      a unit at a time
 *                     backward: the same, and zero_grad_open, zero_grad_ptr, zero_grad_done
 *                     zero_metric
 *                 zero_step, zero_step_info
 *     between steps: zero_eval_begin, micro-batches without backward, zero_eval_end
 *     zero_close
 *
 * This header includes the others of the engine:
 *
 *     zero/model.h          what a program registers: groups and tensors; zero_commit().
 *     zero/configuration.h  what zero_open() takes; docs/guides/configuration.md explains each key.
 *     zero/checkpoint.h     saving and resuming.
 *     zero/job.h            a job that is asked to stop, or starts again.
 *     zero/schedule.h       learning rates.
 *     zero/tensors.h        several tensors in one call.
 *     zero/advanced.h       update in backward, loss scale, state on a GPU, borrowed memory.
 *     zero/diagnostics.h    the plan, the fingerprint, aborting; zero/statistics.h: time and bytes.
 *
 * A program that has MPI includes zero/mpi.h, too.
 *
 * Which ranks call.
 *  - *Local*: any rank may call it, at any time.
 *  - *Collective*: every rank calls it.
 *  - *Collective, ordered*: every rank calls it, in the same order as the other ordered calls.
 *
 * Errors are values.
 *  - ZERO_E_INVALID and ZERO_E_STATE change nothing where they are documented. They are errors of
 *    the program, and show the first time it runs: check every call while the program is new. A
 *    pointer is NULL where the program has no right to it.
 *  - A *fatal* error is sticky, and every rank gets it. Every later call of any rank returns the
 *    first one; only the local getters and zero_close() still work. Fatal are ZERO_E_PEER,
 *    ZERO_E_TIMEOUT, ZERO_E_DIVERGED, ZERO_E_ABORTED, ZERO_E_NOMEM, ZERO_E_IO, ZERO_E_DEVICE and
 *    ZERO_E_NONFINITE, ZERO_E_CORRUPT of a file that holds state, and ZERO_E_LIMIT in a step.
 *  - A fatal error leaves no rank's weights and moments in the middle of an update. There are three
 *    exceptions: zero_step_in_backward() began the update, the disk that has them failed, or the
 *    update itself is not finite (zero_nonfinite).
 *  - Calls between zero_micro_begin() and zero_step() may go unchecked, for zero_step() refuses
 *    after a fatal error. Pointers that were given out stay mapped until zero_close(). A pointer
 *    that is asked for after a fatal error leads to memory that no other call uses.
 *  - zero_last_error() has the message, with numbers.
 *
 * Structs carry struct_size first. Fields are only ever appended. The library accepts a larger
 * struct of a newer caller if its unknown tail is zero. In *config* structs zero means "the
 * default" and ZERO_OFF "none"; hyper-parameters and step arguments are literal.
 *
 * Threads. One thread at a time uses a context. Contexts are independent. Any thread may call
 * zero_abort(), zero_comm_abort(), zero_stop_on_signals(), zero_stop_requested(),
 * zero_request_stop() and zero_save_poll().
 *
 * fork(). A child has no part in its parent's contexts. Every call there fails with ZERO_E_STATE
 * and changes nothing that the parent or a peer sees; only local getters and zero_close() work. A
 * child may read memory: pointers given out before fork() stay valid in it, with what they held. It
 * does not inherit the library's connections and locks. So a rank's death is noticed as soon as any
 * other, even if its child lives on (a data loader, say).
 *
 * Output. The library never aborts or exits. It prints nothing that a call returns: the program
 * shows that, by zero_last_error(). The default log shows only what no call returns, such as a save
 * that failed behind the steps. It writes to standard error. ZERO_OFF as `log_level` silences it. A
 * log callback of the program's also gets each fatal error, once, at ZERO_LOG_ERROR. A callback
 * that writes where the program shows errors leaves that level out.
 */
#ifndef ZERO_H
#define ZERO_H

#include <zero/checkpoint.h>
#include <zero/configuration.h>
#include <zero/job.h>
#include <zero/model.h>
#include <zero/schedule.h>
#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0

typedef void *zero_stream; /**< A cudaStream_t; NULL on the CPU. */

/* ------------------------------------------------------------------ life */

/**
 * Joins the job. *Collective.*
 *
 * Rank and world are those of the config if config->world is above 0. Else they come from the
 * environment of zero-run, torchrun, mpirun, srun and others (zero(7), Launchers). Without any of
 * these the job has one rank. Several contexts are opened in the same order on all ranks.
 *
 * The call waits for the other ranks for at most timeout_s. A rank that waits for more than 10 s
 * warns (config->log) where it waits and which ranks are missing, and again at growing intervals.
 *
 * On success *z is a context, which zero_close() closes. On failure *z is NULL, and
 * zero_last_error(NULL) has this thread's message. config may be NULL: all defaults. The library
 * copies the struct and its strings.
 *
 * ZERO_E_INVALID: a field, environment variable or option is out of range or unknown, two launchers
 * disagree, or one says that this process is one of several and not which.
 * ZERO_E_UNSUPPORTED: ZERO_FAULT is set, and this build has no fault points; or the build lacks
 * what was asked for. ZERO_E_TIMEOUT: ranks are missing; the message says which, and where this
 * rank waited for them. ZERO_E_NOMEM, ZERO_E_IO: the system refused memory, a file or a connection.
 */
ZERO_API zero_result zero_open(zero_ctx **z, const zero_config *config);

/**
 * Leaves the job and frees everything, pointers given out included. *Local*, but for a save.
 *
 * It accepts NULL and contexts after an error. In a child made by fork() it does nothing.
 *
 * A save under way is completed first, as by zero_save_wait(): then the call is *collective,
 * ordered*. After a fatal error, or inside a step, the save is given up instead. Either failure is
 * a warning in the log; a program that wants the result calls zero_save_wait() before.
 *
 * With state on a GPU the last step may have failed, or its verdict may need the other ranks. That
 * is a warning, too; zero_step_wait() returns it.
 *
 * The call waits for no rank, except for reads of this rank's memory that are under way. It waits
 * for a disk that has state for at most twice timeout_s. The request that does not come back by
 * then keeps the memory it needs, and the log has a warning.
 */
ZERO_API void zero_close(zero_ctx *z);

/** This rank, 0 .. world-1. *Local.* */
ZERO_API int32_t zero_rank(const zero_ctx *z);
/** The number of ranks. *Local.* */
ZERO_API int32_t zero_world(const zero_ctx *z);

/** The message of this context's last failure, "" if there was none. *Local.*
 *
 * With z NULL it is that of the last failed zero_open() or zero_team_create() of this thread. The
 * text is valid until the next failure. */
ZERO_API const char *zero_last_error(const zero_ctx *z);

/* ------------------------------------------------------------------ a micro-batch */

/** What to compute in one local micro-batch. */
typedef struct zero_micro {
    uint32_t struct_size;
    int32_t counts; /**< 0: a duplicate that keeps the ranks in step. The program makes the same
                         calls; the library uses nothing of it. */
    uint64_t step;  /**< The step's index, from 0; in an evaluation the next step's. */
    uint64_t index; /**< The micro-batch to compute, 0 .. V-1. Its data are a function of (seed,
                         step, index). */
} zero_micro;

static inline zero_micro zero_micro_default(void)
{
    zero_micro micro;
    memset(&micro, 0, sizeof micro);
    micro.struct_size = (uint32_t)sizeof micro;
    return micro;
}

/** V, the micro-batches of a step over all ranks; in an evaluation its own number. *Local.* See
 * zero_set_micro_batches(). */
ZERO_API int32_t zero_micro_total(const zero_ctx *z);
/** The micro-batches that each rank runs in a step or evaluation: ceil(total / world). *Local.* In
 * a step with verify_micro it is one more. */
ZERO_API int32_t zero_micro_count(const zero_ctx *z);

/**
 * Begins local micro-batch i and says which one it is. *Collective, ordered*, with i from 0 to
 * zero_micro_count-1, ascending.
 *
 * micro may be NULL; else the caller sets micro->struct_size. The call waits for no rank, with two
 * exceptions: an evaluation of a program that listens (zero_eval_begin()), and offload_params=nvme
 * while ranks still read a buffer that this one takes.
 *
 * ZERO_E_STATE: i is out of order, or a unit or gradient is still open. Or the micro-batch before
 * lacks a unit's gradient (but in an evaluation) or a metric; the message names it.
 */
ZERO_API zero_result zero_micro_begin(zero_ctx *z, int32_t i, zero_micro *micro);

/**
 * Makes the working copy of a unit readable until the matching zero_release(). *Collective,
 * ordered.*
 *
 * The call counts: a unit may be gathered several times, and must be released as often. It is also
 * allowed outside a micro-batch, where nothing is prefetched. What it does depends on the mode:
 *
 *  stage 0                 Nothing.
 *  `borrow`                It copies values that have changed to the program's buffer.
 *  stages 1 to 3           It waits for the values of the last step.
 *  stage 3, gather=copy    It also copies them from their owners.
 *  stage 3, gather=slots   The ranks of a host do so together.
 *  offload_params=nvme     It reads this rank's part from its file, and copies the others'. At
 *                          stage 0 the file has everything.
 *  state passes through a GPU, or ranks send it to each other's GPUs
 *                          The stream waits for the unit's own update, at every stage.
 *
 * ZERO_E_LIMIT: the rank holds open_units units already, at stage 3 (whether or not gathers copy),
 * with offload_params=nvme or with paranoid=1. The message names them and the key. It would come in
 * every step again, so it is fatal: what is held stays readable until zero_close(), and nothing
 * else goes on.
 * ZERO_E_IO, ZERO_E_CORRUPT: with offload_params=nvme the file failed; fatal. The message has the
 * offset.
 */
ZERO_API zero_result zero_gather(zero_ctx *z, zero_unit unit, zero_stream stream);

/** Ends one zero_gather(). *Collective, ordered.* ZERO_E_STATE: the unit is not gathered. */
ZERO_API zero_result zero_release(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * The working copy of a slice, read-only, row-major, of shape and dtype as registered. *Local.*
 *
 * slice is 0 unless the tensor is stacked. The address is aligned to 2 KiB; with `borrow` it is the
 * caller's, with paranoid=1 it is aligned to 64 bytes.
 *
 * The values are current from zero_gather() of its unit to zero_release(). A slice of at most
 * persist_numel elements is current from commit to close, but for the time inside zero_step(),
 * zero_import(), zero_param_write(), zero_load() and zero_resume(). In a fused step
 * (zero_step_in_backward()) only such slices are readable once the unit's gradient was handed over.
 *
 * The result is NULL if param or slice does not exist. At stage 3, with offload_params=nvme and
 * with paranoid=1 it is also NULL if the unit is not gathered and the slice is not that small.
 * After a fatal error it is then memory of the slice's size, without its values.
 *
 * With gather=shared all ranks of the host read the same memory. Its owners write it while this
 * rank is inside one of these calls, or in a fused step after zero_grad_done(); ranks of this host
 * bring what owners of other hosts have written. Another thread that reads meanwhile may see a
 * mixture. Writing there is a segmentation fault.
 *
 * With gather=slots they share it, too. It holds the unit until all have released it. Writing there
 * is a segmentation fault.
 */
ZERO_API const void *zero_param_ptr(zero_ctx *z, zero_param param, int32_t slice);

/**
 * Opens the unit's gradient in the current micro-batch. *Collective, ordered.*
 *
 * It is a buffer of each tensor's grad_dtype, into which kernels add. It holds zeros; with
 * reduction=local it holds what this rank's earlier micro-batches added. It stays open until
 * zero_grad_done(), and other units may be opened meanwhile (tied weights). The call may wait until
 * a buffer is free.
 *
 * ZERO_E_STATE: no micro-batch is under way, an evaluation is, the gradient was opened or handed
 * over already, or the unit has only tensors that were registered frozen.
 * ZERO_E_LIMIT: the rank has grad_units gradients open, at stages 2 and 3 or with paranoid=1;
 * fatal, as in zero_gather().
 */
ZERO_API zero_result zero_grad_open(zero_ctx *z, zero_unit unit, zero_stream stream);

/** The gradient of a slice; NULL unless its unit's gradient is open. *Local.* After a fatal error
 * it is memory of the slice's size, which the library does not read. */
ZERO_API void *zero_grad_ptr(zero_ctx *z, zero_param param, int32_t slice);

/**
 * Hands the unit's gradient over. *Collective, ordered*, once a unit and micro-batch.
 *
 * The gradient is rounded to comm_dtype and travels to its owners. They add the micro-batches in
 * the order 0, 1, ..., V-1 in fp32; sum_group adds blocks first, reduction=local rank by rank. The
 * caller must not touch the buffer afterwards. A caller's own (`grad`) is zeros again, and the next
 * micro-batch's.
 *
 * ZERO_E_STATE: the gradient is not open.
 */
ZERO_API zero_result zero_grad_done(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * Says that the unit has no gradient in this micro-batch, such as that of an expert without a
 * token. *Collective, ordered*: it stands where other ranks, which may have a gradient, call
 * zero_grad_done().
 *
 * It counts as zeros: the bits are those of zero_grad_open() and zero_grad_done() with nothing
 * added in between. A `grad` buffer is neither read nor written. Errors as those of
 * zero_grad_open().
 */
ZERO_API zero_result zero_grad_none(zero_ctx *z, zero_unit unit, zero_stream stream);

/**
 * Gives the metric `name` of the current micro-batch. *Local*, once a name.
 *
 * zero_metric_mean() has the mean over all V micro-batches after zero_step(), or after
 * zero_eval_end(). It is summed in fp64 in the order 0 .. V-1. Every micro-batch of a step or
 * evaluation, on every rank, gives the same names in the same order, at most 16.
 *
 * A name has 1 .. 31 bytes of [A-Za-z0-9_.-]. It is none that zero-run's metrics have anyway: step,
 * updates, context, eval, norm, clip, skipped, lr, loss_scale. zero-run shows "loss". It shows
 * tokens a second if there is a metric "tokens", the number of a micro-batch.
 *
 * ZERO_E_INVALID: the name is not allowed. ZERO_E_STATE: this is no place for it.
 * ZERO_E_LIMIT: it is the 17th; fatal.
 */
ZERO_API zero_result zero_metric(zero_ctx *z, const char *name, double value);

/** The mean of a metric over the micro-batches of the last step or evaluation that ended. *Local.*
 *
 * With all state on a GPU the step is the newest one that zero_step_info() tells of.
 * ZERO_NOT_FOUND: there is no such metric. */
ZERO_API zero_result zero_metric_mean(const zero_ctx *z, const char *name, double *mean);

/* ------------------------------------------------------------------ a step */

/** Arguments of one step; literal, the same on every rank. */
typedef struct zero_step_args {
    uint32_t struct_size;
    int32_t group_count;     /**< As many as were added; 1 if none was. */
    const zero_hyper *hyper; /**< One a group. */
    uint64_t hyper_stride;   /**< sizeof(zero_hyper). */
    double scale;            /**< Multiplies the sum of the V gradients, 1.0 / V for example,
                                  whatever the loss scale is. In fp32 it is not infinite, and its
                                  quotient with the loss scale is not 0. */
    double max_norm;         /**< Clips the gradient to this norm, scaled and without the loss
                                  scale. 0: it is not clipped. */
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
    int32_t skipped;      /**< 1: the gradient was not finite, or too large; nothing was updated. */
    uint64_t step;        /**< Batches so far, this one included. */
    uint64_t updates;     /**< Updates so far. */
    double norm;          /**< The 2-norm of scale / loss_scale * sum, before clipping. */
    double clip;          /**< The factor min(1, max_norm / (norm + 1e-6)); 1 without clipping. */
    zero_param bad_param; /**< The first non-finite contribution, by (micro-batch, parameter, slice,
                               element); -1 if there is none. If the update made a value that is
                               not finite, it is that element, with bad_rank -1. */
    int32_t bad_slice;    /**< Its slice. */
    uint64_t bad_element; /**< Its element. */
    uint64_t bad_micro;   /**< Its micro-batch; with reduction=local its rank's last one. */
    int32_t bad_rank;     /**< The rank that computed it. */
    int32_t reserved;
    double loss_scale; /**< The factor of this step's gradients; 1 without a loss scale. */
    uint64_t skips;    /**< Steps in a row that were not finite, up to this one. zero_skip_step()
                            neither counts nor ends the row. */
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
 * With state on a GPU the step is queued there, and the call returns before it has ended. "Steps of
 * a GPU" in <zero/advanced.h> says what waits for what, and when an error comes.
 *
 * ZERO_E_STATE: a unit is gathered, a gradient is open, a micro-batch, gradient or metric is
 * missing, or an evaluation is under way. Nothing has changed.
 * ZERO_E_INVALID: args are out of range. Nothing has changed.
 * ZERO_E_NONFINITE: a gradient is not finite, and the policy (zero_nonfinite) is `error`, the row
 * of skips is longer than skip_limit, or a dynamic loss scale is at loss_scale_min; fatal. No value
 * has changed. zero_last_error() names tensor, element, micro-batch and rank. Or every gradient is
 * finite and the update makes a value that is not, whatever the policy; fatal. Then values have
 * changed, which no call shows.
 * ZERO_E_DIVERGED: ranks gave different args; fatal.
 */
ZERO_API zero_result zero_step(zero_ctx *z, const zero_step_args *args, zero_stream stream);

/** The last step's verdict. *Local.* The caller sets info->struct_size.
 *
 * With all state on a GPU it is that of the newest step which the host knows (zero_step_wait()).
 * ZERO_AGAIN: the host knows none yet. ZERO_E_STATE: no step has ended. */
ZERO_API zero_result zero_step_info(const zero_ctx *z, zero_step_result *info);

/* ------------------------------------------------------------------ between steps */

/**
 * Begins an evaluation of `count` micro-batches over all ranks (1 .. 1,048,576). *Collective,
 * ordered*, between two steps, with no unit gathered; it waits for the ranks.
 *
 * An evaluation is a pass without gradients that leaves training as it is, in every bit.
 *
 *     zero_eval_begin(z, count);
 *     for (i = 0; i < zero_micro_count(z); i++) {
 *         zero_micro_begin(z, i, &micro);         the micro-batch to compute: 0 .. count-1
 *         zero_gather, zero_param_ptr, zero_release;  zero_metric
 *     }
 *     zero_eval_end(z);                           zero_metric_mean: over all `count`
 *
 * Rank l mod world computes micro-batch l, so its metrics and their means do not depend on the
 * number of ranks. micro.counts is 0 in the duplicates of a last round that is not full.
 *
 * A program that listens (zero_stop_requested()) may learn in the middle that the job is to stop.
 * For that zero_micro_begin() waits for the ranks, from the second one on, and all ranks learn it
 * before the same micro-batch. The program may leave the loop then, on all ranks at the same place,
 * or go on.
 *
 * Prefetching replays an order of gathers of the evaluation's own, and leaves that of training
 * alone. The first evaluation of a size allocates memory for the metrics: on each rank 128 bytes a
 * micro-batch, and 128 more for each of its own. The plan has it from then on.
 *
 * After these errors nothing has changed.
 * ZERO_E_INVALID: count is out of range. ZERO_E_STATE: a step or an evaluation is under way, or a
 * unit is gathered. ZERO_E_NOMEM: the system refused memory; not fatal here.
 * ZERO_E_DIVERGED: ranks gave different counts; fatal.
 */
ZERO_API zero_result zero_eval_begin(zero_ctx *z, int32_t count);

/**
 * Ends the evaluation, after zero_micro_count micro-batches. *Collective, ordered*; it waits for
 * the ranks.
 *
 * From now on zero_metric_mean() has its means, on every rank. zero-run's metrics file gets a line
 * with "eval", the number of micro-batches, beside the step and the means. No step counts its time.
 *
 * ZERO_AGAIN: the job is to stop (zero_stop_requested() says so), and some rank has left the
 * evaluation before its end. It is over, without means or a line; zero_metric_mean() has the means
 * of before.
 * ZERO_E_STATE: no evaluation is under way, a unit is gathered, or a micro-batch or metric is
 * missing. Nothing has changed.
 * ZERO_E_DIVERGED: ranks gave different metrics; fatal.
 */
ZERO_API zero_result zero_eval_end(zero_ctx *z);

/**
 * Writes every tensor's master weights to a safetensors file. *Collective*; all ranks return the
 * same result.
 *
 * Tensors are whole, in fp32, in order of registration; with master=none they are the working copy.
 * Rank 0 writes a temporary file beside `path`, syncs it and renames it.
 *
 * ZERO_E_IO: writing failed; a file that was there before is untouched.
 * ZERO_E_INVALID: what is at `path` is no regular file.
 */
ZERO_API zero_result zero_export(zero_ctx *z, const char *path);

/**
 * Replaces master weights and working copies by the tensors of safetensors files. *Collective*;
 * every rank reads the files, and all return the same result.
 *
 * `path` is a safetensors file, or an index of several (model.safetensors.index.json: a path that
 * ends in ".json"). Their tensors are F32, BF16 or F16, and are found by name; `prefix` (may be
 * NULL) may stand before names in the file. Working copies are rounded to nearest even. Moments
 * stay. The call ignores tensors of the file that the model has not.
 *
 * After these errors nothing has changed.
 * ZERO_E_INVALID: a tensor is missing, or has another shape or type, or a finite value would be an
 * infinity in the working copy (in f16 from 65520 on). The message has tensor, element and value.
 * The call takes infinities and NaNs of the file as they are.
 * ZERO_E_CORRUPT: the file is damaged. ZERO_E_UNSUPPORTED: it has an unknown dtype.
 * ZERO_E_IO: the file is not there, or reading failed.
 *
 * Tensors that were registered frozen are read twice, as nothing else has room for them. Should
 * only the second time fail, the error is fatal.
 */
ZERO_API zero_result zero_import(zero_ctx *z, const char *path, const char *prefix);

/** Combines `count` doubles over the ranks, in rank order, into values on every rank.
 * *Collective, ordered.* */
ZERO_API zero_result zero_allreduce(zero_ctx *z, double *values, uint64_t count, zero_op op);

/** Returns when every rank has called it. *Collective, ordered.* */
ZERO_API zero_result zero_barrier(zero_ctx *z);

#ifdef __cplusplus
}
#endif

#include <zero/advanced.h>
#include <zero/diagnostics.h>
#include <zero/tensors.h>

#endif
