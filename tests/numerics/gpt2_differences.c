// Every tensor's gradient against finite differences of the loss, and of a batch against those of
// its windows one by one, in double precision.
#include "gpt2_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define STEP 1e-4
// Of a central difference with Richardson's step: rounding is 1e-16 / STEP, truncation STEP^4.
#define TOLERANCE 2e-9

static double loss_at(struct gpt2_fixture *f, real *weight, double value)
{
    const real kept = *weight;
    *weight = (real)value;
    const double loss = gpt2_loss(f);
    *weight = kept;
    return loss;
}

static double slope(struct gpt2_fixture *f, real *weight)
{
    const double at = *weight;
    const double near = loss_at(f, weight, at + STEP) - loss_at(f, weight, at - STEP);
    const double far = loss_at(f, weight, at + 2 * STEP) - loss_at(f, weight, at - 2 * STEP);
    return (8 * near - far) / (12 * STEP);
}

static void compare_tensor(struct gpt2_fixture *f, const real *gradient, int unit, int index)
{
    const struct tensor tensor = unit_tensor(&f->dims, unit, index);
    for (size_t e = 0; e < tensor_numel(&tensor); e++) {
        const double expected = slope(f, &f->weight[unit][index][e]);
        if (fabs((double)gradient[e] - expected) > TOLERANCE * (1 + fabs(expected)))
            fail_msg("%s[%zu]: gradient %.12g, finite difference %.12g", tensor.name, e,
                     (double)gradient[e], expected);
    }
}

// Two of the same: the head's share of the gradients is computed with every loss.
static void compare_model(const struct dims *dims, struct batch batch)
{
    struct gpt2_fixture analytic, moved;
    gpt2_setup(&analytic, dims, batch, 1, false);
    gpt2_setup(&moved, dims, batch, 1, false);
    gpt2_loss_and_gradient(&analytic);
    for (int u = 0; u < unit_count(dims); u++)
        for (int i = 0; i < unit_tensors(dims, u); i++)
            compare_tensor(&moved, analytic.gradient[u][i], u, i);
    gpt2_teardown(&analytic);
    gpt2_teardown(&moved);
}

static void test_small_model(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 2, .heads = 3, .width = 12, .context = 5, .vocab = 17};
    compare_model(&dims, (struct batch){.windows = 2, .length = 5});
}

// More than one block of query rows in attention, and of lanes in a row.
static void test_long_window(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 1, .heads = 1, .width = 6, .context = 131, .vocab = 5};
    compare_model(&dims, (struct batch){.windows = 1, .length = 131});
}

static void test_one_token(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 1, .heads = 2, .width = 8, .context = 1, .vocab = 2};
    compare_model(&dims, (struct batch){.windows = 1, .length = 1});
}

// All gradients, one after the other, are added to sum.
static void add_gradients(const struct gpt2_fixture *f, double *sum)
{
    for (int u = 0; u < unit_count(&f->dims); u++)
        for (int i = 0; i < unit_tensors(&f->dims, u); i++) {
            const struct tensor tensor = unit_tensor(&f->dims, u, i);
            for (size_t e = 0; e < tensor_numel(&tensor); e++)
                *sum++ += (double)f->gradient[u][i][e];
        }
}

// The batch is so large that the head takes it in chunks, and the vocabulary in several tiles.
static void test_batch_is_the_mean_of_its_windows(void **state)
{
    (void)state;
    enum { WINDOWS = 3, LENGTH = 96 };
    const struct dims dims = {
        .layers = 1, .heads = 2, .width = 8, .context = LENGTH, .vocab = 4100};
    struct gpt2_fixture whole, part;
    gpt2_setup(&whole, &dims, (struct batch){.windows = WINDOWS, .length = LENGTH}, 2, false);
    gpt2_setup(&part, &dims, (struct batch){.windows = 1, .length = LENGTH}, 1, false);
    size_t numel = 0;
    for (int u = 0; u < unit_count(&dims); u++)
        numel += unit_numel(&dims, u);
    double *expected = calloc(2 * numel, sizeof *expected), *got = expected + numel;
    assert_non_null(expected);
    double loss = 0;
    for (int w = 0; w < WINDOWS; w++) {
        memcpy(part.token, whole.token + w * LENGTH, LENGTH * sizeof *part.token);
        memcpy(part.target, whole.target + w * LENGTH, LENGTH * sizeof *part.target);
        loss += gpt2_loss_and_gradient(&part);
        add_gradients(&part, expected);
    }
    assert_true(fabs(gpt2_loss_and_gradient(&whole) - loss / WINDOWS) < 1e-12);
    add_gradients(&whole, got);
    for (size_t e = 0; e < numel; e++)
        if (fabs(got[e] - expected[e] / WINDOWS) > 1e-12)
            fail_msg("element %zu: %.12g instead of %.12g", e, got[e], expected[e] / WINDOWS);
    free(expected);
    gpt2_teardown(&whole);
    gpt2_teardown(&part);
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_model),
        cmocka_unit_test(test_long_window),
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_batch_is_the_mean_of_its_windows),
    };
    return cmocka_run_group_tests_name("gpt2_differences", tests, NULL, NULL);
}
