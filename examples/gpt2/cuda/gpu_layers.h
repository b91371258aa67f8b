/**
 * cuda/gpu_layers.h: the layers of a GPT-2 as work for a GPU, by the names and with the conventions
 * of layers.h and linear.h. All pointers are memory of the GPU; `void` is of the layers' dtype.
 */
#ifndef GPT2_CUDA_GPU_LAYERS_H
#define GPT2_CUDA_GPU_LAYERS_H

#include "layers.h"

#include "products.h"

struct layers {
    struct gpu *gpu;
    struct products *products;
    enum gpu_dtype dtype;
    float *parts; /**< scratch of layers_parts() bytes */
};

/** What a layer norm keeps for the way back, a row each. */
struct normed {
    float *mean, *inverse;
};

/** Bytes of scratch for sums over `rows` rows of at most `width` elements. */
size_t layers_parts(int rows, int width);

void layers_embed(const struct layers *l, void *out, const uint16_t *token, const void *token_table,
                  const void *position_table, struct batch batch, int width);

/** d_token_table = sums (fp32, and may be it) + what the tokens' rows add; d_position_table. The
 * rows of a token are order[first[token]] .. order[first[token + 1] - 1]. */
void layers_embed_back(const struct layers *l, void *d_token_table, void *d_position_table,
                       const float *sums, const void *d_out, const int32_t *order,
                       const int32_t *first, struct batch batch, int width, int vocab);

void layers_norm(const struct layers *l, void *out, const struct normed *normed, const void *in,
                 const void *gain, const void *bias, int rows, int width);

/** Adds to d_in or, with `first`, overwrites it. */
void layers_norm_back(const struct layers *l, void *d_in, void *d_gain, void *d_bias,
                      const void *d_out, const void *in, const struct normed *normed,
                      const void *gain, int rows, int width, bool first);

/** out = in weight + bias, + residual unless NULL. */
void layers_linear(const struct layers *l, void *out, const void *in, const void *weight,
                   const void *bias, const void *residual, int rows, int ins, int outs);

/** hidden = in weight + bias, out = GELU(hidden). */
void layers_linear_gelu(const struct layers *l, void *out, void *hidden, const void *in,
                        const void *weight, const void *bias, int rows, int ins, int outs);

void layers_linear_back_in(const struct layers *l, void *d_in, const void *d_out,
                           const void *weight, int rows, int ins, int outs);

/** Of out = GELU(hidden) weight + ...: d_hidden, and active = GELU(hidden). */
void layers_linear_gelu_back(const struct layers *l, void *d_hidden, void *active,
                             const void *d_out, const void *weight, void *hidden, int rows, int ins,
                             int outs);

void layers_linear_back_weight(const struct layers *l, void *d_weight, void *d_bias, const void *in,
                               const void *d_out, int rows, int ins, int outs);

/** Keeps `weight`, a number a window, head and row. */
void layers_attend(const struct layers *l, void *out, float *weight, const void *qkv,
                   struct batch batch, int heads, int width);

/** `out` is forward's; delta: scratch, as many numbers as `weight`. */
void layers_attend_back(const struct layers *l, void *d_qkv, const void *d_out, void *out,
                        float *weight, float *delta, const void *qkv, struct batch batch, int heads,
                        int width);

#endif
