#include "lanes.h"
#include "layers.h"

#define ROWS_A_TASK 32
#define COLUMNS_A_TASK 64
#define EPSILON ((real)1e-5)

struct layernorm {
    real *out, *mean, *inverse;   // forward
    real *d_in, *d_gain, *d_bias; // backward
    const real *d_out, *in, *gain, *bias;
    const real *kept_mean, *kept_inverse;
    int rows, width;
};

// The sum of (x[i] - centre)^2.
INLINED real sum_of_squares(const real *x, real centre, int count)
{
    lanes sum = {0};
    for (int i = 0; i < count; i += LANES) {
        lanes v = {0};
        v += centre;
        lanes_load(&v, x + i, count - i);
        v -= centre;
        sum += v * v;
    }
    return lanes_sum(&sum);
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
        const real mean = row_sum(in, n->width) / (real)n->width;
        const real variance = sum_of_squares(in, mean, n->width) / (real)n->width;
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

// With x the normalised row and g = d_out * gain, a row's gradient is
// inverse * (g - mean(g) - x * mean(g x)).
INLINED void backward_row(real *restrict d_in, const real *d_out, const real *in, const real *gain,
                          real mean, real inverse, int width)
{
    lanes sum = {0}, product = {0};
    for (int i = 0; i < width; i += LANES) {
        lanes g = {0}, x = {0}, factor = {0};
        lanes_load(&g, d_out + i, width - i);
        lanes_load(&factor, gain + i, width - i);
        lanes_load(&x, in + i, width - i);
        g *= factor;
        sum += g;
        product += g * ((x - mean) * inverse);
    }
    const real mean_g = lanes_sum(&sum) / (real)width;
    const real mean_gx = lanes_sum(&product) / (real)width;
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
