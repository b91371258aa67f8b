/**
 * gpt2_fixture.h: a small GPT-2 with weights, gradients and tokens, for tests of the model alone.
 */
#ifndef TESTS_GPT2_FIXTURE_H
#define TESTS_GPT2_FIXTURE_H

#include "gpt2_model.h"

#include <stdbool.h>

/** What one test works with. */
struct gpt2_fixture {
    struct dims dims;
    struct batch batch;
    struct pool *pool;
    struct model *model;
    uint16_t *token;  /**< batch.windows * batch.length */
    uint16_t *target; /**< as many */
    real ***weight;   /**< weight[unit][tensor][element] */
    real ***gradient;
};

/** Builds it: random weights (all tensors, norms and biases too), tokens and targets; fails the
 * test where it can't. */
void gpt2_setup(struct gpt2_fixture *f, const struct dims *dims, struct batch batch, int threads,
                bool recompute);

/** Frees everything. */
void gpt2_teardown(struct gpt2_fixture *f);

/** Forward only: the mean loss. Gradients are scratch. */
double gpt2_loss(struct gpt2_fixture *f);

/** Forward only, by model_loss(), as in an evaluation. */
double gpt2_loss_alone(struct gpt2_fixture *f);

/** Forward and backward: the mean loss, and all gradients. */
double gpt2_loss_and_gradient(struct gpt2_fixture *f);

#endif
