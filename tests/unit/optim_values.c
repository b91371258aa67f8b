// What optimizers compute, element by element, against their papers: every optimizer with either
// decay, by every table.
#include "tests/numerics/optimizer_reference.h"
#include "tests/unit/kernel_inputs.h"
#include "zero/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// An optimizer in one of its forms, and hyper-parameters for it whose betas fp32 holds, so that the
// bounds are tightest.
struct form {
    const char *name;
    struct reference_optimizer reference;
    zero_hyper hyper;
};

static const struct form forms[] = {
    {"adamw", {REFERENCE_ADAM, false, false}, {1e-3, 0.875, 0.998046875, 1e-8, 0.1}},
    {"adamw", {REFERENCE_ADAM, true, false}, {1e-3, 0.875, 0.998046875, 1e-8, 0.1}},
    {"adam", {REFERENCE_ADAM, true, false}, {1e-3, 0.875, 0.998046875, 1e-8, 0.1}},
    {"adam", {REFERENCE_ADAM, false, false}, {1e-3, 0.875, 0.998046875, 1e-8, 0.1}},
    {"sgd", {REFERENCE_SGD, true, false}, {1e-2, 0.875, 0, 0, 0.1}},
    {"sgd", {REFERENCE_SGD, false, false}, {1e-2, 0.875, 0, 0, 0.1}},
    {"sgd", {REFERENCE_SGD, true, true}, {1e-2, 0.875, 0, 0, 0.1}},
    {"sgd", {REFERENCE_SGD, false, true}, {1e-2, 0.875, 0, 0, 0.1}},
    {"lion", {REFERENCE_LION, false, false}, {1e-4, 0.875, 0.984375, 0, 1}},
    {"lion", {REFERENCE_LION, true, false}, {1e-4, 0.875, 0.984375, 0, 0.1}},
    {"adagrad", {REFERENCE_ADAGRAD, true, false}, {1e-2, 0, 0, 1e-10, 0.1}},
    {"adagrad", {REFERENCE_ADAGRAD, false, false}, {1e-2, 0, 0, 1e-10, 0.1}},
};

enum { FORMS = sizeof forms / sizeof forms[0] };

enum { ELEMENTS = 64, UPDATES = 500 };

// The state of a few elements as the kernels have it.
struct run {
    float gradient[ELEMENTS], m[ELEMENTS], v[ELEMENTS], weight[ELEMENTS];
};

// By every table; all give the bits of the first.
static void update(const struct form *form, struct run *run, const zero_hyper *hyper,
                   uint64_t updates, double scale)
{
    const struct eng_optimizer *optimizer = eng_optimizer_find(form->name);
    const struct eng_choice choice = {
        .decay = form->reference.l2 ? ZERO_DECAY_L2 : ZERO_DECAY_DECOUPLED,
        .nesterov = form->reference.nesterov,
    };
    const struct run before = *run;
    union eng_scalars s;
    struct base_fp_state saved;
    struct base_error error = {0};
    assert_int_equal(optimizer->check(&choice, hyper, &error), ZERO_OK);
    base_fp_enter(&saved);
    optimizer->prepare(&choice, hyper, updates, scale, &s);
    for (size_t t = 0; usable_table(t); t++) {
        struct run by_table = before;
        const struct base_update all = {
            .count = ELEMENTS,
            .gradient = by_table.gradient,
            .moment = {by_table.m, optimizer->moments > 1 ? by_table.v : NULL},
            .weight = by_table.weight,
        };
        optimizer->update(&choice, usable_table(t), &s, &all);
        if (t > 0)
            assert_memory_equal(&by_table, run, sizeof by_table);
        *run = by_table;
    }
    base_fp_leave(&saved);
}

static void assert_matches(const struct form *form, const struct reference_element *expected,
                           const struct run *run, size_t i, uint64_t updates, long double *worst)
{
    if (!reference_matches(expected->m, run->m[i], worst) ||
        !reference_matches(expected->v, run->v[i], worst) ||
        !reference_matches(expected->weight, run->weight[i], worst))
        fail_msg("%s%s%s, element %zu, update %llu: weight %.9g m %.9g v %.9g instead of %.9Lg "
                 "%.9Lg %.9Lg within %.3Lg %.3Lg %.3Lg",
                 form->name, form->reference.l2 ? ", L2" : "",
                 form->reference.nesterov ? ", Nesterov" : "", i, (unsigned long long)updates,
                 (double)run->weight[i], (double)run->m[i], (double)run->v[i],
                 expected->weight.value, expected->m.value, expected->v.value,
                 expected->weight.error, expected->m.error, expected->v.error);
}

