// AdamW's hyper-parameters, its scalars, and its values, element by element, against the paper.
#include "tests/numerics/adamw_reference.h"
#include "tests/unit/kernel_inputs.h"
#include "zero/optim/optim.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct eng_choice decoupled = {.decay = ZERO_DECAY_DECOUPLED};

static const zero_hyper usual = {1e-3, 0.9, 0.999, 1e-8, 0.1};

// Hyper-parameters with betas that fp32 holds: the bounds are tightest.
static const zero_hyper exact_betas = {1e-3, 0.875, 0.998046875, 1e-8, 0.1};

static void find(void **state)
{
    (void)state;
    const struct eng_optimizer *adamw = eng_optimizer_find("adamw");
    assert_non_null(adamw);
    assert_string_equal(adamw->name, "adamw");
    assert_int_equal(adamw->size, sizeof *adamw);
    assert_int_equal(adamw->moments, 2);
    assert_null(eng_optimizer_find("adamww"));
    assert_null(eng_optimizer_find(""));
}

static void check_accepts(void **state)
{
    (void)state;
    static const zero_hyper good[] = {
        {1e-3, 0.9, 0.999, 1e-8, 0.1},   {0, 0, 0, 0, 0},
        {1, 0.5, 0.5, 1e-30, 1},         {1e30, 0.9, 0.999, 1e-8, 0},
        {1e-30, 0.9, 0.999, 1e-8, 1e30},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct base_error error = {0};
        assert_int_equal(eng_optimizer_adamw.check(&decoupled, &good[i], &error), ZERO_OK);
        assert_int_equal(error.result, ZERO_OK);
    }
}

