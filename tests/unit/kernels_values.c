// What the kernels compute, against independent definitions; the tables; the floating-point
// environment. kernels_bits.c compares the tables with each other.
#include "base/hash.h"
#include "tests/unit/bf16_reference.h"
#include "tests/unit/kernel_inputs.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <xmmintrin.h>

#include <cmocka.h>

static void tables(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "avx2", "avx512"};
    const struct base_kernels *best = NULL;
    for (size_t i = 0; i < 3; i++) {
        const struct base_kernels *table = base_kernels_at(i);
        assert_non_null(table);
        assert_string_equal(table->name, names[i]);
        assert_int_equal(table->size, sizeof *table);
        assert_ptr_equal(base_kernels_find(names[i]), table->usable() ? table : NULL);
        if (table->usable())
            best = table;
    }
    assert_null(base_kernels_at(3));
    assert_ptr_equal(base_kernels_find("auto"), best);
    assert_null(base_kernels_find("avx"));
    assert_null(base_kernels_find(""));
}

// A product whose exact value lies between two floats, and one that is denormal.
static float inexact(void)
{
    volatile float x = 1.0f + 0x1p-23f;
    return x * x;
}

static float denormal(void)
{
    volatile float x = 0x1p-100f;
    return x * 0x1p-40f;
}

static void environment(void **state)
{
    (void)state;
    struct base_fp_state saved;
    const unsigned original = _mm_getcsr();
    const unsigned hostile = 0x8040u | 0x4000u; // flush, denormals are zero, upwards, all trapping
    _mm_setcsr(hostile);
    base_fp_enter(&saved);
    // Volatile, or a compiler may compute them where they are looked at.
    volatile float product = inexact(), small = denormal(), zero = 0.0f;
    volatile float quotient = 1.0f / zero; // would trap
    base_fp_leave(&saved);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(original);
    assert_true(product == 1.0f + 0x1p-22f);
    assert_true(small == 0x1p-140f);
    assert_true(isinf(quotient));
    assert_int_equal(after, hostile); // no exception of ours is left behind either
}

// What is set already is not set again; exceptions are taken back all the same.
static void exceptions(void **state)
{
    (void)state;
    struct base_fp_state saved;
    const unsigned original = _mm_getcsr();
    const unsigned overflow = 0x1f80u | 0x8u;
    _mm_setcsr(overflow);
    base_fp_enter(&saved);
    volatile float product = inexact();
    base_fp_leave(&saved);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(original);
    assert_true(product == 1.0f + 0x1p-22f);
    assert_int_equal(after, overflow);
}

// The definition, written out: sixteen lanes, then a tree.
static double sum_of_squares(size_t count, const float *x)
{
    double l[16] = {0};
    for (size_t i = 0; i < count; i++) {
        const double square = (double)x[i] * (double)x[i]; // exact
        l[i % 16] = l[i % 16] + square;
    }
    const double a = (l[0] + l[8]) + (l[4] + l[12]), b = (l[1] + l[9]) + (l[5] + l[13]);
    const double c = (l[2] + l[10]) + (l[6] + l[14]), d = (l[3] + l[11]) + (l[7] + l[15]);
    return (a + c) + (b + d);
}

static void sum_squares(void **state)
{
    (void)state;
    float x[BASE_GRANULE];
    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        if (kind == INPUT_NONFINITE || kind == INPUT_ANY)
            continue;
        input_fill((enum input_kind)kind, 77, BASE_GRANULE, x);
        for (size_t count = 0; count <= BASE_GRANULE; count++)
            assert_true(squares_of(base_kernels_at(0), count, x) == sum_of_squares(count, x));
    }
    for (size_t i = 0; i < BASE_GRANULE; i++)
        x[i] = (float)i;
    assert_true(squares_of(base_kernels_at(0), BASE_GRANULE, x) == 357389824.0);
    x[1000] = -INFINITY;
    assert_true(squares_of(base_kernels_at(0), BASE_GRANULE, x) == (double)INFINITY);
    x[3] = NAN;
    const double sum = squares_of(base_kernels_at(0), BASE_GRANULE, x);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    assert_true(bits == 0x7ff8000000000000u);
}

static void from_bf16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t half = (uint16_t)i;
        const double expected = value_of_bf16(half);
        for (size_t t = 0; usable_table(t); t++) {
            float wide;
            uint32_t bits;
            usable_table(t)->from_bf16(1, &half, &wide);
            memcpy(&bits, &wide, sizeof bits);
            if (isnan(expected)) {
                assert_int_equal(bits, 0x7fc00000u);
            } else {
                assert_true((double)wide == expected);
                assert_int_equal(bits >> 31, i >> 15);
            }
        }
    }
}

// Every sign, exponent and kept fraction, with the dropped bits around each point of decision.
static void to_bf16(void **state)
{
    (void)state;
    static const uint32_t dropped[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    float x[8];
    uint16_t expected[8], actual[8];
    for (uint32_t kept = 0; kept < 65536; kept++) {
        for (size_t i = 0; i < 8; i++) {
            const uint32_t bits = kept << 16 | dropped[i];
            memcpy(&x[i], &bits, sizeof bits);
            expected[i] = nearest_bf16(bits);
        }
        for (size_t t = 0; usable_table(t); t++) {
            usable_table(t)->to_bf16(8, x, actual);
            assert_memory_equal(actual, expected, sizeof expected);
        }
    }
}

// The bits of the definition, as they were when it was written: a compiler that contracts or
// reassociates, or a change of the formula, shows here.
static void golden(void **state)
{
    (void)state;
    static const struct base_rule_scalars scalars = {
        BASE_RULE_ADAM, 0.125f, 0.9f,  0.1f,  0.999f, 0.001f,
        1e-4f,          1e-2f,  31.6f, 1e-8f, false,  false,
    };
    enum { COUNT = 4096 };
    static float array[4][COUNT];
    static uint16_t work[COUNT];
    for (uint64_t k = 0; k < 4; k++)
        input_fill(INPUT_ORDINARY, 500 + k, COUNT, array[k]);
    for (size_t i = 0; i < COUNT; i++)
        array[2][i] = fabsf(array[2][i]);
    const struct base_update update = {
        .count = COUNT,
        .gradient = array[0],
        .moment = {array[1], array[2]},
        .weight = array[3],
        .work = work,
        .work_dtype = ZERO_BF16,
    };
    base_kernels_at(0)->update[BASE_RULE_ADAM](&scalars, &update);
    const double sum = squares_of(base_kernels_at(0), 1000, array[3]);
    const uint64_t hash = base_hash64(array, sizeof array, 0) ^ base_hash64(work, sizeof work, 1) ^
                          base_hash64(&sum, sizeof sum, 2);
    if (hash != UINT64_C(0xfe9f6de5ff3e5715))
        fail_msg("the hash is 0x%016llx", (unsigned long long)hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables),      cmocka_unit_test(environment), cmocka_unit_test(exceptions),
        cmocka_unit_test(sum_squares), cmocka_unit_test(from_bf16),   cmocka_unit_test(to_bf16),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
