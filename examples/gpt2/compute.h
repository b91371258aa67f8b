/**
 * compute.h: what a rank computes with: GPT-2 on the CPU (compute_cpu.c, over gpt2_model.h), or on
 * a GPU (cuda/gpt2_gpu_model.c).
 *
 * Weights and gradients come by pointer, in the order of gpt2_tensors.h; where they are, and of
 * which type, the device decides. The order of the calls of a micro-batch is gpt2_model.h's. Work
 * of a GPU is queued: what comes with a stream is done when that is.
 */
#ifndef GPT2_COMPUTE_H
#define GPT2_COMPUTE_H

#include "gpt2_tensors.h"
#include "layers.h"
#include "reason.h"

/** A unit's weights, */
struct unit_weights {
    const void *tensor[UNIT_TENSORS_MAX];
};
/** or its gradients. */
struct unit_gradients {
    void *tensor[UNIT_TENSORS_MAX];
};

/** A mean over a batch: a number, or where it will be in memory of the GPU; NULL: it is a number.
 */
struct mean_loss {
    double value;
    const float *there;
};

/** What is to be computed, and where. */
struct compute_options {
    struct dims dims;
    int windows;       /**< of dims.context tokens, at most */
    bool recompute;    /**< see gpt2_model.h */
    struct pool *pool; /**< borrowed */
    int gpu;           /**< its number */
    bool bf16;         /**< on a GPU: weights and gradients are bf16, else fp32 */
};

struct compute_ops {
    size_t size;
    const char *name; /**< of --device */
    /** Finds the device. NULL: refused, with a reason. */
    void *(*open)(const struct compute_options *options, struct reason *reason);
    /** When all queued work is done; accepts NULL. */
    void (*close)(void *compute);
    /** Memory for the batch; false: there is none, failure() has more. */
    bool (*allocate)(void *compute);
    /** Gives it back; what is queued is done first. */
    void (*release)(void *compute);
    size_t (*bytes)(const void *compute);
    /** What the device's work is queued on; NULL: it is done at once. */
    void *(*stream)(const void *compute);
    /** What is done otherwise than it could be, for people; NULL: nothing. The function may be,
     * too.
     */
    const char *(*notes)(const void *compute);
    /** Why something that was queued or done failed; NULL: nothing did. */
    const char *(*failure)(const void *compute);

    /** target NULL: there will be no loss. On the CPU both are borrowed, as in model_begin(). */
    void (*begin)(void *compute, const uint16_t *token, const uint16_t *target, struct batch batch);
    void (*embed)(void *compute, const struct unit_weights *embed);
    void (*block)(void *compute, int layer, const struct unit_weights *block);
    struct mean_loss (*head)(void *compute, float loss_scale, const struct unit_weights *final,
                             const struct unit_weights *embed, const struct unit_gradients *d_final,
                             const struct unit_gradients *d_embed);
    struct mean_loss (*loss)(void *compute, const struct unit_weights *final,
                             const struct unit_weights *embed);
    void (*block_backward)(void *compute, int layer, const struct unit_weights *block,
                           const struct unit_gradients *d_block);
    void (*embed_backward)(void *compute, const struct unit_gradients *d_embed);
    /** Of one row; to the host, for which it waits. */
    void (*logits)(void *compute, int row, const struct unit_weights *final,
                   const struct unit_weights *embed, float *logits);
};

extern const struct compute_ops compute_cpu;
extern const struct compute_ops compute_cuda; /**< in a build with CUDA */

#endif
