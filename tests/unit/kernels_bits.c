// Every table gives the bits of ref, for every kind of input, count and alignment, and touches
// nothing beside its arrays.
#include "tests/sweep.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARRAYS = 4, LARGEST = 1100, GUARD = 32, ROOM = LARGEST + 2 * GUARD };

// The arrays of one update, each with guards on both sides; compared whole.
struct arrays {
    float f[ARRAYS][ROOM]; // gradient, two moments, weight
    uint16_t work[ROOM];
};

// Where each array begins, so that each can have an alignment of its own.
struct place {
    size_t f[ARRAYS];
    size_t work;
};

static const struct place aligned = {{GUARD, GUARD, GUARD, GUARD}, GUARD};

// A rule in all its forms.
struct form {
    const char *name;
    enum base_rule rule;
    int moments;
    bool l2, nesterov;
};

static const struct form forms[] = {
    {"adam", BASE_RULE_ADAM, 2, false, false},
    {"adam, L2", BASE_RULE_ADAM, 2, true, false},
    {"sgd", BASE_RULE_SGD, 1, false, false},
    {"sgd, L2", BASE_RULE_SGD, 1, true, false},
    {"sgd, Nesterov", BASE_RULE_SGD, 1, false, true},
    {"sgd, L2, Nesterov", BASE_RULE_SGD, 1, true, true},
    {"lion", BASE_RULE_LION, 1, false, false},
    {"lion, L2", BASE_RULE_LION, 1, true, false},
    {"adagrad", BASE_RULE_ADAGRAD, 1, false, false},
    {"adagrad, L2", BASE_RULE_ADAGRAD, 1, true, false},
};

enum { FORMS = sizeof forms / sizeof forms[0] };

static int enter(void **state)
{
    static struct base_fp_state saved;
    *state = &saved;
    base_fp_enter(&saved);
    return 0;
}

static int leave(void **state)
{
    base_fp_leave(*state);
    return 0;
}

static struct base_rule_scalars usual_scalars(const struct form *form)
{
    return input_scalars(form->rule, form->l2, form->nesterov);
}

// Scalars of one kind, or all bits of all scalars at random.
static struct base_rule_scalars scalars_of(const struct form *form, enum input_kind kind,
                                           uint64_t stream)
{
    float v[9];
    input_fill(kind, stream, 9, v);
    return (struct base_rule_scalars){
        .rule = form->rule,
        .gradient_scale = v[0],
        .beta1 = v[1],
        .one_minus_beta1 = v[2],
        .beta2 = v[3],
        .one_minus_beta2 = v[4],
        .decay = v[5],
        .step_size = v[6],
        .inverse_sqrt_correction = v[7],
        .eps = v[8],
        .l2 = form->l2,
        .nesterov = form->nesterov,
    };
}

static void fill(struct arrays *a, const enum input_kind kind[ARRAYS], uint64_t stream)
{
    for (uint64_t k = 0; k < ARRAYS; k++)
        input_fill(kind[k], stream * ARRAYS + k, ROOM, a->f[k]);
    for (size_t i = 0; i < ROOM; i++)
        a->work[i] = (uint16_t)(0xa5a5 ^ i);
}

// The largest magnitude that an update has stored; infinite if something is a NaN.
static float highest(const struct arrays *a, const struct form *form, size_t count,
                     const struct place *at)
{
    float most = 0;
    for (int k = 1; k < ARRAYS; k++)
        for (size_t i = 0; i < count && (k < 1 + form->moments || k == 3); i++) {
            const float x = fabsf(a->f[k][at->f[k] + i]);
            most = !(x <= most) ? (isfinite(x) ? x : INFINITY) : most;
        }
    return most;
}

