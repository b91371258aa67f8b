/**
 * A model whose gradients are a formula: of the parameters, the step and the micro-batch, and of
 * nothing else. It trains in milliseconds, uses every feature of a unit (tied, stacked, persistent,
 * scalar, mixed types, two groups), and all its arithmetic is ours, so that its bits are known
 * (synthetic_golden, synthetic_matrix.h) and its values can be followed in higher precision
 * (synthetic_reference.h).
 *
 * Forward goes through the units and carries a number h along; backward gives element e of a tensor
 *     0.1 * w[e] + 0.05 * h * pattern(e) + noise(step, micro-batch, e)
 * and the tied unit, which stays open from one end of backward to the other, a second part of it.
 * The noise of the micro-batches differs in size, so that their order of summation matters, and
 * micro-batches that don't count are full of NaN, as are gradients that no rank looks at.
 */
#ifndef TESTS_NUMERICS_SYNTHETIC_H
#define TESTS_NUMERICS_SYNTHETIC_H

#include <zero/zero.h>

#include <stdbool.h>

enum { SYNTHETIC_TENSORS = 6, SYNTHETIC_UNITS = 5, SYNTHETIC_GROUPS = 2 };

/** Where first values come from. */
enum synthetic_first { FIRST_FILL, FIRST_DATA, FIRST_ZEROS };

struct synthetic_tensor {
    const char *name;
    int32_t ndim;
    uint64_t shape[2];
    zero_unit unit;
    int32_t slices; /**< > 1: stacked */
    zero_group group;
    enum synthetic_first first;
    bool narrow; /**< bf16 where types are mixed, and with a grad_dtype where there is one */
};

extern const struct synthetic_tensor synthetic_tensors[SYNTHETIC_TENSORS];

/** A value to put into a gradient in place of the right one. */
struct synthetic_fault {
    bool on;
    uint64_t step, micro;
    zero_param param;
    int32_t slice;
    uint64_t element;
    float value;
};

enum { SYNTHETIC_FAULTS = 3 };

/** What updates a group's tensors; weights decay in the optimizer's own way unless told otherwise.
 */
enum synthetic_optimizer {
    SYNTHETIC_ADAMW,
    SYNTHETIC_ADAM,
    SYNTHETIC_SGD, /**< with momentum */
    SYNTHETIC_NESTEROV,
    SYNTHETIC_LION,
    SYNTHETIC_ADAGRAD,
    SYNTHETIC_OPTIMIZERS
};

/** An array for each tensor, of either type. */
struct synthetic_memory {
    uint32_t tensors[SYNTHETIC_TENSORS][3 * 1025];
};

struct synthetic {
    zero_dtype dtype; /**< of all tensors; ZERO_DTYPE_DEFAULT: mixed */
    int32_t micro_batches;
    int32_t sum_group;     /**< 0: 1 */
    zero_dtype grad_dtype; /**< of the narrow tensors; ZERO_DTYPE_DEFAULT: their own */
    zero_dtype comm_dtype;
    bool no_masters, narrow_moments; /**< master=none, moments=bf16 */
    bool tied;                       /**< unit 0 stays open during the whole of backward */
    bool absent;                     /**< some micro-batches have no gradient of some units, */
    bool none; /**< and say so, instead of handing zeros over; the same bits */
    /** The caller's memory for working copies and gradients of all tensors, or NULL: the engine's;
     * the same bits. */
    struct synthetic_memory *borrow, *own;
    unsigned frozen; /**< a bit a tensor: registered so */
    int32_t paused;  /**< so many groups, the first ones, are frozen for some steps */
    /** The library is called with denormals flushed and rounding upwards, as a program built with
     * -ffast-math may do; the program's own arithmetic is not affected. */
    bool hostile;
    struct synthetic_fault faults[SYNTHETIC_FAULTS];
    bool unclipped; /**< other bits */
    bool fused;     /**< every step but those that are passed over is fused before its last
                         backward; needs `unclipped` */
    enum synthetic_optimizer optimizer[SYNTHETIC_GROUPS];
    bool undecayed, other_decay; /**< no decay; L2 instead of decoupled, or the reverse */
    /** Multiplied by a loss scale: a fixed one, or with `skips` a dynamic one, which is small, or
     * for f16 so large that it overflows at first and again each time it has grown. */
    bool scaled;
    bool skips;  /**< steps that are not finite are skipped; else they are an error */
    bool passes; /**< the program itself skips some steps: synthetic_passed() */
};

