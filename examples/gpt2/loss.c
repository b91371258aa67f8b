#include "lanes.h"
#include "layers.h"

#define ROWS_A_TASK 4

struct cross_entropy {
    double *loss;
    real *logits;
    const uint16_t *target;
    int rows, classes;
    real scale;
};

BEST_ISA
static void cross_entropy_rows(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct cross_entropy *c = arg;
    const int first = (int)index * ROWS_A_TASK;
    const int end = first + ROWS_A_TASK < c->rows ? first + ROWS_A_TASK : c->rows;
    for (int row = first; row < end; row++) {
        real *logits = c->logits + (size_t)row * (size_t)c->classes;
        const uint16_t target = c->target[row];
        const real largest = row_largest(logits, c->classes);
        const real wanted = logits[target] - largest;
        const real sum = row_exponentials(logits, largest, c->classes);
        c->loss[row] = log((double)sum) - (double)wanted;
        const real factor = c->scale / sum;
        for (int j = 0; j < c->classes; j++)
            logits[j] *= factor;
        logits[target] -= c->scale;
    }
}

void cross_entropy(struct pool *pool, double *loss, real *logits, const uint16_t *target, int rows,
                   int classes, real scale)
{
    struct cross_entropy c = {.loss = loss,
                              .logits = logits,
                              .target = target,
                              .rows = rows,
                              .classes = classes,
                              .scale = scale};
    pool_run(pool, cross_entropy_rows, &c, (size_t)(rows + ROWS_A_TASK - 1) / ROWS_A_TASK);
}
