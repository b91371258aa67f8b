/**
 * gpt2_tensors.h: the tensors of a GPT-2: names, shapes, units, first values.
 *
 * Names and layouts are those of Hugging Face's GPT-2. Unit 0 holds the embeddings, units 1 ..
 * layers a block each, unit layers+1 the last layer norm. The head is tied to wte.
 */
#ifndef GPT2_TENSORS_H
#define GPT2_TENSORS_H

#include <stddef.h>
#include <stdint.h>

/** The sizes that make a GPT-2. */
struct dims {
    int layers;
    int heads;
    int width; /**< a multiple of heads */
    int context;
    int vocab; /**< at most 65536: tokens are 16 bits */
};

/** The tensors of unit 0, */
enum embed_tensor { WTE, WPE, EMBED_TENSORS };

/** of a block's unit, */
enum block_tensor {
    LN_1_WEIGHT,
    LN_1_BIAS,
    C_ATTN_WEIGHT,
    C_ATTN_BIAS,
    ATTN_PROJ_WEIGHT,
    ATTN_PROJ_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    C_FC_WEIGHT,
    C_FC_BIAS,
    MLP_PROJ_WEIGHT,
    MLP_PROJ_BIAS,
    BLOCK_TENSORS
};

/** and of the last unit. */
enum final_tensor { LN_F_WEIGHT, LN_F_BIAS, FINAL_TENSORS };

#define UNIT_TENSORS_MAX BLOCK_TENSORS

/** How first values are drawn. */
enum tensor_init {
    INIT_ZEROS,
    INIT_ONES,
    INIT_NORMAL,  /**< normal(0, 0.02) */
    INIT_RESIDUAL /**< the same, divided by sqrt(2 layers) */
};

/** One tensor. */
struct tensor {
    char name[48];
    uint64_t shape[2];
    int ndim; /**< 1 or 2 */
    enum tensor_init init;
};

/** Number of units: layers + 2. */
int unit_count(const struct dims *dims);

/** Number of tensors of a unit. */
int unit_tensors(const struct dims *dims, int unit);

/** Tensor `index` of `unit`. */
struct tensor unit_tensor(const struct dims *dims, int unit, int index);

/** Its number of elements, */
size_t tensor_numel(const struct tensor *tensor);
/** and those of all tensors of a unit. */
size_t unit_numel(const struct dims *dims, int unit);

/**
 * Elements first .. first+count-1 of the first values of a tensor: a function of (seed, name,
 * element) alone.
 */
void tensor_fill(const struct tensor *tensor, const struct dims *dims, uint64_t seed,
                 uint64_t first, uint64_t count, float *out);

#endif
