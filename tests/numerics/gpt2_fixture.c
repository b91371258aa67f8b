#include "gpt2_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <zero/random.h>

static real ***tables_create(const struct dims *dims)
{
    real ***table = calloc((size_t)unit_count(dims), sizeof *table);
    assert_non_null(table);
    for (int u = 0; u < unit_count(dims); u++) {
        table[u] = calloc(UNIT_TENSORS_MAX, sizeof **table);
        assert_non_null(table[u]);
        for (int i = 0; i < unit_tensors(dims, u); i++) {
            const struct tensor tensor = unit_tensor(dims, u, i);
            table[u][i] = calloc(tensor_numel(&tensor), sizeof(real));
            assert_non_null(table[u][i]);
        }
    }
    return table;
}

static void tables_free(real ***table, const struct dims *dims)
{
    for (int u = 0; u < unit_count(dims); u++) {
        for (int i = 0; i < UNIT_TENSORS_MAX; i++)
            free(table[u][i]);
        free(table[u]);
    }
    free(table);
}

static void draw_weights(struct gpt2_fixture *f)
{
    for (int u = 0; u < unit_count(&f->dims); u++)
        for (int i = 0; i < unit_tensors(&f->dims, u); i++) {
            const struct tensor tensor = unit_tensor(&f->dims, u, i);
            const uint64_t stream = zero_random_stream(tensor.name);
            for (size_t e = 0; e < tensor_numel(&tensor); e++) {
                const double noise = 0.3 * zero_random_normal(7, stream, e);
                f->weight[u][i][e] = (real)(tensor.init == INIT_ONES ? 1 + noise : noise);
            }
        }
}

void gpt2_setup(struct gpt2_fixture *f, const struct dims *dims, struct batch batch, int threads,
                bool recompute)
{
    const size_t rows = (size_t)(batch.windows * batch.length);
    *f = (struct gpt2_fixture){.dims = *dims, .batch = batch};
    f->pool = pool_create(threads);
    assert_non_null(f->pool);
    f->model = model_create(dims, batch.windows, recompute, f->pool);
    assert_non_null(f->model);
    f->token = calloc(rows, sizeof *f->token);
    f->target = calloc(rows, sizeof *f->target);
    assert_non_null(f->token);
    assert_non_null(f->target);
    for (size_t i = 0; i < rows; i++) {
        f->token[i] = (uint16_t)(zero_random_bits(7, 1, i) % (uint64_t)dims->vocab);
        f->target[i] = (uint16_t)(zero_random_bits(7, 2, i) % (uint64_t)dims->vocab);
    }
    f->weight = tables_create(dims);
    f->gradient = tables_create(dims);
    draw_weights(f);
}

void gpt2_teardown(struct gpt2_fixture *f)
{
    tables_free(f->weight, &f->dims);
    tables_free(f->gradient, &f->dims);
    free(f->token);
    free(f->target);
    model_free(f->model);
    pool_free(f->pool);
}

static const real *const *weights_of(const struct gpt2_fixture *f, int unit)
{
    return (const real *const *)f->weight[unit];
}

static void forward(struct gpt2_fixture *f)
{
    model_begin(f->model, f->token, f->batch);
    model_embed(f->model, weights_of(f, 0));
    for (int layer = 0; layer < f->dims.layers; layer++)
        model_block(f->model, layer, weights_of(f, 1 + layer));
}

double gpt2_loss_alone(struct gpt2_fixture *f)
{
    forward(f);
    return model_loss(f->model, f->target, weights_of(f, f->dims.layers + 1), weights_of(f, 0));
}

double gpt2_loss(struct gpt2_fixture *f)
{
    const int last = f->dims.layers + 1;
    forward(f);
    return model_head(f->model, f->target, 1, weights_of(f, last), weights_of(f, 0),
                      f->gradient[last], f->gradient[0]);
}

double gpt2_loss_and_gradient(struct gpt2_fixture *f)
{
    const double loss = gpt2_loss(f);
    for (int layer = f->dims.layers - 1; layer >= 0; layer--)
        model_block_backward(f->model, layer, weights_of(f, 1 + layer), f->gradient[1 + layer]);
    model_embed_backward(f->model, f->gradient[0]);
    return loss;
}
