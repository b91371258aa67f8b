/**
 * gpt2_kernels.h: the kernels of gpt2_kernels.cu, and what each one is given. C, and C++ too.
 *
 * A kernel has one argument, a structure, and comes twice: gpt2_NAME_f32 and gpt2_NAME_bf16, by the
 * type of what is `void` below; statistics and partial sums are fp32 in both. Rows are tokens,
 * `width` elements each, dense; widths are multiples of GPT2_PACK, and whatever is read or written
 * by packs begins at multiples of 16 bytes. All sums run in an order that the shapes decide: the
 * same bits every time.
 */
#ifndef GPT2_CUDA_KERNELS_H
#define GPT2_CUDA_KERNELS_H

#include <stdint.h>

#define GPT2_PACK 8           /**< elements a thread takes at a time */
#define GPT2_WARP 32          /**< threads of a warp */
#define GPT2_THREADS 256      /**< of a block, */
#define GPT2_TILE_THREADS 128 /**< but of attention on tensor cores, */
#define GPT2_LOSS_THREADS 512 /**< and of the loss: what a GPU does at a time fits its cache */
#define GPT2_WARPS (GPT2_THREADS / GPT2_WARP)
#define GPT2_RARE 64        /**< rows of a token that one warp adds up */
#define GPT2_LINE 64        /**< elements of which rows of logits are multiples */
#define GPT2_SUM_ROWS 32    /**< rows of a partial sum */
#define GPT2_SUM_COLUMNS 32 /**< columns that a block of sum_parts adds up */
#define GPT2_SUM_AHEAD 16   /**< chunks that a thread of it reads at once */
#define GPT2_TILE 64        /**< queries or keys of a tile, and the head's width there */
#define GPT2_HEAD_MAX 256   /**< the widest head */

/** Kernels by name and threads of a block. */
#define GPT2_KERNELS(X)                                                                            \
    X(embed, GPT2_THREADS)                                                                         \
    X(embed_back, GPT2_THREADS)                                                                    \
    X(position_back, GPT2_THREADS)                                                                 \
    X(norm, GPT2_THREADS)                                                                          \
    X(norm_back, GPT2_THREADS)                                                                     \
    X(norm_parts, GPT2_THREADS)                                                                    \
    X(bias_parts, GPT2_THREADS)                                                                    \
    X(sum_parts, GPT2_THREADS)                                                                     \
    X(gelu, GPT2_THREADS)                                                                          \
    X(gelu_back, GPT2_THREADS)                                                                     \
    X(loss, GPT2_LOSS_THREADS)                                                                     \
    X(mean_loss, GPT2_THREADS)                                                                     \
    X(attend, GPT2_THREADS)                                                                        \
    X(attend_delta, GPT2_THREADS)                                                                  \
    X(attend_back_query, GPT2_THREADS)                                                             \
    X(attend_back_key, GPT2_THREADS)

/** bf16 only: heads of GPT2_TILE elements, on tensor cores. */
#define GPT2_TILE_KERNELS(X)                                                                       \
    X(tile_delta, GPT2_THREADS)                                                                    \
    X(tile_attend, GPT2_TILE_THREADS)                                                              \
    X(tile_back_query, GPT2_TILE_THREADS)                                                          \
    X(tile_back_key, GPT2_TILE_THREADS)

/** out[row] = token_table[token[row]] + position_table[row % length]. A thread a pack. */
struct gpt2_embed {
    void *out;
    const uint16_t *token;
    const void *token_table, *position_table;
    int rows, length, width;
};

/** d_table[token] = sums[token] + the d_out of its rows, order[first[token]] to
 * order[first[token+1]-1], in that order; if there are more than GPT2_RARE of them each of a
 * block's warps adds every GPT2_WARPS-th up, and their sums are added in order. A warp 32 packs of
 * a token. `sums` may be d_table. */
struct gpt2_embed_back {
    void *d_table;
    const float *sums;
    const void *d_out;
    const int32_t *order, *first;
    int vocab, width;
};

/** d_table[position] = the sum over the windows, in order. A thread a pack. */
struct gpt2_position_back {
    void *d_table;
    const void *d_out;
    int windows, length, width;
};

/** Layer normalisation, eps = 1e-5; keeps mean and inverse deviation. A warp a row. */
struct gpt2_norm {
    void *out;
    float *mean, *inverse;
    const void *in, *gain, *bias;
    int rows, width;
};

/** The gradient of the results becomes that of `in`, and is added to d_in or, with `first`, written
 * there. A warp a row. */
struct gpt2_norm_back {
    void *d_in;
    const void *d_out, *in;
    const float *mean, *inverse;
    const void *gain;
    int rows, width, first;
};

/** parts[chunk][0] and [1]: of d_gain and d_bias over GPT2_SUM_ROWS rows. A thread a pack of
 * columns and a chunk. */
struct gpt2_norm_parts {
    float *parts;
    const void *d_out, *in;
    const float *mean, *inverse;
    int rows, width;
};

/** parts[chunk]: the sum of the rows of `in` over GPT2_SUM_ROWS of them. Likewise. */
struct gpt2_bias_parts {
    float *parts;
    const void *in;
    int rows, width;
};

/** out[column] = the sum over chunks of parts[chunk * stride + column]. A block GPT2_SUM_COLUMNS
 * columns. */
struct gpt2_sum_parts {
    void *out;
    const float *parts;
    int chunks, stride, columns;
};

/** GELU in its tanh form. A thread a pack. */
struct gpt2_gelu {
    void *out;
    const void *in;
    uint64_t packs;
};

/** The gradient of the results becomes that of `in`, in place. A thread a pack. */
struct gpt2_gelu_back {
    void *gradient;
    const void *in;
    uint64_t packs;
};

/** loss[row] = -log softmax(logits[row])[target[row]]; with `scale` not 0 the logits become the
 * gradient of `scale` times the sum of the losses. Rows of `stride` elements, a multiple of
 * GPT2_PACK, of which the first `classes` count. A block a row. */
struct gpt2_loss {
    float *loss;
    void *logits;
    const uint16_t *target;
    int classes, stride;
    float scale;
};

/** *mean = the mean of loss[0 .. rows-1]. One block. */
struct gpt2_mean_loss {
    float *mean;
    const float *loss;
    int rows;
};

/**
 * Causal self-attention. qkv is rows x 3 width: queries, keys, values, each a head after the other.
 * For every window, head and query forward keeps `weight`, log2 of the sum of e^score, from which
 * backward makes the probabilities again, and attend_delta `delta`, out times d_out.
 *
 * attend, attend_delta, attend_back_query: a warp a query; attend_back_key: a warp a key;
 * tile_...: a block a tile of GPT2_TILE of them. The number of either is windows x heads x length,
 * or x tiles of a length, in this order.
 */
struct gpt2_attention {
    void *out, *d_qkv;
    const void *qkv, *d_out;
    float *weight, *delta;
    int windows, length, heads, width;
    float scale; /**< of a score: 1 / sqrt(the head's width) */
};

#define gpt2_attend gpt2_attention
#define gpt2_attend_delta gpt2_attention
#define gpt2_attend_back_query gpt2_attention
#define gpt2_attend_back_key gpt2_attention
#define gpt2_tile_delta gpt2_attention
#define gpt2_tile_attend gpt2_attention
#define gpt2_tile_back_query gpt2_attention
#define gpt2_tile_back_key gpt2_attention

#endif