// The alarm is raised by what is not finite, and not by ordinary values.
static void assert_alarm(bool alarm, const struct arrays *a, const struct form *form,
                         const struct base_rule_scalars *scalars, size_t count,
                         const struct place *at, zero_dtype work)
{
    const float most = highest(a, form, count, at);
    bool finite = isfinite(most);
    for (size_t i = 0; i < count && work == ZERO_F16; i++)
        finite = finite && (a->work[at->work + i] & 0x7c00) != 0x7c00;
    if (!finite)
        assert_true(alarm);
    else if (most < 32768 && scalars->eps == 1e-8f)
        assert_false(alarm);
}

// Working copies: none, bf16, f16.
static bool run(const struct base_kernels *table, const struct base_rule_scalars *scalars,
                size_t count, const struct place *at, zero_dtype work, bool past_caches,
                struct arrays *a)
{
    bool alarm = false;
    const struct base_update update = {
        .count = count,
        .alarm = &alarm,
        .gradient = a->f[0] + at->f[0],
        .moment = {a->f[1] + at->f[1], a->f[2] + at->f[2]},
        .weight = a->f[3] + at->f[3],
        .work = work == ZERO_F32 ? NULL : a->work + at->work,
        .work_dtype = work,
        .past_caches = past_caches,
    };
    table->update[scalars->rule](scalars, &update);
    return alarm;
}

static void assert_canonical(const struct arrays *a, const struct form *form, size_t count,
                             const struct place *at)
{
    for (int k = 1; k < ARRAYS; k++) {
        for (size_t i = 0; i < count && (k < 1 + form->moments || k == 3); i++) {
            uint32_t bits;
            memcpy(&bits, &a->f[k][at->f[k] + i], sizeof bits);
            if ((bits & 0x7fffffffu) > 0x7f800000u)
                assert_int_equal(bits, 0x7fc00000u);
        }
    }
}

static void assert_untouched(const struct arrays *before, const struct arrays *after,
                             const struct form *form, size_t count, const struct place *at,
                             zero_dtype work)
{
    for (int k = 0; k < ARRAYS; k++) {
        const bool written = k == 3 || (k > 0 && k <= form->moments);
        const size_t begin = at->f[k], end = begin + (written ? count : 0);
        assert_memory_equal(before->f[k], after->f[k], begin * sizeof(float));
        assert_memory_equal(before->f[k] + end, after->f[k] + end, (ROOM - end) * sizeof(float));
    }
    const size_t end = at->work + (work == ZERO_F32 ? 0 : count);
    assert_memory_equal(before->work, after->work, at->work * sizeof(uint16_t));
    assert_memory_equal(before->work + end, after->work + end, (ROOM - end) * sizeof(uint16_t));
}

// That the working copy is what the table's own narrowing makes of the new weights.
static void assert_narrowed(const struct arrays *a, size_t count, const struct place *at,
                            zero_dtype work)
{
    uint16_t expected[LARGEST];
    if (work == ZERO_BF16)
        usable_table(0)->to_bf16(count, a->f[3] + at->f[3], expected);
    else
        usable_table(0)->to_f16(count, a->f[3] + at->f[3], expected);
    if (work != ZERO_F32)
        assert_memory_equal(a->work + at->work, expected, count * sizeof(uint16_t));
}

// Runs all tables over the same arrays and compares everything, guards included.
static void compare(const struct form *form, const struct base_rule_scalars *scalars, size_t count,
                    const struct place *at, zero_dtype work, const enum input_kind kind[ARRAYS],
                    uint64_t stream)
{
    static struct arrays before, expected, actual;
    fill(&before, kind, stream);
    expected = before;
    bool alarm = run(usable_table(0), scalars, count, at, work, false, &expected);
    assert_alarm(alarm, &expected, form, scalars, count, at, work);
    assert_canonical(&expected, form, count, at);
    assert_untouched(&before, &expected, form, count, at, work);
    assert_narrowed(&expected, count, at, work);
    for (size_t t = 1; usable_table(t); t++) {
        actual = before;
        alarm = run(usable_table(t), scalars, count, at, work, (stream + count) % 2, &actual);
        assert_alarm(alarm, &actual, form, scalars, count, at, work);
        if (memcmp(&expected, &actual, sizeof expected) != 0)
            fail_msg("%s, %s differs from ref: count %zu, kinds %d %d %d %d, stream %llu",
                     form->name, usable_table(t)->name, count, kind[0], kind[1], kind[2], kind[3],
                     (unsigned long long)stream);
    }
}

