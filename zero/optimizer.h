/**
 * zero/optimizer.h: an element-wise optimizer of the program's own. *Experimental*: unlike the
 * other headers it may change, or go, with any release.
 *
 * A program registers its optimizer before zero_commit() and names it in groups; the library keeps
 * its moments, shards and publishes, and calls it for runs of elements. Optimizers that need a
 * whole tensor at once don't fit.
 */
#ifndef ZERO_OPTIMIZER_H
#define ZERO_OPTIMIZER_H

#include <zero/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes for what prepare() hands to update(), aligned to 16. */
#define ZERO_OPTIMIZER_SCALARS 128

/** The elements of one call: consecutive ones of one slice. Arrays that an optimizer has no moment
 * for are NULL. */
typedef struct zero_optimizer_run {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t count;
    const float *gradient; /**< the sum over micro-batches, neither scaled nor clipped */
    float *moment[2];      /**< 0 at first; with moments=bf16 what is stored, widened, and rounded
                                stochastically after the call */
    float *weight;         /**< the master; the library rounds working copies. With master=none
                                that of a bf16 or f16 tensor is the working copy, likewise */
} zero_optimizer_run;

/**
 * What an optimizer does. The callbacks must be pure functions of their arguments: of `user`, which
 * must mean the same on every rank and never change after registration, hyper-parameters, and the
 * elements they are given. Then its weights and moments are the same at every number of ranks and
 * stage; that they are the same on every machine is the program's business.
 */
typedef struct zero_optimizer_desc {
    uint32_t struct_size;
    int32_t moments;  /**< values of state an element: 0, 1 or 2; update() sees fp32, and they are
                           stored as the key `moments` says: fp32 or bf16 */
    const char *name; /**< for zero_group_desc.optimizer; 1 .. 63 printable bytes without blanks,
                           part of the fingerprint */
    void *user;       /**< first argument of the callbacks */

    /** Looks at a group's hyper-parameters before each step; anything but ZERO_OK refuses them, for
     * the reason it writes to `message`: at most `size` bytes with the final zero. NULL: all are
     * good. Called in the thread of zero_step() or zero_step_in_backward(). */
    zero_result (*check)(void *user, const zero_hyper *hyper, char *message, uint64_t size);

    /** Computes what all elements of a group have in common, once a step, from hyper-parameters,
     * the number of updates with this one (from 1), and the factor that every gradient is still to
     * be multiplied by (scale and clipping). Called in the same thread. */
    void (*prepare)(void *user, const zero_hyper *hyper, uint64_t updates, double gradient_scale,
                    void *scalars);

    /** Updates the elements of a run: each by itself, as if it were the only one, for where runs
     * begin and end depends on the number of ranks. A weight or moment that is not finite is
     * ZERO_E_NONFINITE from zero_step(). Called by several threads at a time, with
     * rounding to nearest and denormals; must not call the library. */
    void (*update)(void *user, const void *scalars, const zero_optimizer_run *run);
} zero_optimizer_desc;

static inline zero_optimizer_desc zero_optimizer_default(void)
{
    zero_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/**
 * Registers an optimizer, for groups that are added later. *Local*, before commit, the same on
 * every rank. The name is copied; user and the callbacks must live until zero_close(). Its groups
 * leave decay at ZERO_DECAY_DEFAULT, for what weight_decay means is the optimizer's to say.
 *
 * ZERO_E_INVALID: a field is out of range, prepare or update is NULL, or the name is taken;
 * ZERO_E_STATE after commit; ZERO_E_NOMEM. A refusal is remembered: zero_commit() fails with it.
 */
ZERO_API zero_result zero_add_optimizer(zero_ctx *z, const zero_optimizer_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
