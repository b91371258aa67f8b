/**
 * zero/advanced.h: what a program reaches for when its first version runs. Part of <zero/zero.h>,
 * which includes it.
 *
 *     update in backward    zero_step_in_backward
 *     loss scale, skipping  zero_loss_scale, zero_skip_step, zero_grad_norm
 *     state on a GPU        zero_device, zero_step_wait, zero_metric_from
 *     memory of its own     zero_param_desc.borrow and grad, zero_grad_open_raw, zero_refresh
 *     between steps         zero_set_micro_batches, zero_set_frozen, zero_param_read and _write
 *
 * Rounding
 *
 * Gradients are summed in fp32, and weights and moments are updated in it. What is stored with 16
 * bits is rounded once.
 *
 *     to nearest even   working copies of master weights, first values, gradients on their way
 *     stochastically    weights without masters (master=none), bf16 moments (moments=bf16)
 *
 * Stochastic rounding goes up or down to a neighbour, with probabilities that make the stored
 * value's mean the exact one. So steps smaller than half a unit in the last place are not lost. The
 * random bits are a function of (seed, tensor's name, slice, element, updates, which of weight and
 * moments). So the result is the same at every world size and stage.
 *
 * One rounding moves a value by less than a unit in its last place, u. In bf16 u is at most 2^-7 of
 * the value, in f16 2^-10. The error's mean is 0, and its standard deviation at most u / 2.
 *  - A moment with the factor beta forgets an error like everything else. Its standard deviation is
 *    at most u / 2 / sqrt(1 - beta^2): in bf16 0.9 % of the value at beta 0.9, 1.3 % at 0.95, and
 *    8.7 % at 0.999. Adam divides by the root of the second moment, so its step is off by half of
 *    that.
 *  - A weight without a master, or Adagrad's moment, forgets nothing and keeps the sum of its
 *    roundings. After n updates the standard deviation is at most u / 2 * sqrt(n).
 *
 * Borrowed memory
 *
 * The working copies and gradients are the library's, unless a tensor has buffers of the caller's.
 * Both are whole, row-major tensors, and live until zero_close(). The engine keeps its own copy
 * beside them. The plan has the cost, and nothing else changes.
 *  - `borrow` is of type dtype, and may be the tensor's `data`. zero_gather() copies the working
 *    copy to it once an update, and zero_param_ptr() is there. The program only reads it. Values
 *    stay there behind zero_release() and zero_step(): after a step they are one update old until
 *    the next gather, or zero_refresh(). It is for stages 0 to 2, without offload_params=nvme.
 *  - `grad` is of type grad_dtype and zeros at first. Kernels may add into it at any time, and
 *    zero_grad_ptr() is there. zero_grad_done() takes what is there and zeroes it. It is for stages
 *    0 and 1.
 *
 * Steps of a GPU
 *
 * With device=cuda, the place of the state decides what calls wait for:
 *
 *     state           updated by   zero_step() returns        ZERO_E_NONFINITE comes from
 *     on the GPU      the GPU      when the step is queued.   a later call.
 *     in memory       the GPU      when the step is queued.   a later call.
 *     in files        the GPU      behind its tiles.          this call, or a later one.
 *     in memory, or   the host     when it has updated.       this call.
 *     in files
 *
 * Where the GPU updates, the step is queued behind `stream` and before what uses the new values.
 *  - The host is at most two steps ahead: zero_step() waits for the verdict on the step before the
 *    last one. With files it waits for this step's verdict, and for the tiles that pass through the
 *    GPU.
 *  - ZERO_E_NONFINITE comes at the latest from the second step after the one that failed, or from
 *    the first call between steps. If an update is not finite it comes from the third step. No step
 *    that was queued meanwhile has changed anything.
 *  - Calls between steps wait for all that is queued.
 *  - Any call may wait for the driver. A stream takes about a thousand copies and kernels, or some
 *    fifty functions of the host behind such.
 *
 * Within a step calls wait for the GPU where bytes pass through the host:
 *  - with device_transport=host, every call that moves bytes to other ranks;
 *  - with offload_update=host, zero_grad_done() for the gradient handed over before, and
 *    zero_step() for the last one. With reduction=local this is so in the last micro-batch only,
 *    for what leaves the GPU then.
 */
#ifndef ZERO_ADVANCED_H
#define ZERO_ADVANCED_H

#include <zero/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ update in backward */

