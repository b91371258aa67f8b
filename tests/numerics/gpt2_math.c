// The arithmetic examples/gpt2 brings along: exponentials, sums in lanes, bf16, f16.
#include "bf16.h"
#include "f16.h"
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

// Every bf16 is its own rounding; between two neighbours the nearer one is taken, or the even.
static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffff; half++) {
        const float value = bf16_widen((uint16_t)half);
        if (isnan(value)) {
            assert_true(isnan(bf16_widen(bf16_round(value))));
            continue;
        }
        assert_int_equal(bf16_round(value), half);
        if (isinf(value))
            continue;
        const uint32_t bits = half << 16;
        float middle, below, above;
        memcpy(&middle, &(uint32_t){bits + 0x8000}, 4);
        memcpy(&below, &(uint32_t){bits + 0x7fff}, 4);
        memcpy(&above, &(uint32_t){bits + 0x8001}, 4);
        assert_int_equal(bf16_round(below), half);
        assert_int_equal(bf16_round(above), half + 1);
        assert_int_equal(bf16_round(middle), half + (half & 1));
    }
}

// The same of f16, whose neighbours are not equally far everywhere.
static void test_f16(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffff; half++) {
        const float value = f16_widen((uint16_t)half);
        const uint32_t size = half & 0x7fff;
        assert_int_equal(signbit(value) != 0, half >> 15);
        assert_int_equal(isnan(value) != 0, size > 0x7c00);
        if (isnan(value)) {
            assert_true(isnan(f16_widen(f16_round(value))));
            continue;
        }
        const double power = size < 0x400 ? -24 : (double)(size >> 10) - 25;
        const double expected = ldexp(size < 0x400 ? size : (size & 0x3ff) + 0x400, (int)power);
        assert_true(size == 0x7c00 ? isinf(value) : fabs((double)value) == expected);
        assert_int_equal(f16_round(value), half);
        if (isinf(value))
            continue;
        // Half way to the next one away from zero; after the largest 2^16 would come.
        const double next = size == 0x7bff ? 65536 : (double)fabsf(f16_widen((uint16_t)(size + 1)));
        const float middle = copysignf((float)((expected + next) / 2), value);
        assert_int_equal(f16_round(nextafterf(middle, 0)), half);
        assert_int_equal(f16_round(nextafterf(middle, 2 * middle)), half + 1);
        assert_int_equal(f16_round(middle), half + (half & 1));
    }
    assert_int_equal(f16_round(INFINITY), 0x7c00);
    assert_int_equal(f16_round(-1e30f), 0xfc00);
    assert_int_equal(f16_round(0x1p-26f), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
    };
    return cmocka_run_group_tests_name("gpt2_math", tests, NULL, NULL);
}
