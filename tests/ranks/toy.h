/**
 * tests/ranks/toy.h: a model whose arithmetic is all ours, and its training loop.
 *
 * The gradient of a micro-batch is a function of (weights, step, index) and nothing else, so every
 * world size, stage and order of gathers must end in the same bits. First values have full fp32
 * mantissas: a bf16 working copy differs from its master.
 */
#ifndef TESTS_RANKS_TOY_H
#define TESTS_RANKS_TOY_H

#include "tests/ranks/team.h"

struct toy_tensor {
    const char *name;
    int unit;
    int slices;     /**< > 1: stacked, slice s in unit + s */
    uint64_t numel; /**< of a slice */
    int group;      /**< 0 or 1 */
    bool wide;      /**< f32 whatever the model's dtype */
};

struct toy {
    const struct toy_tensor *tensors;
    int tensor_count;
    int unit_count;
    int micro_batches;
    zero_dtype dtype;
    zero_dtype grad_dtype; /**< of tensors that are not wide; ZERO_DTYPE_DEFAULT: their own */
    uint64_t salt;         /**< other first values */
    const zero_group_desc *groups; /**< of the two groups; NULL: defaults */
    float boost;     /**< > 0: gradients are so much larger until the step divides it away */
    unsigned frozen; /**< a bit a tensor: registered so */
    bool absent;     /**< some micro-batches have no gradient of some units, and say so */
    bool raw;        /**< gradients overwrite what their buffer holds, instead of adding to it */
    bool unclipped;
    bool fused;           /**< fuses its steps; needs `unclipped` */
    void **borrow, **own; /**< the caller's working copy and gradient of each tensor; NULL: none */
};

enum { TOY_UNITS_MAX = 64 };

/** 5 units of odd sizes, a stacked tensor among them, 7 micro-batches, f32. */
extern const struct toy toy_odd;

/** First value of an element. */
float toy_value(const struct toy *toy, const char *name, int slice, uint64_t element);

/** Opens rank->z with rank->config, registers the model and commits. */
bool toy_open(struct team_rank *rank, const struct toy *toy);

/** Only registers: groups and tensors. The toy must outlive the commit. */
bool toy_register(struct team_rank *rank, const struct toy *toy);

/**
 * One micro-batch: forward through the units in order of `forward`, backward in order of `backward`
 * (NULL: ascending and descending). Gives the metric "sum", that of all weights seen on the way
 * forward.
 */
bool toy_micro(struct team_rank *rank, const struct toy *toy, int i, const zero_unit *forward,
               const zero_unit *backward);

/** zero_step() with fixed hyper-parameters, clipping, and the scale of a mean. */
zero_result toy_update(const struct team_rank *rank, const struct toy *toy);
/** The same in a stream. */
zero_result toy_update_on(const struct team_rank *rank, const struct toy *toy, zero_stream stream);

/** zero_step_in_backward() with the same. */
zero_result toy_fuse(const struct team_rank *rank, const struct toy *toy);

/** Whole steps in the usual order. */
bool toy_train(struct team_rank *rank, const struct toy *toy, int steps);

/** Sum of a gathered unit's weights, in a fixed order. */
double toy_unit_sum(const struct team_rank *rank, const struct toy *toy, zero_unit unit);

/** The tensor's slice in a unit, -1 if it has none there. */
int toy_slice_in(const struct toy_tensor *tensor, zero_unit unit);

/** Adds the gradient of one micro-batch, times a factor, to a slice's buffer, or writes it there.
 */
void toy_add_gradient(const struct toy *toy, const struct toy_tensor *tensor,
                      const zero_micro *micro, float factor, const void *weights, void *gradient);

/** Element of an array of `dtype`, widened. */
float toy_element(zero_dtype dtype, const void *array, uint64_t element);

/** The tensor's dtype in this model, and its gradient's. */
zero_dtype toy_dtype(const struct toy *toy, const struct toy_tensor *tensor);
zero_dtype toy_grad_dtype(const struct toy *toy, const struct toy_tensor *tensor);

#endif