/**
 * Fuses the update of the step under way into its last backward pass. *Collective, ordered*, in the
 * last local micro-batch, before its first zero_grad_open().
 *
 * The update runs while gradients are added up, and need not read them again. zero_step() is due as
 * ever, with the same args or NULL: it agrees, and sends the new values on their way. Bits and norm
 * are those of a step without this call. It is for programs that neither clip nor skip.
 *
 * Until zero_step() returns, weights of units that were handed over change while other ranks still
 * compute. So the program releases a unit before zero_grad_done(), and does not gather it after.
 *
 * What is updated before zero_step(), and which thread or GPU updates it:
 *
 *     state                 updated early              by
 *     in memory             stages 1 to 3; one rank    the caller's thread, in zero_grad_done() and
 *                                                      other calls that move bytes.
 *     in files (nvme)       whole tiles whose sums     cpu_threads, in zero_grad_done().
 *                           are complete
 *     on a GPU              each unit                  the GPU, behind the unit's sums and its
 *                                                      queued readers; no call waits.
 *     of the host, updated  whole tiles                the GPU, as they pass through it.
 *     by the GPU
 *     of the host, updated  the unit handed over       the host, while the GPU computes the unit
 *     for a GPU             before                     handed over now.
 *
 * zero_step() updates the rest, as in any step:
 *  - slices of at most persist_numel elements, and everything at stage 0 with several ranks;
 *  - of files, a tile with anything that has to wait, and with offload_params=nvme the strips of
 *    working copies that are made of several tiles, likewise;
 *  - everything with offload_grads=nvme, and everything of files with offload_update=device.
 *
 * With offload_optimizer=nvme this call starts reading tiles: in the order in which the last
 * micro-batch handed gradients over, or from the last unit to the first. zero_grad_done() updates
 * complete tiles as far as they have been read, and has them written. It waits for no disk but that
 * of offload_params. Where the host updates for a GPU, zero_grad_done() waits until memory of the
 * host has the gradient handed over before; with one rank the new working copy goes to the GPU at
 * once.
 *
 * What comes too late to prevent is fatal. A NaN or an infinity in a gradient is ZERO_E_NONFINITE
 * in zero_step(). After that, or any other fatal error before zero_step() has returned, parts of
 * the model may be updated and the rest not. Start again from a checkpoint then. With
 * offload_optimizer=nvme the file still has the step before, whole, and a job that is started again
 * comes back at it (zero_resume()). Before the first step of a job that is what the job before has
 * left, if anything.
 *
 * ZERO_E_INVALID: args are out of range, max_norm is not 0, or the policy is nonfinite=skip, the
 * default with a loss scale. Or zero_step() has other args than this call had.
 * ZERO_E_STATE: this is another moment of the step, or the call was made already. Nothing has
 * changed. In a fused step these are ZERO_E_STATE, too: zero_grad_done() and zero_grad_none() of a
 * unit that is gathered, zero_gather() of a unit that was handed over, and zero_skip_step().
 * ZERO_E_DIVERGED: ranks gave other args, or not all of them made the call; fatal. A call that
 * moves gradients may tell before zero_step() does.
 */
ZERO_API zero_result zero_step_in_backward(zero_ctx *z, const zero_step_args *args);

/* ------------------------------------------------------------------ loss scale, skipping */

/**
 * The loss scale, 1 without one. *Local.*
 *
 * The program multiplies the loss of the step's micro-batches by it, and so every gradient.
 * zero_step() divides it away, and only zero_step() changes it. The metric of the loss is given
 * without it. Before commit it is 1.
 *
 * With all state on a GPU a dynamic scale waits for the verdict on the last step, though not for
 * its update. With several ranks zero_step() waits instead.
 */
ZERO_API double zero_loss_scale(const zero_ctx *z);

/**
 * Ends the step without an update, by the program's own decision. *Collective, ordered*, instead of
 * zero_step(), after zero_micro_count micro-batches.
 *
 * The batch counts, and metrics are averaged. Weights, moments, hyper-parameters, the loss scale
 * and the row of skips stay, whether or not gradients are finite. In zero_step_info() skipped is 1,
 * and norm is that of a scale of 1. The call waits as zero_step() does, except for new values.
 *
 * ZERO_E_STATE: zero_step() would return it, or the step is fused.
 * ZERO_E_DIVERGED: another rank called zero_step(); fatal.
 */
ZERO_API zero_result zero_skip_step(zero_ctx *z);

/**
 * The 2-norm of scale / loss scale * sum of the step's gradients, as zero_step() with that scale
 * will report it. *Collective, ordered*, after the last micro-batch of a step, before zero_step().
 *
 * It waits for the gradients, also on a GPU, and for the ranks. A gradient that is not finite gives
 * a norm that is not. ZERO_E_STATE: zero_step() would return it.
 */
ZERO_API zero_result zero_grad_norm(zero_ctx *z, double scale, double *norm);

/* ------------------------------------------------------------------ state on a GPU */

