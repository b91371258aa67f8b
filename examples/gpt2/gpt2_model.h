/**
 * gpt2_model.h: GPT-2, forward and backward, a unit at a time.
 *
 * Weights and gradients come by pointer, an array a unit in the order of gpt2_tensors.h, so that
 * the caller may gather a unit just before its call and release it right after. The order of a
 * micro-batch is
 *
 *     model_begin
 *     model_embed                            unit 0
 *     model_block          layers 0, 1, ...  unit 1 + layer
 *     model_head                             unit layers + 1, and unit 0: the head is tied
 *     model_block_backward layers ..., 1, 0  unit 1 + layer
 *     model_embed_backward                   the gradient of unit 0, begun by model_head
 *
 * No number depends on the pool's threads or on `recompute`, to the last bit.
 */
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H

#include "gpt2_tensors.h"
#include "layers.h"

struct model;

/**
 * Room for `windows` windows of dims->context tokens. recompute: activations of one block instead
 * of all are kept, and computed again in backward. The pool is borrowed. NULL: out of memory.
 */
struct model *model_create(const struct dims *dims, int windows, bool recompute, struct pool *pool);

/** Accepts NULL. */
void model_free(struct model *model);

/** Bytes of activations and scratch. */
size_t model_bytes(const struct model *model);

/** Begins with other tokens: batch.windows times batch.length, which must fit the room. The array
 * is borrowed until the last call on these tokens. */
void model_begin(struct model *model, const uint16_t *token, struct batch batch);

/** Forward through the embeddings. */
void model_embed(struct model *model, const real *const *embed);

/** Forward through block `layer`. */
void model_block(struct model *model, int layer, const real *const *block);

/**
 * The last layer norm and the head, forward and backward in one: returns the mean loss over the
 * batch. Overwrites d_final, and d_embed[WTE] with the head's share. All gradients, those of the
 * other units too, are those of loss_scale times the loss.
 */
double model_head(struct model *model, const uint16_t *target, real loss_scale,
                  const real *const *final, const real *const *embed, real *const *d_final,
                  real *const *d_embed);

/** After the last block, instead of model_head(): the mean loss over the batch, and no gradient. */
double model_loss(struct model *model, const uint16_t *target, const real *const *final,
                  const real *const *embed);

/** Backward through block `layer`; overwrites d_block. */
void model_block_backward(struct model *model, int layer, const real *const *block,
                          real *const *d_block);

/** Backward through the embeddings: adds to d_embed[WTE], overwrites d_embed[WPE]. */
void model_embed_backward(struct model *model, real *const *d_embed);

/** After the last block, instead of model_head(): the logits of the batch's rows first ..
 * first+rows-1; vocab elements each. */
void model_logits(struct model *model, int first, int rows, const real *const *final,
                  const real *const *embed, real *logits);

#endif
