// What optimizers are called, what of a group and of hyper-parameters they accept, and the scalars
// they make of them. optim_values.c has what they compute.
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

static void find(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int moments;
        zero_decay decay;
        bool nesterov;
    } known[] = {
        {"adamw", 2, ZERO_DECAY_DECOUPLED, false}, {"adam", 2, ZERO_DECAY_L2, false},
        {"sgd", 1, ZERO_DECAY_L2, true},           {"lion", 1, ZERO_DECAY_DECOUPLED, false},
        {"adagrad", 1, ZERO_DECAY_L2, false},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct eng_optimizer *optimizer = eng_optimizer_find(known[i].name);
        assert_non_null(optimizer);
        assert_string_equal(optimizer->name, known[i].name);
        assert_int_equal(optimizer->size, sizeof *optimizer);
        assert_int_equal(optimizer->moments, known[i].moments);
        assert_int_equal(optimizer->decay, known[i].decay);
        assert_int_equal(optimizer->nesterov, known[i].nesterov);
    }
    assert_null(eng_optimizer_find("adamww"));
    assert_null(eng_optimizer_find("nesterov"));
    assert_null(eng_optimizer_find(""));
}

static void assert_message(const struct base_error *error, const char *message)
{
    if (strncmp(error->message, message, strlen(message)) != 0)
        fail_msg("\"%s\" instead of \"%s\"", error->message, message);
}

static void choose(void **state)
{
    (void)state;
    static const zero_decay decays[] = {ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, ZERO_DECAY_L2};
    static const char *const names[] = {"adamw", "adam", "sgd", "lion", "adagrad"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        const struct eng_optimizer *optimizer = eng_optimizer_find(names[n]);
        for (size_t d = 0; d < 3; d++) {
            struct eng_choice choice;
            struct base_error error = {0};
            assert_int_equal(eng_optimizer_choose(optimizer, decays[d], 0, &choice, &error), 0);
            assert_int_equal(choice.decay, d == 0 ? optimizer->decay : decays[d]);
            assert_false(choice.nesterov);
            const bool can = strcmp(names[n], "sgd") == 0;
            assert_int_equal(eng_optimizer_choose(optimizer, decays[d], 1, &choice, &error),
                             can ? ZERO_OK : ZERO_E_INVALID);
            if (can)
                assert_true(choice.nesterov);
            else
                assert_non_null(strstr(error.message, "has no Nesterov form"));
        }
    }
    struct eng_choice choice;
    struct base_error error = {0};
    assert_int_equal(eng_optimizer_choose(&eng_optimizer_sgd, (zero_decay)3, 0, &choice, &error),
                     ZERO_E_INVALID);
    assert_message(&error, "decay mode 3 does not exist");
    base_error_clear(&error);
    assert_int_equal(eng_optimizer_choose(&eng_optimizer_sgd, ZERO_DECAY_L2, 2, &choice, &error),
                     ZERO_E_INVALID);
    assert_message(&error, "nesterov is 2");
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
        {{1e-50, 0.9, 0.999, 1e-8, 0.1}, "adamw: lr is 1e-50, which is 0 in fp32"},
        {{1e-3, 0.9, 0.999, 1e-8, 1e-50}, "adamw: weight_decay is 1e-50, which is 0 in fp32"},
        {{1e-3, 0.9, 0.999, 1e-8, 1e39}, "adamw: weight_decay is 1e+39"},
        {{1e-3, 0.9, 0.999, 1e-8, -0.1}, "adamw: weight_decay is -0.1"},
        {{1e-3, 0.9, 0.999, 1e-8, INFINITY}, "adamw: weight_decay is inf"},
        {{0.5, 0.9, 0.999, 1e-8, 3}, "adamw: lr * weight_decay is 0.5 * 3"},
        {{1e38, 0.9, 0.999, 1e-8, 0}, "adamw: lr / (1 - beta1) is 1e+38 / (1 - 0.9"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct base_error error = {0};
        assert_int_equal(eng_optimizer_adamw.check(&decoupled, &bad[i].hyper, &error),
                         ZERO_E_INVALID);
        assert_message(&error, bad[i].message);
        assert_int_equal(eng_optimizer_adamw.check(&decoupled, &bad[i].hyper, NULL),
                         ZERO_E_INVALID);
    }
}

// Each optimizer looks at what it uses, and at nothing else.
static void check_others(void **state)
{
    (void)state;
    static const struct eng_choice l2 = {.decay = ZERO_DECAY_L2};
    static const struct eng_choice nesterov = {.decay = ZERO_DECAY_L2, .nesterov = true};
    static const struct {
        const char *name;
        const struct eng_choice *choice;
        zero_hyper hyper;
        const char *message; // NULL: accepted
    } cases[] = {
        {"adam", &l2, {0.5, 0.9, 0.999, 1e-8, 3}, NULL},
        {"adam", &decoupled, {0.5, 0.9, 0.999, 1e-8, 3}, "adam: lr * weight_decay"},
        {"adam", &l2, {0.5, 1, 0.999, 1e-8, 3}, "adam: beta1 is 1"},
        {"sgd", &l2, {0.5, 0, NAN, NAN, 3}, NULL},
        {"sgd", &l2, {0.5, 1, 0, 0, 3}, "sgd: beta1 is 1"},
        {"sgd", &l2, {-1, 0.9, 0, 0, 0}, "sgd: lr is -1"},
        {"sgd", &l2, {0.5, 0.9, 0, 0, -3}, "sgd: weight_decay is -3"},
        {"sgd", &decoupled, {0.5, 0.9, 0, 0, 3}, "sgd: lr * weight_decay"},
        {"sgd", &nesterov, {0.5, 0.9, 0, 0, 0}, NULL},
        {"sgd", &nesterov, {0.5, 0, 0, 0, 0}, "sgd: nesterov needs a momentum, but beta1 is 0"},
        {"lion", &decoupled, {1e-4, 0.9, 0.99, NAN, 1}, NULL},
        {"lion", &decoupled, {1e-4, -1, 0.99, 0, 1}, "lion: beta1 is -1"},
        {"lion", &decoupled, {1e-4, 0.9, 1, 0, 1}, "lion: beta2 is 1"},
        {"lion", &decoupled, {2, 0.9, 0.99, 0, 1}, "lion: lr * weight_decay"},
        {"adagrad", &l2, {0.01, NAN, NAN, 1e-10, 0.1}, NULL},
        {"adagrad", &l2, {0.01, 0, 0, -1e-10, 0.1}, "adagrad: eps is -1e-10"},
        {"adagrad", &l2, {INFINITY, 0, 0, 1e-10, 0.1}, "adagrad: lr is inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct eng_optimizer *optimizer = eng_optimizer_find(cases[i].name);
        struct base_error error = {0};
        const zero_result result = optimizer->check(cases[i].choice, &cases[i].hyper, &error);
        assert_int_equal(result, cases[i].message ? ZERO_E_INVALID : ZERO_OK);
        if (cases[i].message)
            assert_message(&error, cases[i].message);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find),          cmocka_unit_test(choose),
        cmocka_unit_test(check_accepts), cmocka_unit_test(check_refuses),
        cmocka_unit_test(check_others),  cmocka_unit_test(power),
        cmocka_unit_test(scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
