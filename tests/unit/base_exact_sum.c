// base/exact_sum.h: exactness against wide integers, rounding by its definition, and no order.
#include "base/exact_sum.h"

#include <zero/random.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static double sum_of(const double *values, size_t count)
{
    struct base_exact_sum sum;
    base_exact_sum_init(&sum);
    for (size_t i = 0; i < count; i++)
        base_exact_sum_add(&sum, values[i]);
    return base_exact_sum_round(&sum);
}

static int same_bits(double a, double b)
{
    uint64_t bits_a, bits_b;
    memcpy(&bits_a, &a, sizeof bits_a);
    memcpy(&bits_b, &b, sizeof bits_b);
    return bits_a == bits_b;
}

static void known_sums(void **state)
{
    (void)state;
    const double tiny = 0x1p-1074, huge = DBL_MAX, half_ulp = 0x1p970;
    const struct {
        double addend[4];
        double sum;
    } cases[] = {
        {{0}, 0},
        {{-0.0, -0.0}, 0},
        {{1, 2, 3, 4}, 10},
        {{0.1, 0.2, 0.3, 0.4}, 1.0},
        {{1e300, 1, -1e300}, 1},
        {{-1e300, -1, 1e300}, -1},
        {{tiny}, tiny},
        {{-tiny}, -tiny},
        {{tiny, huge, -huge}, tiny},
        {{0x1p-1022, -tiny}, 0x1p-1022 - tiny},
        {{0x1p53, 1}, 0x1p53}, // a tie goes to the even one
        {{0x1p53, 3}, 0x1p53 + 4},
        {{0x1p53, 1, tiny}, 0x1p53 + 2},
        {{0x1p53, 1, -tiny}, 0x1p53},
        {{-0x1p53, -1, -tiny}, -0x1p53 - 2},
        {{-0x1p53, -1, tiny}, -0x1p53},
        {{0x1p53 - 1, 0.5}, 0x1p53}, // rounding up to a power of two
        {{huge}, huge},
        {{-huge}, -huge},
        {{huge, huge, -huge}, huge},
        {{huge, half_ulp, -tiny}, huge},
        {{huge, half_ulp}, INFINITY},
        {{-huge, -half_ulp}, -INFINITY},
        {{huge, huge, huge, huge}, INFINITY},
        {{huge, -huge}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!same_bits(sum_of(cases[i].addend, 4), cases[i].sum))
            print_error("case %zu: %a instead of %a\n", i, sum_of(cases[i].addend, 4),
                        cases[i].sum);
        assert_true(same_bits(sum_of(cases[i].addend, 4), cases[i].sum));
    }
}

// Whatever lies below a tie decides it, however far below.
static void every_bit_counts(void **state)
{
    (void)state;
    for (int e = 0; e < 40; e++) {
        const double even = ldexp(1, 53 + e), half = ldexp(1, e), up = even + 2 * half;
        for (int k = e - 1; k >= -200; k--) {
            const double more[] = {even, half, ldexp(1, k)}, less[] = {even, half, -ldexp(1, k)};
            assert_true(sum_of(more, 3) == up);
            assert_true(sum_of(less, 3) == even);
        }
    }
}

static void values_that_are_not_finite_are_ignored(void **state)
{
    (void)state;
    const double values[] = {1, INFINITY, -INFINITY, NAN, 2};
    assert_true(sum_of(values, 5) == 3);
}

// A multiple of 2^-40 below 2^60 in magnitude, of any sign: sums of them are 128-bit integers.
static double integer_like(uint64_t seed, uint64_t index, __int128 *exact)
{
    const uint64_t bits = zero_random_bits(seed, 1, index);
    const int shift = (int)(zero_random_bits(seed, 2, index) % 48);
    const int64_t mantissa = (int64_t)(bits >> 11) * (bits & 1 ? -1 : 1);
    *exact += mantissa * ((__int128)1 << shift);
    return ldexp((double)mantissa, shift - 40);
}

static void sums_of_integers_are_exact(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct base_exact_sum sum;
        base_exact_sum_init(&sum);
        __int128 exact = 0;
        for (uint64_t i = 0; i < 100; i++) {
            base_exact_sum_add(&sum, integer_like(seed, i, &exact));
            // The conversion of an integer rounds to nearest even, once.
            const double expected = ldexp((double)exact, -40);
            assert_true(base_exact_sum_round(&sum) == expected);
        }
    }
}

// A double with any exponent of -1022 .. 1022 or a denormal.
static double any_double(uint64_t seed, uint64_t index)
{
    const uint64_t bits = zero_random_bits(seed, 3, index);
    const int exponent = (int)(zero_random_bits(seed, 4, index) % 2096) - 1074;
    return ldexp((bits & 1 ? -1.0 : 1.0) * (double)(bits >> 11), exponent - 52);
}

