/**
 * zero/optimizer.h: an element-wise optimizer of the program's own. *Experimental*: unlike the
 * other headers it may change, or go, with any release.
 *
 * A program registers its optimizer before zero_commit() and names it in groups. The library keeps
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

/** The elements of one call: consecutive ones of one slice. A moment that the optimizer has not is
 * NULL. */
typedef struct zero_optimizer_run {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t count;
    const float *gradient; /**< The sum over micro-batches, neither scaled nor clipped. */
    float *moment[2];      /**< 0 at first. With moments=bf16 they are the stored values, widened;
                                the library rounds them stochastically after the call. */
    float *weight;         /**< The master. With master=none that of a bf16 or f16 tensor is the
                                working copy, widened and rounded as moments are. */
} zero_optimizer_run;

/**
 * What an optimizer does.
 *
 * The callbacks are pure functions of their arguments: `user`, hyper-parameters, and the elements
 * they are given. `user` means the same on every rank and never changes after registration. Then
 * weights and moments have the same bits at every number of ranks and stage. The program sees to it
 * that they are the same on every machine.
 */
typedef struct zero_optimizer_desc {
    uint32_t struct_size;
    int32_t moments;  /**< Values of state an element: 0, 1 or 2. update() sees fp32; they are
                           stored as the key `moments` says, in fp32 or bf16. */
    const char *name; /**< For zero_group_desc.optimizer: 1 .. 63 printable bytes without blanks,
                           part of the fingerprint. */
    void *user;       /**< The first argument of the callbacks. */

    /** Looks at a group's hyper-parameters before each step. Any result but ZERO_OK refuses them,
     * for the reason that it writes to `message`: at most `size` bytes with the final zero. NULL:
     * all are good. The thread of zero_step() or zero_step_in_backward() calls it. */
    zero_result (*check)(void *user, const zero_hyper *hyper, char *message, uint64_t size);

    /** Computes what all elements of a group have in common, once a step, in that thread. It gets
     * hyper-parameters, the number of updates with this one (from 1), and the factor by which every
     * gradient is still to be multiplied (scale and clipping). */
    void (*prepare)(void *user, const zero_hyper *hyper, uint64_t updates, double gradient_scale,
                    void *scalars);

    /** Updates the elements of a run, each by itself: where runs begin and end depends on the
     * number of ranks. Several threads call it at a time, with rounding to nearest and denormals.
     * It must not call the library. A weight or moment that it makes and is not finite is
     * ZERO_E_NONFINITE from zero_step(). */
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
 * every rank.
 *
 * The name is copied; user and the callbacks live until zero_close(). Its groups leave decay at
 * ZERO_DECAY_DEFAULT, for the optimizer decides what weight_decay means.
 *
 * A refusal is remembered: zero_commit() fails with it.
 * ZERO_E_INVALID: a field is out of range, prepare or update is NULL, or the name is taken.
 * ZERO_E_STATE: zero_commit() was called before. ZERO_E_NOMEM: the system refused memory.
 */
ZERO_API zero_result zero_add_optimizer(zero_ctx *z, const zero_optimizer_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
