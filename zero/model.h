/**
 * zero/model.h: what a program registers: groups, tensors, first values. Part of <zero/zero.h>,
 * which includes it.
 *
 * Registration is local, and the same on every rank. zero_commit() compares, and from then on the
 * model is fixed.
 */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_MAX_DIMS 8

typedef int32_t zero_param; /**< Dense, from 0, in order of registration. */
typedef int32_t zero_unit;  /**< Dense, from 0. */
typedef int32_t zero_group; /**< Dense, from 0. */

/* ------------------------------------------------------------------ groups */

/** How weight decay acts. */
typedef enum zero_decay {
    ZERO_DECAY_DEFAULT = 0,   /**< The optimizer's own: see zero_group_desc. */
    ZERO_DECAY_DECOUPLED = 1, /**< w *= 1 - lr * weight_decay (Loshchilov, Hutter 2019). */
    ZERO_DECAY_L2 = 2,        /**< weight_decay * w is added to the gradient, after clipping. */
} zero_decay;

/**
 * Parameters that share an optimizer and its hyper-parameters.
 *
 *  name       moments  decay      step, from the scaled and clipped gradient g
 *  "adamw"    2        decoupled  Adam with bias correction (Kingma, Ba 2015; Loshchilov, Hutter
 *                                 2019): lr * m / (sqrt(v) + eps).
 *  "adam"     2        L2         The step of "adamw".
 *  "sgd"      1        L2         m = beta1 * m + g, no dampening: lr * m, or with Nesterov's form
 *                                 (Sutskever et al. 2013) lr * (g + beta1 * m).
 *  "lion"     1        decoupled  lr * sign(beta1 * m + (1 - beta1) * g), then
 *                                 m = beta2 * m + (1 - beta2) * g (Chen et al. 2023).
 *  "adagrad"  1        L2         m = m + g * g: lr * g / (sqrt(m) + eps) (Duchi et al. 2011).
 *
 * The second column counts values an element, which are zero at first. The third is the default;
 * each optimizer takes either decay. Groups of one model may have different optimizers. Sums and
 * updates are computed in fp32; "Rounding" in <zero/advanced.h> says what is stored with 16 bits.
 */
typedef struct zero_group_desc {
    uint32_t struct_size;
    zero_decay decay;
    const char *name;      /**< Default "group<n>". */
    const char *optimizer; /**< Default "adamw"; or one of <zero/optimizer.h>. */
    int32_t nesterov;      /**< 1: Nesterov's form; "sgd" only. */
} zero_group_desc;

/**
 * Hyper-parameters of one group for one step; literal.
 *
 * Fields that the group's optimizer does not name play no part in the update. The others have these
 * ranges, also when rounded to fp32, in which they are used:
 *  - lr, eps and weight_decay are 0 or more. lr * weight_decay of a decoupled decay is at most 1.
 *  - The betas are from 0 to below 1. Nesterov's form needs a beta1 above 0.
 *  - zero_step() refuses a value that fp32 makes infinite, or makes 0 though it is not.
 *
 * With an eps of 0 an element whose gradients have all been 0 becomes a NaN, which is
 * ZERO_E_NONFINITE from zero_step().
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

static inline zero_group_desc zero_group_default(void)
{
    zero_group_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/**
 * Adds a group. *Local*, before commit, the same on every rank.
 *
 * *group receives its id; group may be NULL. desc NULL: all defaults. A model to which no group was
 * added has one with all defaults.
 *
 * A refusal is remembered: zero_commit() fails with the first one, so this call may go unchecked.
 *
 * ZERO_E_INVALID: a field is out of range.
 * ZERO_E_STATE: zero_commit() was called before.
 * ZERO_E_NOMEM: the system refused memory.
 */
ZERO_API zero_result zero_add_group(zero_ctx *z, zero_group *group, const zero_group_desc *desc);

/* ------------------------------------------------------------------ tensors */

/**
 * Gives first values: writes elements first .. first+count-1 of a slice to out, as fp32.
 *
 * The callback is a pure function of name, slice and element, the same on every rank, without side
 * effects. A rank asks for the elements that it owns, and for some that others own, so that ranks
 * can be compared. It may ask for an element more than once, in any order, and in ranges that
 * depend on the world size. zero_commit() calls it, in the caller's thread.
 *
 * Any result but ZERO_OK fails the commit with it, on all ranks; a positive one fails it with
 * ZERO_E_INVALID. A finite value beyond what the tensor's dtype holds (f16: 65504) is
 * ZERO_E_INVALID; the message names it.
 */
typedef zero_result (*zero_fill_fn)(void *user, const char *name, int32_t slice, uint64_t first,
                                    uint64_t count, float *out);

