// The same bits of loss and gradients with any number of threads, and with recomputation; the same
// loss without gradients.
#include "gpt2_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void assert_same_bits(const struct gpt2_fixture *a, const struct gpt2_fixture *b)
{
    for (int u = 0; u < unit_count(&a->dims); u++)
        for (int i = 0; i < unit_tensors(&a->dims, u); i++) {
            const struct tensor tensor = unit_tensor(&a->dims, u, i);
            const size_t bytes = tensor_numel(&tensor) * sizeof(real);
            if (memcmp(a->gradient[u][i], b->gradient[u][i], bytes) != 0)
                fail_msg("the gradient of %s differs", tensor.name);
        }
}

static void compare(const struct dims *dims, struct batch batch)
{
    struct gpt2_fixture reference;
    gpt2_setup(&reference, dims, batch, 1, false);
    const double alone = gpt2_loss_alone(&reference);
    const double loss = gpt2_loss_and_gradient(&reference);
    assert_memory_equal(&loss, &alone, sizeof loss);
    for (int threads = 1; threads <= 3; threads++)
        for (int recompute = 0; recompute <= 1; recompute++) {
            struct gpt2_fixture f;
            gpt2_setup(&f, dims, batch, threads, recompute == 1);
            const double other = gpt2_loss_and_gradient(&f);
            assert_memory_equal(&loss, &other, sizeof loss);
            assert_same_bits(&reference, &f);
            gpt2_teardown(&f);
        }
    gpt2_teardown(&reference);
}

static void test_odd_sizes(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 2, .heads = 3, .width = 57, .context = 70, .vocab = 101};
    compare(&dims, (struct batch){.windows = 3, .length = 70});
}

// Large enough for products of several tiles and logits of several chunks.
static void test_several_tiles(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 2, .heads = 4, .width = 128, .context = 96, .vocab = 4100};
    compare(&dims, (struct batch){.windows = 8, .length = 96});
}

// Fewer tokens than there is room for, as in sampling: what was computed before leaves no trace.
static void test_short_batch(void **state)
{
    (void)state;
    const struct dims dims = {.layers = 1, .heads = 2, .width = 32, .context = 64, .vocab = 50};
    struct gpt2_fixture a, b;
    gpt2_setup(&a, &dims, (struct batch){.windows = 2, .length = 64}, 1, false);
    gpt2_loss_and_gradient(&a);
    a.batch = (struct batch){.windows = 1, .length = 17};
    const double loss = gpt2_loss_and_gradient(&a);
    gpt2_setup(&b, &dims, (struct batch){.windows = 1, .length = 17}, 1, false);
    memcpy(b.token, a.token, 17 * sizeof *b.token);
    memcpy(b.target, a.target, 17 * sizeof *b.target);
    const double fresh = gpt2_loss_and_gradient(&b);
    assert_memory_equal(&loss, &fresh, sizeof loss);
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        const struct tensor tensor = unit_tensor(&dims, 1, i);
        assert_memory_equal(a.gradient[1][i], b.gradient[1][i],
                            tensor_numel(&tensor) * sizeof(real));
    }
    gpt2_teardown(&a);
    gpt2_teardown(&b);
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_sizes),
        cmocka_unit_test(test_several_tiles),
        cmocka_unit_test(test_short_batch),
    };
    return cmocka_run_group_tests_name("gpt2_bits", tests, NULL, NULL);
}
