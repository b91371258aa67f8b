// The arithmetic examples/gpt2 brings along: exponentials, sums in lanes.
#include "lanes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static double ulp_of(double value)
{
    const float f = (float)value;
    return (double)nextafterf(f, INFINITY) - (double)f;
}

static void test_exponential(void **state)
{
    (void)state;
    for (int i = -87000; i <= 87000; i++) {
        const float x = (float)i * 1e-3f + 1.2345e-5f;
        const double expected = exp((double)x);
        const double error = fabs((double)real_exp(x) - expected) / ulp_of(expected);
        if (x >= -87 && x <= 87 && !(error <= 2))
            fail_msg("e^%.9g is %.9g, off by %.2f units in the last place", (double)x,
                     (double)real_exp(x), error);
    }
    assert_true(real_exp(0) == 1);
    assert_true(real_exp(-87.5f) == 0);
    assert_true(real_exp(-INFINITY) == 0);
    assert_true(real_exp(1000) == real_exp(87));
    assert_true(isnan(real_exp(NAN)));
}

static void test_rows(void **state)
{
    (void)state;
    float x[100], y[100];
    for (int i = 0; i < 100; i++) {
        x[i] = (float)(i * 37 % 101 - 60); // small integers: sums are exact in any order
        y[i] = (float)(i % 7 - 3);
    }
    for (int count = 1; count <= 100; count++) {
        float sum = 0, dot = 0, largest = x[0];
        for (int i = 0; i < count; i++) {
            sum += x[i];
            dot += x[i] * y[i];
            largest = x[i] > largest ? x[i] : largest;
        }
        assert_true(row_sum(x, count) == sum);
        assert_true(row_dot(x, y, count) == dot);
        assert_true(row_largest(x, count) == largest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests_name("gpt2_math", tests, NULL, NULL);
}
