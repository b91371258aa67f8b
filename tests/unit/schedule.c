// zero_schedule_*(): the formulas, and exact values where the pieces meet.
#include <zero/zero.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int close_to(double a, double b)
{
    return fabs(a - b) <= 1e-15;
}

static void warm_up_is_linear(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 7; n++) {
        const double expected = 3e-4 * (double)n / 7;
        assert_true(close_to(zero_schedule_constant(n, 3e-4, 7), expected));
        assert_true(close_to(zero_schedule_linear(n, 3e-4, 7, 100, 1e-5), expected));
        assert_true(close_to(zero_schedule_cosine(n, 3e-4, 7, 100, 1e-5), expected));
    }
    for (uint64_t warmup = 1; warmup < 100; warmup++) {
        const double lr = 1e-5 * (double)(3 * warmup + 1);
        assert_true(zero_schedule_constant(warmup, lr, warmup) == lr);
        assert_true(zero_schedule_linear(warmup, lr, warmup, 200, 1e-5) == lr);
        assert_true(zero_schedule_cosine(warmup, lr, warmup, 200, 1e-5) == lr);
        assert_true(zero_schedule_constant(warmup + 1, lr, warmup) == lr);
    }
}

static void linear_and_cosine_reach_the_end(void **state)
{
    (void)state;
    assert_true(close_to(zero_schedule_linear(60, 1, 10, 110, 0.2), 0.6));
    assert_true(close_to(zero_schedule_linear(35, 1, 10, 110, 0.2), 0.8));
    assert_true(close_to(zero_schedule_cosine(60, 1, 10, 110, 0.2), 0.6));
    assert_true(close_to(zero_schedule_cosine(35, 1, 10, 110, 0.2), 0.6 + 0.4 * sqrt(0.5)));
    for (uint64_t n = 110; n < 113; n++) {
        assert_true(zero_schedule_linear(n, 1, 10, 110, 0.2) == 0.2);
        assert_true(zero_schedule_cosine(n, 1, 10, 110, 0.2) == 0.2);
    }
    for (uint64_t n = 11; n < 110; n++) {
        assert_true(zero_schedule_linear(n, 1, 10, 110, 0.2) >
                    zero_schedule_linear(n + 1, 1, 10, 110, 0.2));
        assert_true(zero_schedule_cosine(n, 1, 10, 110, 0.2) >
                    zero_schedule_cosine(n + 1, 1, 10, 110, 0.2));
    }
}

static void without_warm_up(void **state)
{
    (void)state;
    assert_true(zero_schedule_constant(0, 0.5, 0) == 0.5);
    assert_true(zero_schedule_constant(1, 0.5, 0) == 0.5);
    assert_true(zero_schedule_linear(0, 0.5, 0, 10, 0) == 0.5);
    assert_true(close_to(zero_schedule_linear(1, 0.5, 0, 10, 0), 0.45));
    assert_true(close_to(zero_schedule_cosine(5, 0.5, 0, 10, 0), 0.25));
}

static void warm_up_longer_than_the_run(void **state)
{
    (void)state;
    assert_true(close_to(zero_schedule_linear(5, 1, 10, 5, 0.2), 0.5));
    assert_true(zero_schedule_linear(10, 1, 10, 5, 0.2) == 1);
    assert_true(zero_schedule_linear(11, 1, 10, 5, 0.2) == 0.2);
    assert_true(zero_schedule_cosine(11, 1, 10, 10, 0.2) == 0.2);
    assert_true(zero_schedule_cosine(1, 1, 0, 0, 0.2) == 0.2);
}

static void learning_rates_scale_with_the_batch(void **state)
{
    (void)state;
    assert_true(zero_schedule_scaled(0.1, 8192, 256) == 0.1 * 32);
    assert_true(zero_schedule_scaled(0.1, 256, 256) == 0.1);
    assert_true(close_to(zero_schedule_scaled(0.1, 64, 256), 0.025));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_is_linear),
        cmocka_unit_test(linear_and_cosine_reach_the_end),
        cmocka_unit_test(without_warm_up),
        cmocka_unit_test(warm_up_longer_than_the_run),
        cmocka_unit_test(learning_rates_scale_with_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