// The working copy of the n-th comparison.
static zero_dtype work_of(uint64_t n)
{
    static const zero_dtype works[] = {ZERO_BF16, ZERO_F16, ZERO_F32};
    return works[n % 3];
}

static void update_kinds(void **state)
{
    (void)state;
    uint64_t stream = 0;
    enum input_kind kind[ARRAYS];
    for (size_t f = 0; f < FORMS; f++) {
        const struct base_rule_scalars usual = usual_scalars(&forms[f]);
        // Every combination of what is read: the second moment is not by all.
        const unsigned codes = forms[f].moments == 2 ? 7 * 7 * 7 * 7 : 7 * 7 * 7;
        for (unsigned code = TEST_PART; code < codes; code += TEST_STRIDE, stream++) {
            unsigned rest = code;
            for (int k = 0; k < ARRAYS; k++) {
                const bool read = k < 1 + forms[f].moments || k == 3;
                kind[k] = read ? (enum input_kind)(rest % INPUT_KINDS) : INPUT_ORDINARY;
                rest /= read ? INPUT_KINDS : 1;
            }
            compare(&forms[f], &usual, 53, &aligned, work_of(stream), kind, stream);
        }
    }
}

static void update_scalars(void **state)
{
    (void)state;
    const enum input_kind any[ARRAYS] = {INPUT_ANY, INPUT_ANY, INPUT_ANY, INPUT_ANY};
    const enum input_kind ordinary[ARRAYS] = {INPUT_ORDINARY, INPUT_ORDINARY, INPUT_ORDINARY,
                                              INPUT_ORDINARY};
    for (uint64_t i = 0; i < 100 * INPUT_KINDS * FORMS; i++) {
        const struct form *form = &forms[i / INPUT_KINDS % FORMS];
        const struct base_rule_scalars scalars =
            scalars_of(form, (enum input_kind)(i % INPUT_KINDS), 900000 + i);
        compare(form, &scalars, 53, &aligned, work_of(i / 2), any, 100000 + i);
        compare(form, &scalars, 53, &aligned, work_of(i / 2), ordinary, 100000 + i);
    }
}

static void update_counts(void **state)
{
    (void)state;
    const enum input_kind kinds[ARRAYS] = {INPUT_NONFINITE, INPUT_ORDINARY, INPUT_ORDINARY,
                                           INPUT_ANY};
    for (size_t f = 0; f < FORMS; f++) {
        const struct base_rule_scalars usual = usual_scalars(&forms[f]);
        for (size_t count = 0; count <= LARGEST; count += count < 100 ? 1 : 13)
            for (uint64_t k = 0; k < 3; k++)
                compare(&forms[f], &usual, count, &aligned, work_of(k), kinds, 200000 + count);
    }
}

static void update_alignments(void **state)
{
    (void)state;
    const enum input_kind kinds[ARRAYS] = {INPUT_ORDINARY, INPUT_ORDINARY, INPUT_ORDINARY,
                                           INPUT_ORDINARY};
    for (uint64_t i = 0; i < 300 * FORMS; i++) {
        const struct form *form = &forms[i % FORMS];
        const struct base_rule_scalars usual = usual_scalars(form);
        const uint64_t random = zero_random_bits(7, 7, i);
        struct place at;
        for (int k = 0; k < ARRAYS; k++)
            at.f[k] = GUARD + (random >> (4 * k) & 15);
        at.work = GUARD + (random >> 16 & 15);
        compare(form, &usual, random >> 32 & 127, &at, work_of(i / FORMS), kinds, 300000 + i);
    }
}

// What narrows, in every table.
struct narrowing {
    const char *name;
    void (*run)(const struct base_kernels *table, uint64_t first, size_t count, const float *x,
                uint16_t *out);
};