/** Elements of one slice. */
uint64_t synthetic_numel(const struct synthetic_tensor *tensor);

/** Type of a tensor in this model. */
zero_dtype synthetic_dtype(const struct synthetic *model, const struct synthetic_tensor *tensor);
/** And of its gradient. */
zero_dtype synthetic_grad_dtype(const struct synthetic *model,
                                const struct synthetic_tensor *tensor);

/** Sets what of the configuration is part of the numerics. */
void synthetic_configure(const struct synthetic *model, zero_config *config);

/** The formula's ingredients, in [-1, 1) times a size; exact in fp32. */
double synthetic_first_value(zero_param param, int32_t slice, uint64_t element);
double synthetic_pattern(zero_param param, int32_t slice, uint64_t element);
double synthetic_noise(uint64_t step, uint64_t micro, zero_param param, int32_t slice,
                       uint64_t element);
/** What forward starts with. */
double synthetic_input(uint64_t step, uint64_t micro);

/** Hyper-parameters of a step (from 0), one a group. */
void synthetic_hyper(const struct synthetic *model, uint64_t step,
                     zero_hyper hyper[SYNTHETIC_GROUPS]);

/** The registered form of a group: its optimizer and how its weights decay. */
zero_group_desc synthetic_group(const struct synthetic *model, zero_group group);

/** The loss scale a model starts with; 1: it has none. */
double synthetic_loss_scale(const struct synthetic *model);

/** Whether the program ends a step without an update. */
bool synthetic_passed(const struct synthetic *model, uint64_t step);

/** Clipping, unless it is off: some steps are above it, some below. */
double synthetic_max_norm(void);

/** Registers groups and tensors and commits. */
zero_result synthetic_commit(zero_ctx *z, const struct synthetic *model);

/** One local micro-batch. Metrics: "loss" is h * h, "index" the micro-batch's index. */
zero_result synthetic_micro(zero_ctx *z, const struct synthetic *model, int32_t i);

/** A whole evaluation, with the same metrics, of inputs that are no step's. */
zero_result synthetic_evaluate(zero_ctx *z, const struct synthetic *model, int32_t count);

/** All micro-batches of a step, then zero_step() or zero_skip_step(). The first failure of all
 * calls. */
zero_result synthetic_step(zero_ctx *z, const struct synthetic *model, uint64_t step);

/** An fp32 value rounded to a type, to nearest even. */
float synthetic_round(zero_dtype dtype, float value);

/** An element of an array of this type, widened. */
float synthetic_element(zero_dtype dtype, const void *array, uint64_t element);

/** The fingerprint after 20 steps as hex, for a model's precision, number of micro-batches and
 * sum_group, and for what is absent, paused and not clipped. It does not depend on tied or fused,
 * nor on how a missing gradient is told. NULL if there is none. */
const char *synthetic_golden(const struct synthetic *model);

/** Tensors to freeze: a part of the tied unit, of the stacked ones, and all of the last. */
enum { SYNTHETIC_TIED = 1 << 1, SYNTHETIC_BIASES = 1 << 3, SYNTHETIC_TAIL = 1 << 4 | 1 << 5 };

/** Steps, and those in which `paused` groups are frozen: the first, and the first one after. */
enum { SYNTHETIC_STEPS = 20, SYNTHETIC_PAUSE = 5, SYNTHETIC_RESUME = 12 };

enum { SYNTHETIC_HELD_OUT = 1000 };

/** Clean steps in a row that double a dynamic loss scale. */
enum { SYNTHETIC_WINDOW = 2 };

#endif