/** The number of the GPU on its host that this rank computes on; -1: the CPU. *Local.* The key is
 * `device`. */
ZERO_API int32_t zero_device(const zero_ctx *z);

/**
 * Waits until the host knows the verdicts on all steps so far. *Collective, ordered.*
 *
 * Between steps it also waits until the host knows that their updates are finite. Afterwards
 * zero_step_info() and zero_metric_mean() tell of the last step. It is for programs that print
 * every step, and has something to wait for only with all state on a GPU.
 *
 * It returns the error of a step that has failed, as a later call would.
 * ZERO_E_STATE: the context is not committed.
 */
ZERO_API zero_result zero_step_wait(zero_ctx *z);

/**
 * zero_metric() of a value in memory of the device. *Local*, as zero_metric().
 *
 * The value is what *value has when the work queued on `stream` so far is done. The program need
 * not wait for it, and work queued behind this call may overwrite it. On the CPU, where stream is
 * NULL, the call reads it before it returns. Errors as those of zero_metric().
 * ZERO_E_INVALID: value is NULL, or stream is not NULL on the CPU.
 */
ZERO_API zero_result zero_metric_from(zero_ctx *z, const char *name, const float *value,
                                      zero_stream stream);

/* ------------------------------------------------------------------ memory of its own */

/**
 * zero_grad_open() without zeroing: the caller overwrites every element of every slice.
 * *Collective, ordered.*
 *
 * A `grad` buffer, which only zero_grad_done() zeroes, is as with zero_grad_open(). With
 * reduction=local the buffer is another one after the first micro-batch, and is added when it is
 * handed over. ZERO_E_LIMIT: then grad_units of its size are open.
 */
ZERO_API zero_result zero_grad_open_raw(zero_ctx *z, zero_unit unit, zero_stream stream);

/* ------------------------------------------------------------------ between steps */

/**
 * Sets V, the micro-batches of a step over all ranks, from the next step on. *Collective, ordered*,
 * between steps.
 *
 * The bits are those of a run that goes on with that V. zero_save() saves V, and zero_load() takes
 * it back.
 *
 * After these errors nothing has changed.
 * ZERO_E_INVALID: micro_batches is not in 1 .. 2^20, or doesn't go with the reduction. Or it needs
 * memory that was not planned. So does a V above the world size where V at commit was not above it,
 * with reduction=local, and with sum_group if V was given at commit.
 * ZERO_E_STATE: a step is under way, or a unit is gathered.
 * ZERO_E_NOMEM: the system refused memory; not fatal here.
 * ZERO_E_DIVERGED: ranks gave different numbers; fatal.
 */
ZERO_API zero_result zero_set_micro_batches(zero_ctx *z, int32_t micro_batches);

/**
 * Freezes a group (frozen != 0), or lets it train again, from the next step on. *Collective*,
 * between steps.
 *
 * While a group is frozen its tensors are not updated. Their gradients are neither in the norm nor
 * checked for what is not finite; in a unit with other tensors they may hold anything. A unit whose
 * every tensor is frozen needs no gradient; one that is handed over is ignored and does not travel.
 *
 * Weights and moments stay, and training continues with them. Bias correction counts the updates of
 * the context (zero_step_result.updates), those made meanwhile included. Steps still take the
 * group's hyper-parameters. Frozen groups are part of the fingerprint.
 *
 * ZERO_E_INVALID: there is no such group. ZERO_E_STATE: a step is under way, or a unit is gathered.
 * Nothing has changed. ZERO_E_DIVERGED: ranks gave different arguments; fatal.
 */
ZERO_API zero_result zero_set_frozen(zero_ctx *z, zero_group group, int32_t frozen);

/**
 * Copies the master weights of elements first .. first+count-1 of a slice, as fp32, to `values` on
 * every rank. *Collective, ordered*, between steps.
 *
 * ZERO_E_INVALID: there is no such slice, or it has no such elements, or values is NULL (but for 0
 * elements). ZERO_E_STATE: a step is under way, or a unit is gathered.
 * ZERO_E_DIVERGED: ranks asked for different elements; fatal.
 */
ZERO_API zero_result zero_param_read(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                                     uint64_t count, float *values);

/**
 * Replaces the master weights of these elements by `values`, and the working copy by them rounded.
 * *Collective, ordered*, between steps. Moments stay. `values` are the same on every rank.
 *
 * Errors as of zero_param_read().
 * ZERO_E_INVALID: a finite value would be an infinity in the working copy. Nothing has changed.
 * ZERO_E_DIVERGED: values differ. No element has changed.
 */
ZERO_API zero_result zero_param_write(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                                      uint64_t count, const float *values);

#ifdef __cplusplus
}
#endif

#endif
