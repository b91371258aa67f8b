#include "layers.h"

#define ROWS_A_TASK 32
#define COLUMNS_A_TASK 64

struct embedding {
    real *out, *d_token_table, *d_position_table;
    const real *d_out, *token_table, *position_table;
    const uint16_t *token;
    struct batch batch;
    int rows, width;
};

BEST_ISA
static void forward_rows(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct embedding *e = arg;
    const size_t width = (size_t)e->width;
    const int first = (int)index * ROWS_A_TASK;
    const int end = first + ROWS_A_TASK < e->rows ? first + ROWS_A_TASK : e->rows;
    for (int row = first; row < end; row++) {
        real *restrict out = e->out + (size_t)row * width;
        const real *token = e->token_table + e->token[row] * width;
        const real *position = e->position_table + (size_t)(row % e->batch.length) * width;
        for (size_t j = 0; j < width; j++)
            out[j] = token[j] + position[j];
    }
}

void embedding_forward(struct pool *pool, real *out, const uint16_t *token, const real *token_table,
                       const real *position_table, struct batch batch, int width)
{
    struct embedding e = {.out = out,
                          .token = token,
                          .token_table = token_table,
                          .position_table = position_table,
                          .batch = batch,
                          .rows = batch.windows * batch.length,
                          .width = width};
    pool_run(pool, forward_rows, &e, (size_t)(e.rows + ROWS_A_TASK - 1) / ROWS_A_TASK);
}

// Tasks own columns, not rows: a token may occur in any of the rows.
BEST_ISA
static void backward_columns(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct embedding *e = arg;
    const size_t width = (size_t)e->width, first = index * COLUMNS_A_TASK;
    const size_t count = width - first < COLUMNS_A_TASK ? width - first : COLUMNS_A_TASK;
    for (int row = 0; row < e->rows; row++) {
        const real *d_out = e->d_out + (size_t)row * width + first;
        real *restrict token = e->d_token_table + e->token[row] * width + first;
        real *restrict position =
            e->d_position_table + (size_t)(row % e->batch.length) * width + first;
        for (size_t j = 0; j < count; j++)
            token[j] += d_out[j];
        if (row < e->batch.length)
            memcpy(position, d_out, count * sizeof *position);
        else
            for (size_t j = 0; j < count; j++)
                position[j] += d_out[j];
    }
}

void embedding_backward(struct pool *pool, real *d_token_table, real *d_position_table,
                        const real *d_out, const uint16_t *token, struct batch batch, int width)
{
    struct embedding e = {.d_token_table = d_token_table,
                          .d_position_table = d_position_table,
                          .d_out = d_out,
                          .token = token,
                          .batch = batch,
                          .rows = batch.windows * batch.length,
                          .width = width};
    pool_run(pool, backward_columns, &e, (size_t)(width + COLUMNS_A_TASK - 1) / COLUMNS_A_TASK);
}
