// Logits, loss, gradients and weights after AdamW against golden/make_gpt2.py (PyTorch, float64),
// element by element. Compiled for float and for double. Argument: the folder of golden files.
#include "golden_file.h"
#include "gpt2_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

// Sizes and hyper-parameters of make_gpt2.py.
#define LAYERS 2
#define HEADS 3
#define WIDTH 18
#define CONTEXT 9
#define VOCAB 37
#define WINDOWS 2
#define MICRO_BATCHES 2
#define STEPS 3
#define TOKENS 101
#define ROWS (WINDOWS * CONTEXT)

// Errors are measured against the largest element of the tensor: an element is a sum of terms
// of that size.
#ifdef GPT2_DOUBLE
#define TOLERANCE 1e-13
#define AFTER_TOLERANCE 1e-11
#else
#define TOLERANCE 2e-6
#define AFTER_TOLERANCE 2e-5
#endif

static const struct dims dims = {
    .layers = LAYERS, .heads = HEADS, .width = WIDTH, .context = CONTEXT, .vocab = VOCAB};

static const char *folder;

static void compare(const char *name, const real *values, const double *expected, size_t numel,
                    double tolerance)
{
    double scale = 0;
    for (size_t i = 0; i < numel; i++)
        scale = fmax(scale, fabs(expected[i]));
    // The gradient of a key's bias is zero, and noise is all there is of it.
    scale = fmax(scale, 1e-2);
    for (size_t i = 0; i < numel; i++)
        if (!(fabs((double)values[i] - expected[i]) <= tolerance * scale))
            fail_msg("%s[%zu] is %.9g, golden %.9g, off by %.2g of the tensor's largest", name, i,
                     (double)values[i], expected[i], fabs((double)values[i] - expected[i]) / scale);
}

// What every test works on: the model with golden weights, and the data.
struct golden_run {
    struct gpt2_fixture f;
    struct golden_file *golden;
    uint16_t data[TOKENS];
};

static int run_setup(void **state)
{
    struct golden_run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    gpt2_setup(&run->f, &dims, (struct batch){.windows = WINDOWS, .length = CONTEXT}, 1, false);
    run->golden = golden_open(folder, "gpt2_golden.safetensors");

    struct golden_file *init = golden_open(folder, "gpt2_init.safetensors");
    for (int u = 0; u < unit_count(&dims); u++)
        for (int i = 0; i < unit_tensors(&dims, u); i++) {
            const struct tensor tensor = unit_tensor(&dims, u, i);
            const size_t numel = tensor_numel(&tensor);
            const double *values = golden_tensor(init, tensor.name, numel);
            for (size_t e = 0; e < numel; e++)
                run->f.weight[u][i][e] = (real)values[e];
        }
    golden_close(init);

    char path[4096];
    snprintf(path, sizeof path, "%s/gpt2_tokens.bin", folder);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(run->data, sizeof *run->data, TOKENS, stream), TOKENS);
    fclose(stream);
    *state = run;
    return 0;
}

static int run_teardown(void **state)
{
    struct golden_run *run = *state;
    golden_close(run->golden);
    gpt2_teardown(&run->f);
    free(run);
    return 0;
}

// Micro-batch `index` of step `step`, both from 0, in sequential order.
static void take_micro_batch(struct golden_run *run, int step, int index)
{
    const int range = (TOKENS - 1) / CONTEXT * CONTEXT;
    for (int b = 0; b < WINDOWS; b++) {
        const int sample = (step * MICRO_BATCHES + index) * WINDOWS + b;
        const uint16_t *window = run->data + sample * CONTEXT % range;
        memcpy(run->f.token + b * CONTEXT, window, CONTEXT * sizeof *window);
        memcpy(run->f.target + b * CONTEXT, window + 1, CONTEXT * sizeof *window);
    }
}

static void test_logits(void **state)
{
    struct golden_run *run = *state;
    struct gpt2_fixture *f = &run->f;
    static real logits[ROWS * VOCAB];
    take_micro_batch(run, 0, 0);
    gpt2_loss(f);
    model_logits(f->model, 0, ROWS, (const real *const *)f->weight[LAYERS + 1],
                 (const real *const *)f->weight[0], logits);
    compare("logits", logits, golden_tensor(run->golden, "logits", ROWS * VOCAB), ROWS * VOCAB,
            TOLERANCE);
}

static void test_gradients(void **state)
{
    struct golden_run *run = *state;
    take_micro_batch(run, 0, 0);
    gpt2_loss_and_gradient(&run->f);
    for (int u = 0; u < unit_count(&dims); u++)
        for (int i = 0; i < unit_tensors(&dims, u); i++) {
            const struct tensor tensor = unit_tensor(&dims, u, i);
            const size_t numel = tensor_numel(&tensor);
            char name[64];
            snprintf(name, sizeof name, "grad.%s", tensor.name);
            compare(name, run->f.gradient[u][i], golden_tensor(run->golden, name, numel), numel,
                    TOLERANCE);
        }
}