static void check_refuses(void **state)
{
    (void)state;
    static const struct {
        zero_hyper hyper;
        const char *message;
    } bad[] = {
        {{-1e-3, 0.9, 0.999, 1e-8, 0.1}, "adamw: lr is -0.001, must be in [0, 3.40282e+38]"},
        {{NAN, 0.9, 0.999, 1e-8, 0.1}, "adamw: lr is nan"},
        {{INFINITY, 0.9, 0.999, 1e-8, 0.1}, "adamw: lr is inf"},
        {{1e39, 0.9, 0.999, 1e-8, 0}, "adamw: lr is 1e+39"},
        {{1e-3, 1.0, 0.999, 1e-8, 0.1}, "adamw: beta1 is 1, must be in [0, 1)"},
        {{1e-3, -0.1, 0.999, 1e-8, 0.1}, "adamw: beta1 is -0.1"},
        {{1e-3, NAN, 0.999, 1e-8, 0.1}, "adamw: beta1 is nan"},
        {{1e-3, 0.9, 1.5, 1e-8, 0.1}, "adamw: beta2 is 1.5"},
        {{1e-3, 0.9, 0.99999999, 1e-8, 0.1},
         "adamw: beta2 is 0.99999998999999995, which is 1 in fp32"},
        {{1e-3, 0.9, 0.999, -1e-8, 0.1}, "adamw: eps is -1e-08"},
        {{1e-3, 0.9, 0.999, 1e-60, 0.1}, "adamw: eps is 1e-60, which is 0 in fp32"},
        {{1e-3, 0.9, 0.999, NAN, 0.1}, "adamw: eps is nan"},
        {{1e-3, 0.9, 0.999, 1e-8, -0.1}, "adamw: weight_decay is -0.1"},
        {{1e-3, 0.9, 0.999, 1e-8, INFINITY}, "adamw: weight_decay is inf"},
        {{0.5, 0.9, 0.999, 1e-8, 3}, "adamw: lr * weight_decay is 0.5 * 3"},
        {{1e38, 0.9, 0.999, 1e-8, 0}, "adamw: lr / (1 - beta1) is 1e+38 / (1 - 0.9"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct base_error error = {0};
        assert_int_equal(eng_optimizer_adamw.check(&decoupled, &bad[i].hyper, &error),
                         ZERO_E_INVALID);
        if (strncmp(error.message, bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("\"%s\" instead of \"%s\"", error.message, bad[i].message);
        assert_int_equal(eng_optimizer_adamw.check(&decoupled, &bad[i].hyper, NULL),
                         ZERO_E_INVALID);
    }
}

static void power(void **state)
{
    (void)state;
    assert_true(eng_power(0.9, 0) == 1.0);
    assert_true(eng_power(0.0, 0) == 1.0);
    assert_true(eng_power(0.0, 5) == 0.0);
    assert_true(eng_power(0.9, 1) == 0.9);
    assert_true(eng_power(0.5, 1000) == 0x1p-1000);
    assert_true(eng_power(0.75, 20) == 3486784401.0 / 1099511627776.0); // 3^20 / 4^20
    assert_true(eng_power(0.999, UINT64_MAX) == 0.0);
    static const double bases[] = {0.1, 0.9, 0.95, 0.99, 0.999, 0.9999999};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        for (uint64_t n = 1; n < 3000000; n += 1 + n / 7) {
            // n factors, each off by half a unit at most.
            const long double expected = powl(bases[i], (long double)n);
            const long double bound = (long double)n * 0x1p-53L * expected + 0x1p-1074L;
            assert_true(fabsl(eng_power(bases[i], n) - expected) <= bound);
        }
    }
}

static void scalars(void **state)
{
    (void)state;
    for (uint64_t updates = 1; updates <= 1000; updates++) {
        union eng_scalars s;
        eng_optimizer_adamw.prepare(&decoupled, &usual, updates, 0.25, &s);
        const long double b1 = 0.9f, b2 = 0.999f;
        assert_true(s.built_in.gradient_scale == 0.25f);
        assert_true(s.built_in.beta1 == 0.9f && s.built_in.beta2 == 0.999f);
        assert_true(s.built_in.one_minus_beta1 == (float)(1.0 - (double)0.9f));
        assert_true(s.built_in.one_minus_beta2 == (float)(1.0 - (double)0.999f));
        assert_true(s.built_in.decay == (float)(1e-3 * 0.1));
        assert_true(s.built_in.eps == 1e-8f);
        const long double step = 1e-3L / (1 - powl(b1, (long double)updates));
        const long double inverse = 1 / sqrtl(1 - powl(b2, (long double)updates));
        assert_true(fabsl(s.built_in.step_size - step) <= 0x1.0001p-24L * step);
        assert_true(fabsl(s.built_in.inverse_sqrt_correction - inverse) <= 0x1.0001p-24L * inverse);
    }
}

enum { ELEMENTS = 64 };

// The state of a few elements as the kernels have it.
struct run {
    float gradient[ELEMENTS], m[ELEMENTS], v[ELEMENTS], weight[ELEMENTS];
};

static void update(struct run *run, const zero_hyper *hyper, uint64_t updates, double scale)
{
    union eng_scalars s;
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    eng_optimizer_adamw.prepare(&decoupled, hyper, updates, scale, &s);
    const struct eng_update all = {
        .count = ELEMENTS,
        .gradient = run->gradient,
        .moment = {run->m, run->v},
        .weight = run->weight,
    };
    eng_optimizer_adamw.update(&decoupled, eng_kernels_at(0), &s, &all);
    eng_fp_leave(&saved);
}

static void assert_matches(const struct reference_element *expected, const struct run *run,
                           size_t i, uint64_t updates, long double *worst)
{
    if (!reference_matches(expected->m, run->m[i], worst) ||
        !reference_matches(expected->v, run->v[i], worst) ||
        !reference_matches(expected->weight, run->weight[i], worst))
        fail_msg("element %zu, update %llu: weight %.9g m %.9g v %.9g instead of %.9Lg %.9Lg %.9Lg "
                 "within %.3Lg %.3Lg %.3Lg",
                 i, (unsigned long long)updates, (double)run->weight[i], (double)run->m[i],
                 (double)run->v[i], expected->weight.value, expected->m.value, expected->v.value,
                 expected->weight.error, expected->m.error, expected->v.error);
}

// One update from a given state: the bounds are a few roundings wide.
static long double one_update(const zero_hyper *hyper, enum input_kind kind, uint64_t stream,
                              uint64_t updates, double scale)
{
    struct run run;
    struct reference_element expected[ELEMENTS];
    long double worst = 0;
    input_fill(kind, stream, ELEMENTS, run.gradient);
    input_fill(kind, stream + 1, ELEMENTS, run.m);
    input_fill(kind, stream + 2, ELEMENTS, run.v);
    input_fill(INPUT_ORDINARY, stream + 3, ELEMENTS, run.weight);
    for (size_t i = 0; i < ELEMENTS; i++) {
        run.v[i] = fabsf(run.v[i]);
        expected[i] = (struct reference_element){{run.weight[i], 0}, {run.m[i], 0}, {run.v[i], 0}};
        const struct reference_value sum = {run.gradient[i], 0};
        reference_adamw(&expected[i], hyper, updates, sum, reference_rounded(scale));
    }
    update(&run, hyper, updates, scale);
    for (size_t i = 0; i < ELEMENTS; i++)
        assert_matches(&expected[i], &run, i, updates, &worst);
    return worst;
}

static void single_updates(void **state)
{
    (void)state;
    static const zero_hyper others[] = {
        {1e-3, 0.875, 0.998046875, 1e-8, 0}, {0.5, 0.5, 0.75, 1e-3, 1.5},
        {0, 0.875, 0.5, 1e-8, 0.1},          {1e-5, 0, 0, 1e-12, 1e-3},
        {3e-2, 0.9, 0.999, 1e-6, 1},         {1e-3, 0.9, 0.95, 1, 0.1},
    };
    static const double scales[] = {1.0, 0.2, 1.0 / 3.0, 1e-4, 1024.0};
    long double worst = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        const uint64_t updates = i < 1000 ? i + 1 : i * i;
        const double scale = scales[i % 5];
        worst = fmaxl(worst, one_update(&exact_betas, INPUT_ORDINARY, 4 * i, updates, scale));
        one_update(&others[i % 6], INPUT_ORDINARY, 4 * i, updates, scale);
        one_update(&others[i % 6], INPUT_TINY, 4 * i, updates, scale);
        one_update(&others[i % 6], INPUT_DENORMAL, 4 * i, updates, scale);
        one_update(&others[i % 6], INPUT_ZERO, 4 * i, updates, scale);
    }
    print_message("largest distance: %.2Lf of the bound\n", worst);
    assert_true(worst > 0.3L); // a bound that is never approached would see no bug
}

// A thousand updates with gradients of many sizes, a schedule, decay and a varying clip factor.
static long double train(zero_hyper hyper, double size)
{
    struct run run = {0};
    struct reference_element expected[ELEMENTS];
    long double worst = 0;
    for (size_t i = 0; i < ELEMENTS; i++) {
        run.weight[i] = (float)zero_random_normal(1, 1, i);
        expected[i] = (struct reference_element){.weight = {run.weight[i], 0}};
    }
    for (uint64_t updates = 1; updates <= 1000; updates++) {
        const double scale = updates % 3 ? 1.0 : 1.0 / (double)updates;
        hyper.lr = 1e-3 * (double)updates / (100.0 + (double)updates);
        for (uint64_t i = 0; i < ELEMENTS; i++) {
            const double normal = zero_random_normal(2, updates, i);
            run.gradient[i] =
                i % 8 && updates % 5 ? (float)(size * normal * (double)(i % 8)) : 0.0f;
            const struct reference_value sum = {run.gradient[i], 0};
            reference_adamw(&expected[i], &hyper, updates, sum, reference_rounded(scale));
        }
        update(&run, &hyper, updates, scale);
        for (size_t i = 0; i < ELEMENTS; i++)
            assert_matches(&expected[i], &run, i, updates, &worst);
    }
    return worst;
}

static void trajectories(void **state)
{
    (void)state;
    print_message("largest distance: %.2Lf of the bound\n", train(exact_betas, 1.0));
    train(usual, 1.0);
    train(usual, 1e-6);
    train(usual, 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find),          cmocka_unit_test(check_accepts),
        cmocka_unit_test(check_refuses), cmocka_unit_test(power),
        cmocka_unit_test(scalars),       cmocka_unit_test(single_updates),
        cmocka_unit_test(trajectories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
