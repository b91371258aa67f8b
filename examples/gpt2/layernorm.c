#include "layers.h"

#define ROWS_A_TASK 32
#define COLUMNS_A_TASK 64
#define EPSILON ((real)1e-5)

struct layernorm {
    real *out, *mean, *inverse;   /* forward */
    real *d_in, *d_gain, *d_bias; /* backward */
    const real *d_out, *in, *gain, *bias;
    const real *kept_mean, *kept_inverse;
    int rows, width;
};

INLINED real sum_of(const real *x, int count)
{
    real lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += x[i + j];
    for (int j = 0; i + j < count; j++)
        lane[j] += x[i + j];
    return lanes_sum(lane);
}

INLINED real sum_of_squares_about(const real *x, real centre, int count)
{
    real lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (x[i + j] - centre) * (x[i + j] - centre);
    for (int j = 0; i + j < count; j++)
        lane[j] += (x[i + j] - centre) * (x[i + j] - centre);
    return lanes_sum(lane);
}

BEST_ISA
static void forward_rows(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct layernorm *n = arg;
    const int first = (int)index * ROWS_A_TASK;
    const int end = first + ROWS_A_TASK < n->rows ? first + ROWS_A_TASK : n->rows;
    for (int row = first; row < end; row++) {
        const real *in = n->in + (size_t)row * (size_t)n->width;
        real *restrict out = n->out + (size_t)row * (size_t)n->width;
        const real mean = sum_of(in, n->width) / (real)n->width;
        const real variance = sum_of_squares_about(in, mean, n->width) / (real)n->width;
        const real inverse = 1 / real_sqrt(variance + EPSILON);
        for (int j = 0; j < n->width; j++)
            out[j] = (in[j] - mean) * inverse * n->gain[j] + n->bias[j];
        n->mean[row] = mean;
        n->inverse[row] = inverse;
    }
}

void layernorm_forward(struct pool *pool, real *out, real *mean, real *inverse, const real *in,
                       const real *gain, const real *bias, int rows, int width)
{
    struct layernorm n = {.out = out,
                          .mean = mean,
                          .inverse = inverse,
                          .in = in,
                          .gain = gain,
                          .bias = bias,
                          .rows = rows,
                          .width = width};
    pool_run(pool, forward_rows, &n, (size_t)(rows + ROWS_A_TASK - 1) / ROWS_A_TASK);
}

/* With x the normalised row and g = d_out * gain, a row's gradient is
 * inverse * (g - mean(g) - x * mean(g x)). */
INLINED void backward_row(real *restrict d_in, const real *d_out, const real *in, const real *gain,
                          real mean, real inverse, int width)
{
    real sum[LANES] = {0}, product[LANES] = {0};
    int i = 0;
    for (; i + LANES <= width; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const real g = d_out[i + j] * gain[i + j];
            sum[j] += g;
            product[j] += g * ((in[i + j] - mean) * inverse);
        }
    for (int j = 0; i + j < width; j++) {
        const real g = d_out[i + j] * gain[i + j];
        sum[j] += g;
        product[j] += g * ((in[i + j] - mean) * inverse);
    }
    const real mean_g = lanes_sum(sum) / (real)width;
    const real mean_gx = lanes_sum(product) / (real)width;
    for (int j = 0; j < width; j++) {
        const real g = d_out[j] * gain[j];
        const real x = (in[j] - mean) * inverse;
        d_in[j] += (g - mean_g - x * mean_gx) * inverse;
    }
}

BEST_ISA
static void backward_rows(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct layernorm *n = arg;
    const int first = (int)index * ROWS_A_TASK;
    const int end = first + ROWS_A_TASK < n->rows ? first + ROWS_A_TASK : n->rows;
    for (int row = first; row < end; row++) {
        const size_t at = (size_t)row * (size_t)n->width;
        backward_row(n->d_in + at, n->d_out + at, n->in + at, n->gain, n->kept_mean[row],
                     n->kept_inverse[row], n->width);
    }
}

BEST_ISA
static void backward_columns(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct layernorm *n = arg;
    const int first = (int)index * COLUMNS_A_TASK;
    const int count = n->width - first < COLUMNS_A_TASK ? n->width - first : COLUMNS_A_TASK;
    real gain[COLUMNS_A_TASK] = {0}, bias[COLUMNS_A_TASK] = {0};
    for (int row = 0; row < n->rows; row++) {
        const size_t at = (size_t)row * (size_t)n->width + (size_t)first;
        const real *d_out = n->d_out + at, *in = n->in + at;
        const real mean = n->kept_mean[row], inverse = n->kept_inverse[row];
        for (int j = 0; j < count; j++) {
            gain[j] += d_out[j] * ((in[j] - mean) * inverse);
            bias[j] += d_out[j];
        }
    }
    memcpy(n->d_gain + first, gain, (size_t)count * sizeof *gain);
    memcpy(n->d_bias + first, bias, (size_t)count * sizeof *bias);
}

void layernorm_backward(struct pool *pool, real *d_in, real *d_gain, real *d_bias,
                        const real *d_out, const real *in, const real *mean, const real *inverse,
                        const real *gain, int rows, int width)
{
    struct layernorm n = {.d_in = d_in,
                          .d_gain = d_gain,
                          .d_bias = d_bias,
                          .d_out = d_out,
                          .in = in,
                          .gain = gain,
                          .kept_mean = mean,
                          .kept_inverse = inverse,
                          .rows = rows,
                          .width = width};
    pool_run(pool, backward_rows, &n, (size_t)(rows + ROWS_A_TASK - 1) / ROWS_A_TASK);
    pool_run(pool, backward_columns, &n, (size_t)(width + COLUMNS_A_TASK - 1) / COLUMNS_A_TASK);
}