// What AdamW keeps, for all tensors one after the other.
struct adamw {
    double *gradient, *m, *v;
    size_t numel;
};

static size_t model_numel(void)
{
    size_t numel = 0;
    for (int u = 0; u < unit_count(&dims); u++)
        numel += unit_numel(&dims, u);
    return numel;
}

static void add_gradient(struct golden_run *run, struct adamw *a)
{
    size_t at = 0;
    for (int u = 0; u < unit_count(&dims); u++)
        for (int i = 0; i < unit_tensors(&dims, u); i++) {
            const struct tensor tensor = unit_tensor(&dims, u, i);
            for (size_t e = 0; e < tensor_numel(&tensor); e++)
                a->gradient[at++] += (double)run->f.gradient[u][i][e] / MICRO_BATCHES;
        }
}

static double gradient_norm(const struct adamw *a)
{
    double sum = 0;
    for (size_t i = 0; i < a->numel; i++)
        sum += a->gradient[i] * a->gradient[i];
    return sqrt(sum);
}

// Update n (from 1) of Loshchilov, Hutter 2019, with the values of make_gpt2.py.
static void adamw_update(struct golden_run *run, struct adamw *a, int n, double rate, double clip)
{
    const double beta1 = 0.9, beta2 = 0.95, eps = 1e-4;
    size_t at = 0;
    for (int u = 0; u < unit_count(&dims); u++)
        for (int i = 0; i < unit_tensors(&dims, u); i++) {
            const struct tensor tensor = unit_tensor(&dims, u, i);
            const double decay = tensor.ndim == 2 ? 0.1 : 0;
            for (size_t e = 0; e < tensor_numel(&tensor); e++, at++) {
                const double g = a->gradient[at] * clip;
                a->m[at] = beta1 * a->m[at] + (1 - beta1) * g;
                a->v[at] = beta2 * a->v[at] + (1 - beta2) * g * g;
                const double m = a->m[at] / (1 - pow(beta1, n));
                const double v = a->v[at] / (1 - pow(beta2, n));
                const double w = (double)run->f.weight[u][i][e] * (1 - rate * decay);
                run->f.weight[u][i][e] = (real)(w - rate * m / (sqrt(v) + eps));
            }
        }
}

static void test_three_steps(void **state)
{
    struct golden_run *run = *state;
    const double *losses = golden_tensor(run->golden, "loss", STEPS);
    const double *norms = golden_tensor(run->golden, "norm", STEPS);
    const double *rates = golden_tensor(run->golden, "rate", STEPS);
    struct adamw a = {.numel = model_numel()};
    a.gradient = calloc(3 * a.numel, sizeof *a.gradient);
    assert_non_null(a.gradient);
    a.m = a.gradient + a.numel;
    a.v = a.m + a.numel;
    for (int step = 0; step < STEPS; step++) {
        double loss = 0;
        memset(a.gradient, 0, a.numel * sizeof *a.gradient);
        for (int index = 0; index < MICRO_BATCHES; index++) {
            take_micro_batch(run, step, index);
            loss += gpt2_loss_and_gradient(&run->f) / MICRO_BATCHES;
            add_gradient(run, &a);
        }
        const double norm = gradient_norm(&a);
        assert_true(fabs(loss - losses[step]) <= AFTER_TOLERANCE * losses[step]);
        assert_true(fabs(norm - norms[step]) <= AFTER_TOLERANCE * norms[step]);
        adamw_update(run, &a, step + 1, rates[step], fmin(1, 0.5 / (norm + 1e-6)));
    }
    free(a.gradient);
    for (int u = 0; u < unit_count(&dims); u++)
        for (int i = 0; i < unit_tensors(&dims, u); i++) {
            const struct tensor tensor = unit_tensor(&dims, u, i);
            const size_t numel = tensor_numel(&tensor);
            char name[64];
            snprintf(name, sizeof name, "after.%s", tensor.name);
            compare(name, run->f.weight[u][i], golden_tensor(run->golden, name, numel), numel,
                    AFTER_TOLERANCE);
        }
}

int main(int argc, char **argv)
{
    blas_prepare(argv);
    folder = argc > 1 ? argv[1] : ".";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_logits, run_setup, run_teardown),
        cmocka_unit_test_setup_teardown(test_gradients, run_setup, run_teardown),
        cmocka_unit_test_setup_teardown(test_three_steps, run_setup, run_teardown),
    };
    return cmocka_run_group_tests_name("gpt2_golden", tests, NULL, NULL);
}