static void run_to_bf16(const struct base_kernels *table, uint64_t first, size_t count,
                        const float *x, uint16_t *out)
{
    (void)first;
    table->to_bf16(count, x, out);
}

static void run_to_f16(const struct base_kernels *table, uint64_t first, size_t count,
                       const float *x, uint16_t *out)
{
    (void)first;
    table->to_f16(count, x, out);
}

static void run_round_bf16(const struct base_kernels *table, uint64_t first, size_t count,
                           const float *x, uint16_t *out)
{
    table->round_bf16(UINT64_C(0x123456789abcdef0), first, count, x, out);
}

static void run_round_f16(const struct base_kernels *table, uint64_t first, size_t count,
                          const float *x, uint16_t *out)
{
    table->round_f16(UINT64_C(0xfedcba9876543210), first, count, x, out);
}

static const struct narrowing narrowings[] = {
    {"to_bf16", run_to_bf16},
    {"to_f16", run_to_f16},
    {"round_bf16", run_round_bf16},
    {"round_f16", run_round_f16},
};

// One table against ref: results, and nothing beside them.
static void compare_narrowing(const struct base_kernels *table, const struct narrowing *narrowing,
                              uint64_t first, size_t count, const float *x)
{
    static uint16_t out[2][ROOM];
    memset(out, 0x5a, sizeof out);
    narrowing->run(usable_table(0), first, count, x, out[0] + GUARD);
    narrowing->run(table, first, count, x, out[1] + GUARD);
    if (memcmp(out[0], out[1], sizeof out[0]) != 0)
        fail_msg("%s, %s differs from ref: count %zu, first %llu", narrowing->name, table->name,
                 count, (unsigned long long)first);
    assert_int_equal(out[0][GUARD - 1], 0x5a5a);
    assert_int_equal(out[0][GUARD + count], 0x5a5a);
}

static void compare_widening(const struct base_kernels *table, size_t count, const uint16_t *x)
{
    static float wide[2][2][ROOM];
    const struct base_kernels *const tables[2] = {usable_table(0), table};
    memset(wide, 0x5a, sizeof wide);
    for (int k = 0; k < 2; k++) {
        tables[k]->from_bf16(count, x, wide[k][0] + GUARD);
        tables[k]->from_f16(count, x, wide[k][1] + GUARD);
    }
    assert_memory_equal(wide[0], wide[1], sizeof wide[0]);
    for (int k = 0; k < 4; k++) { // nothing beside the result
        uint32_t bits;
        memcpy(&bits, &wide[0][k / 2][k % 2 ? GUARD - 1 : GUARD + count], sizeof bits);
        assert_int_equal(bits, 0x5a5a5a5au);
    }
}

// The rest of a table, on one input each.
static void compare_rest(const struct base_kernels *table, enum input_kind kind, size_t count,
                         size_t at, uint64_t stream)
{
    static float in[ROOM];
    static uint16_t half[ROOM];
    input_fill(kind, stream, ROOM, in);
    for (size_t i = 0; i < ROOM; i++)
        half[i] = (uint16_t)(input_bits(kind, stream + 1, i) >> 16);
    const double expected = squares_of(usable_table(0), count, in + at);
    const double actual = squares_of(table, count, in + at);
    assert_memory_equal(&expected, &actual, sizeof actual);
    for (size_t n = 0; n < sizeof narrowings / sizeof narrowings[0]; n++)
        compare_narrowing(table, &narrowings[n], at * 29, count, in + at);
    compare_widening(table, count, half + at);
}

static void others(void **state)
{
    (void)state;
    for (size_t t = 0; usable_table(t); t++)
        for (int kind = 0; kind < INPUT_KINDS; kind++)
            for (size_t count = 0; count <= 1024; count += count < 70 ? 1 : 53)
                compare_rest(usable_table(t), (enum input_kind)kind, count, count * 7 % GUARD,
                             400000 + 2 * count);
}

