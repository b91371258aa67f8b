#include "layers.h"

#define ELEMENTS_A_TASK 16384

// 2 sqrt(2/pi): tanh(u) = 2 sigmoid(2u) - 1, so that gelu(x) = x sigmoid(SLOPE (x + CUBIC x^3)).
#define SLOPE ((real)1.5957691216057307)
#define CUBIC ((real)0.044715)

struct gelu {
    real *out, *gradient;
    const real *in;
};

INLINED real gate(real x)
{
    return 1 / (1 + real_exp(-SLOPE * (x + CUBIC * x * x * x)));
}

BEST_ISA
static void forward_range(void *arg, size_t first, size_t count)
{
    const struct gelu *g = arg;
    const real *in = g->in + first;
    real *restrict out = g->out + first;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] * gate(in[i]);
}

void gelu_forward(struct pool *pool, real *out, const real *in, size_t count)
{
    struct gelu g = {.out = out, .in = in};
    pool_run_parts(pool, forward_range, &g, count, ELEMENTS_A_TASK);
}

BEST_ISA
static void backward_range(void *arg, size_t first, size_t count)
{
    const struct gelu *g = arg;
    const real *in = g->in + first;
    real *restrict out = g->out + first;
    real *restrict gradient = g->gradient + first;
    for (size_t i = 0; i < count; i++) {
        const real x = in[i], s = gate(x);
        out[i] = x * s;
        gradient[i] *= s + x * s * (1 - s) * SLOPE * (1 + 3 * CUBIC * x * x);
    }
}

void gelu_backward(struct pool *pool, real *gradient, real *out, const real *in, size_t count)
{
    struct gelu g = {.gradient = gradient, .out = out, .in = in};
    pool_run_parts(pool, backward_range, &g, count, ELEMENTS_A_TASK);
}