/** One tensor. */
typedef struct zero_param_desc {
    uint32_t struct_size;
    zero_dtype dtype; /**< The working copy's type: f32, bf16, f16; default ZERO_F32. */
    const char *name; /**< Unique, 1 .. 255 bytes of printable ASCII without blanks. It is not
                           "__metadata__", which no file of safetensors can have. */
    uint64_t shape[ZERO_MAX_DIMS];
    int32_t ndim;       /**< 0 (a scalar) .. ZERO_MAX_DIMS; every extent is at least 1. */
    zero_unit unit;     /**< The unit it is gathered with; the first one if it is stacked. */
    int32_t unit_count; /**< Default 1. n > 1: the tensor is stacked, and shape[0] == n. Slice s has
                             the elements of index s of the first dimension; it is in `unit + s`. */
    zero_group group;   /**< The group whose hyper-parameters apply. */
    const void *data;   /**< First values, of type dtype, the whole tensor, the same on every rank.
                             Only zero_commit() reads them. */
    zero_fill_fn fill;  /**< Gives first values instead of data. Without either they are zeros. */
    void *fill_user;    /**< The first argument of fill. */
    void *borrow;       /**< Stages 0 to 2, without offload_params=nvme: the caller's buffer for the
                             working copy. See "Borrowed memory" in <zero/advanced.h>. */
    void *grad;     /**< Stages 0, 1: the caller's buffer for the gradient. See "Borrowed memory"
                         there. */
    int32_t frozen; /**< 1: the tensor is never updated. It has a working copy, which is
                         fingerprinted, exported and imported. It has no gradient, master weights
                         or moments, and its zero_grad_ptr() is NULL. A unit of frozen tensors only
                         has no gradient to hand over. 0: it trains. */
    zero_dtype grad_dtype; /**< The gradient's type, as zero_grad_ptr() gives it: f32, bf16,
                                f16. Default: dtype; a frozen tensor takes only that. */
} zero_param_desc;

static inline zero_param_desc zero_param_default(void)
{
    zero_param_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/**
 * Registers a tensor. *Local*, before commit, the same on every rank (zero_commit() compares).
 *
 * *param receives its id; param may be NULL. The name is copied; data and fill live until
 * zero_commit() returns. A tensor that is used twice (tied weights) is registered once; its unit is
 * simply open while others are. Units are numbered densely: commit refuses a unit without a tensor.
 * <zero/tensors.h> registers a table of tensors, or a stacked one, in fewer lines.
 *
 * A refusal is remembered: zero_commit() fails with the first one, so this call may go unchecked.
 *
 * ZERO_E_INVALID: a field is out of range, borrow or grad are not for this stage or not aligned to
 * the type, or the name is taken.
 * ZERO_E_STATE: zero_commit() was called before.
 * ZERO_E_NOMEM: the system refused memory.
 */
ZERO_API zero_result zero_add_param(zero_ctx *z, zero_param *param, const zero_param_desc *desc);

/* ------------------------------------------------------------------ commit */

/**
 * Decides the layout, makes the plan, allocates everything, and writes the first values.
 * *Collective.* Afterwards the model is fixed, and from the third step on no call of a step
 * allocates.
 *
 * The ranks compare their models, settings and first values. They compare up to six granules (1,024
 * elements each) of each slice, its first and last among them, also where a checkpoint is loaded
 * next. With `paranoid` they compare all of them.
 *
 * ZERO_PLANNED: the environment asked for the plan only (zero-run --plan). zero_plan_text() and
 * zero_plan_json() have it, and say whether it fits. The program closes the context next.
 *
 * After an error only zero_close() is left.
 * ZERO_E_INVALID: there is no tensor, a unit is empty, or the model has fewer granules than ranks.
 * A fill callback gave another value when it was asked for an element again; one granule of each
 * slice is asked for twice, by a rank alone, too. Or a tensor, group, optimizer or blob was refused
 * before; then result and message are those of the first refusal.
 * ZERO_E_DIVERGED: ranks registered different models, have other settings, or give other first
 * values. The message names the tensor; of first values also slice, element, values and ranks.
 * ZERO_E_NOMEM: the ranks of a host need more memory than it has, or those that share a GPU more
 * than is free there (memory_limit). The message has the numbers, what limits, and what would need
 * less. It comes before anything is allocated, on all ranks. Or an allocation failed all the same.
 */
ZERO_API zero_result zero_commit(zero_ctx *z);

/** The number of units, 0 before commit. *Local.* */
ZERO_API int32_t zero_unit_count(const zero_ctx *z);

#ifdef __cplusplus
}
#endif

#endif