// Magnitudes around every f16, and random bits everywhere.
static void f16_range(void **state)
{
    (void)state;
    static float x[LARGEST];
    for (uint64_t i = 0; i < 500; i++) {
        for (uint64_t e = 0; e < LARGEST; e++) {
            const uint64_t random = zero_random_bits(5, i, e);
            const uint32_t exponent = 78 + (uint32_t)(random >> 32) % 66; // 2^-49 .. 2^17
            const uint32_t bits = ((uint32_t)random & 0x807fffffu) | exponent << 23;
            memcpy(&x[e], &bits, sizeof bits);
        }
        for (size_t t = 1; usable_table(t); t++)
            for (size_t n = 0; n < sizeof narrowings / sizeof narrowings[0]; n++)
                compare_narrowing(usable_table(t), &narrowings[n], i * 1000003 << i % 32, LARGEST,
                                  x);
    }
}

// A page between two that fault on any access.
struct fenced {
    unsigned char *map;
    size_t page;
};

static struct fenced fenced_page(void)
{
    struct fenced fenced = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    fenced.map = mmap(NULL, 3 * fenced.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fenced.map != MAP_FAILED);
    assert_return_code(mprotect(fenced.map + fenced.page, fenced.page, PROT_READ | PROT_WRITE), 0);
    memset(fenced.map + fenced.page, 0, fenced.page);
    return fenced;
}

// Array of `bytes` bytes at the first or last place of the page.
static void *fenced_array(const struct fenced *fenced, size_t bytes, bool last)
{
    return fenced->map + fenced->page + (last ? fenced->page - bytes : 0);
}

static void page_ends(void **state)
{
    (void)state;
    struct fenced f[ARRAYS], work = fenced_page();
    for (int k = 0; k < ARRAYS; k++)
        f[k] = fenced_page();
    for (size_t i = 0; i < 2 * 80; i++) {
        const bool last = i % 2;
        const size_t count = i / 2, bytes = count * sizeof(float);
        float *array[ARRAYS];
        for (int k = 0; k < ARRAYS; k++)
            array[k] = fenced_array(&f[k], bytes, last);
        uint16_t *half = fenced_array(&work, count * sizeof(uint16_t), last);
        for (size_t t = 0; usable_table(t); t++) {
            const struct base_kernels *table = usable_table(t);
            for (size_t k = 0; k < FORMS; k++) {
                const struct base_rule_scalars usual = usual_scalars(&forms[k]);
                const struct base_update update = {
                    .count = count,
                    .gradient = array[0],
                    .moment = {array[1], forms[k].moments > 1 ? array[2] : NULL},
                    .weight = array[3],
                    .work = work_of(k) == ZERO_F32 ? NULL : half,
                    .work_dtype = work_of(k),
                    .past_caches = k % 2,
                };
                table->update[forms[k].rule](&usual, &update);
            }
            assert_true(squares_of(table, count, array[0]) == 0.0);
            for (size_t n = 0; n < sizeof narrowings / sizeof narrowings[0]; n++)
                narrowings[n].run(table, last ? 128 - count : 0, count, array[0], half);
            table->from_bf16(count, half, array[1]);
            table->from_f16(count, half, array[1]);
        }
    }
    for (int k = 0; k < ARRAYS; k++)
        munmap(f[k].map, 3 * f[k].page);
    munmap(work.map, 3 * work.page);
}

int main(void)
{
    for (size_t t = 0; base_kernels_at(t); t++)
        print_message("%s: %s\n", base_kernels_at(t)->name,
                      base_kernels_at(t)->usable() ? "tested" : "not tested, no such processor");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(update_kinds, enter, leave),
        cmocka_unit_test_setup_teardown(update_scalars, enter, leave),
        cmocka_unit_test_setup_teardown(update_counts, enter, leave),
        cmocka_unit_test_setup_teardown(update_alignments, enter, leave),
        cmocka_unit_test_setup_teardown(others, enter, leave),
        cmocka_unit_test_setup_teardown(f16_range, enter, leave),
        cmocka_unit_test_setup_teardown(page_ends, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
