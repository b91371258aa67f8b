/**
 * layers.h: what a transformer has beside matrix products.
 *
 * Rows are tokens, width elements each, dense. Functions named _forward overwrite their results;
 * d_x is the gradient of the loss with respect to x. Results don't depend on the pool's threads:
 * sums over tokens run in the order of the tokens.
 */
#ifndef GPT2_LAYERS_H
#define GPT2_LAYERS_H

#include "blas.h"

/** One window of tokens after the other. */
struct batch {
    int windows; /**< sequences that don't see each other */
    int length;  /**< tokens of each */
};

/** out[row] = token_table[token[row]] + position_table[position of row]. */
void embedding_forward(struct pool *pool, real *out, const uint16_t *token, const real *token_table,
                       const real *position_table, struct batch batch, int width);

/** Adds to d_token_table and overwrites the first batch.length rows of d_position_table. */
void embedding_backward(struct pool *pool, real *d_token_table, real *d_position_table,
                        const real *d_out, const uint16_t *token, struct batch batch, int width);

/** Layer normalisation (Ba, Kiros, Hinton 2016), eps = 1e-5; mean and inverse deviation a row are
 * kept for the way back. */
void layernorm_forward(struct pool *pool, real *out, real *mean, real *inverse, const real *in,
                       const real *gain, const real *bias, int rows, int width);

/** Adds to d_in, overwrites d_gain and d_bias. */
void layernorm_backward(struct pool *pool, real *d_in, real *d_gain, real *d_bias,
                        const real *d_out, const real *in, const real *mean, const real *inverse,
                        const real *gain, int rows, int width);

/** GELU in its tanh form (Hendrycks, Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
 */
void gelu_forward(struct pool *pool, real *out, const real *in, size_t count);

/** Turns the gradient of the results into that of `in`, in place, and makes the results again. */
void gelu_backward(struct pool *pool, real *gradient, real *out, const real *in, size_t count);

/** Rows of the score matrix that attention holds at a time. */
#define ATTENTION_ROWS 64

/**
 * Causal self-attention of `heads` heads. qkv is rows x 3 width: queries, keys, values, each a head
 * after the other. For every window, head and row the largest score and the inverse of the sum
 * of exponents are kept (windows x heads x length each). scratch: pool_threads() times
 * 2 * ATTENTION_ROWS * batch.length elements.
 */
void attention_forward(struct pool *pool, real *out, real *largest, real *inverse, const real *qkv,
                       real *scratch, struct batch batch, int heads, int width);

/** d_qkv from d_out; scores are computed again rather than kept. */
void attention_backward(struct pool *pool, real *d_qkv, const real *d_out, const real *largest,
                        const real *inverse, const real *qkv, real *scratch, struct batch batch,
                        int heads, int width);

/**
 * Softmax and cross entropy: loss[row] = -log softmax(logits[row])[target[row]], and logits become
 * the gradient of `scale` times the sum of the losses.
 */
void cross_entropy(struct pool *pool, double *loss, real *logits, const uint16_t *target, int rows,
                   int classes, real scale);

#endif