// One update from a given state: the bounds are a few roundings wide.
static long double one_update(const struct form *form, const zero_hyper *hyper,
                              enum input_kind kind, uint64_t stream, uint64_t updates, double scale)
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
        if (form->reference.formula == REFERENCE_ADAGRAD)
            run.m[i] = fabsf(run.m[i]);
        expected[i] = (struct reference_element){{run.weight[i], 0}, {run.m[i], 0}, {run.v[i], 0}};
        const struct reference_value sum = {run.gradient[i], 0};
        reference_update(&expected[i], &form->reference, hyper, updates, sum,
                         reference_rounded(scale));
    }
    update(form, &run, hyper, updates, scale);
    for (size_t i = 0; i < ELEMENTS; i++)
        assert_matches(form, &expected[i], &run, i, updates, &worst);
    return worst;
}

static void single_updates(void **state)
{
    (void)state;
    static const zero_hyper others[] = {
        {1e-3, 0.875, 0.998046875, 1e-8, 0}, {0.5, 0.5, 0.75, 1e-3, 1.5},
        {0, 0.875, 0.5, 1e-8, 0.1},          {1e-5, 0.25, 0, 1e-12, 1e-3},
        {3e-2, 0.9, 0.999, 1e-6, 1},         {1e-3, 0.9, 0.95, 1, 0.1},
    };
    static const double scales[] = {1.0, 0.2, 1.0 / 3.0, 1e-4, 1024.0};
    for (size_t f = 0; f < FORMS; f++) {
        const struct form *form = &forms[f];
        long double worst = 0;
        for (uint64_t i = 0; i < 300; i++) {
            const uint64_t updates = i < 150 ? i + 1 : i * i;
            const double scale = scales[i % 5];
            worst =
                fmaxl(worst, one_update(form, &form->hyper, INPUT_ORDINARY, 4 * i, updates, scale));
            one_update(form, &others[i % 6], INPUT_ORDINARY, 4 * i, updates, scale);
            one_update(form, &others[i % 6], INPUT_TINY, 4 * i, updates, scale);
            one_update(form, &others[i % 6], INPUT_DENORMAL, 4 * i, updates, scale);
            one_update(form, &others[i % 6], INPUT_ZERO, 4 * i, updates, scale);
        }
        assert_true(worst > 0.3L); // a bound that is never approached would see no bug
    }
}

// Many updates with gradients of many sizes, a schedule, decay and a varying clip factor.
static long double train(const struct form *form, zero_hyper hyper, double size)
{
    struct run run = {0};
    struct reference_element expected[ELEMENTS];
    long double worst = 0;
    for (size_t i = 0; i < ELEMENTS; i++) {
        run.weight[i] = (float)zero_random_normal(1, 1, i);
        expected[i] = (struct reference_element){.weight = {run.weight[i], 0}};
    }
    for (uint64_t updates = 1; updates <= UPDATES; updates++) {
        const double scale = updates % 3 ? 1.0 : 1.0 / (double)updates;
        hyper.lr = form->hyper.lr * (double)updates / (100.0 + (double)updates);
        for (uint64_t i = 0; i < ELEMENTS; i++) {
            const double normal = zero_random_normal(2, updates, i);
            run.gradient[i] =
                i % 8 && updates % 5 ? (float)(size * normal * (double)(i % 8)) : 0.0f;
            const struct reference_value sum = {run.gradient[i], 0};
            reference_update(&expected[i], &form->reference, &hyper, updates, sum,
                             reference_rounded(scale));
        }
        update(form, &run, &hyper, updates, scale);
        for (size_t i = 0; i < ELEMENTS; i++)
            assert_matches(form, &expected[i], &run, i, updates, &worst);
    }
    return worst;
}

static void trajectories(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMS; f++) {
        zero_hyper usual = forms[f].hyper;
        usual.beta1 = usual.beta1 > 0 ? 0.9 : 0;
        usual.beta2 = usual.beta2 > 0 ? 0.999 : 0;
        print_message("%s: largest distance %.2Lf of the bound\n", forms[f].name,
                      train(&forms[f], forms[f].hyper, 1.0));
        train(&forms[f], usual, 1.0);
        train(&forms[f], usual, 1e-6);
        train(&forms[f], usual, 1e6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_updates),
        cmocka_unit_test(trajectories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