static void no_order_and_no_split_matters(void **state)
{
    (void)state;
    enum { COUNT = 200, RANKS = 7 };
    for (uint64_t seed = 0; seed < 50; seed++) {
        double values[COUNT];
        for (uint64_t i = 0; i < COUNT; i++)
            values[i] = any_double(seed, i);
        const double expected = sum_of(values, COUNT);

        struct base_exact_sum part[RANKS], all;
        for (int r = 0; r < RANKS; r++)
            base_exact_sum_init(&part[r]);
        for (uint64_t i = 0; i < COUNT; i++) {
            const uint64_t k = zero_random_permute(seed, 5, COUNT, i);
            base_exact_sum_add(&part[zero_random_bits(seed, 6, i) % RANKS], values[k]);
        }
        base_exact_sum_init(&all);
        for (int r = 0; r < RANKS; r++)
            base_exact_sum_merge(&all, &part[r]);
        assert_true(same_bits(base_exact_sum_round(&all), expected));
        // A sum of limbs that were not carried takes further addends.
        base_exact_sum_add(&all, 1e10);
        base_exact_sum_add(&all, -1e10);
        assert_true(same_bits(base_exact_sum_round(&all), expected));
    }
}

// The result r of a sum S is right if |S - r| is at most half the distance to r's neighbours on
// that side, and r is even where it is exactly half. S - r is summed exactly, too.
static void rounding_keeps_its_definition(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct base_exact_sum sum;
        base_exact_sum_init(&sum);
        for (uint64_t i = 0; i < 2 + seed % 5; i++)
            base_exact_sum_add(&sum, any_double(seed, i));
        const double rounded = base_exact_sum_round(&sum);
        if (isinf(rounded))
            continue;
        base_exact_sum_add(&sum, -rounded);
        const double rest = base_exact_sum_round(&sum);
        const double neighbour = nextafter(rounded, rest < 0 ? -INFINITY : INFINITY);
        // Twice the rest, less the distance, is not positive; exact again.
        base_exact_sum_merge(&sum, &sum);
        base_exact_sum_add(&sum, rounded);
        base_exact_sum_add(&sum, -neighbour);
        const double excess = base_exact_sum_round(&sum) * (rest < 0 ? -1 : 1);
        assert_true(rest == 0 || excess <= 0);
        uint64_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        if (rest != 0 && excess == 0)
            assert_int_equal(bits & 1, 0);
    }
}

static void many_ranks_and_many_addends(void **state)
{
    (void)state;
    struct base_exact_sum one, all;
    base_exact_sum_init(&one);
    base_exact_sum_init(&all);
    for (int i = 0; i < 1000000; i++)
        base_exact_sum_add(&one, 0x1.fffffffffffffp255); // a square of the largest floats
    assert_true(base_exact_sum_round(&one) == 1000000 * 0x1.fffffffffffffp255);
    for (int i = 0; i < 65536; i++)
        base_exact_sum_merge(&all, &one);
    assert_true(base_exact_sum_round(&all) == 65536 * (1000000 * 0x1.fffffffffffffp255));

    // The same with the sign that makes every limb but the last as large as it gets.
    base_exact_sum_init(&one);
    base_exact_sum_init(&all);
    base_exact_sum_add(&one, -0x1p-1074);
    for (int i = 0; i < 65536; i++)
        base_exact_sum_merge(&all, &one);
    assert_true(base_exact_sum_round(&all) == -0x1p-1058);
    // Doubling merges reach 2^31 sums.
    base_exact_sum_init(&all);
    base_exact_sum_add(&all, -0x1p-1074);
    for (int i = 0; i < 31; i++)
        base_exact_sum_merge(&all, &all);
    assert_true(base_exact_sum_round(&all) == -0x1p-1043);
    base_exact_sum_init(&all);
    base_exact_sum_add(&all, -DBL_MAX);
    for (int i = 0; i < 31; i++)
        base_exact_sum_merge(&all, &all);
    assert_true(base_exact_sum_round(&all) == -INFINITY);
    for (int i = 0; i < 1000; i++)
        base_exact_sum_add(&all, DBL_MAX);
    assert_true(base_exact_sum_round(&all) == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_sums),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(values_that_are_not_finite_are_ignored),
        cmocka_unit_test(sums_of_integers_are_exact),
        cmocka_unit_test(no_order_and_no_split_matters),
        cmocka_unit_test(rounding_keeps_its_definition),
        cmocka_unit_test(many_ranks_and_many_addends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
