// Updates and squares that add contributions up themselves: in every table the bits of a scalar
// sum, ref's sums of squares and ref's update, and a stop before the first sum that is not finite.
#include "base/bfloat16.h"
#include "tests/sweep.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum {
    LARGEST = 2 * BASE_GRANULE + 517,
    GUARD = 32,
    ROOM = LARGEST + 2 * GUARD,
    SOURCES = 9,
    STATE = 3, // two moments, weight
    GRANULES = LARGEST / BASE_GRANULE + 1,
};

// What an update changes, with guards on both sides; compared whole.
struct state {
    float f[STATE][ROOM];
    uint16_t work[ROOM];
};

// What every contribution is: bits of the dtype of a case.
struct inputs {
    float wide[SOURCES][ROOM];
    uint16_t narrow[SOURCES][ROOM];
    float before[ROOM];
};

// What is planted into the contributions.
enum planted { NOTHING, A_NAN, AN_INFINITY, AN_OVERFLOW };

struct test_case {
    enum base_rule rule;
    zero_dtype dtype, work;
    int count; // of contributions
    bool before, past_caches, squares, l2;
    size_t first, elements;
    enum planted planted;
    size_t bad;   // where
    bool forgets; // beta2 is 0
    bool odd;     // a number of the state is
    int odd_array;
    size_t odd_at;
    float odd_value;
};

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

static uint16_t narrowed(zero_dtype dtype, float x)
{
    return dtype == ZERO_BF16 ? base_bf16_from_f32(x) : base_f16_from_f32(x);
}

static void plant(const struct test_case *test, struct inputs *in, int source, float value)
{
    in->wide[source][test->first + test->bad] = value;
    in->narrow[source][test->first + test->bad] = narrowed(test->dtype, value);
}

static void make_inputs(const struct test_case *test, uint64_t stream, struct inputs *in)
{
    const enum input_kind kind = stream % 3 == 0 ? INPUT_TINY : INPUT_ORDINARY;
    for (int k = 0; k < test->count; k++) {
        input_fill(kind, stream * SOURCES + (uint64_t)k, ROOM, in->wide[k]);
        for (size_t i = 0; i < ROOM; i++)
            in->narrow[k][i] = narrowed(test->dtype, in->wide[k][i]);
    }
    input_fill(kind, stream ^ 0x77777, ROOM, in->before);
    const int last = test->count - 1;
    if (test->planted == A_NAN)
        plant(test, in, last, NAN);
    if (test->planted == AN_INFINITY)
        plant(test, in, 0, -INFINITY);
    if (test->planted == AN_OVERFLOW) {
        plant(test, in, 0, 3e38f);
        plant(test, in, last, 3e38f);
    }
}

static struct base_update update_of(const struct test_case *test, struct state *state)
{
    return (struct base_update){
        .count = test->elements,
        .moment = {state->f[0] + GUARD, state->f[1] + GUARD},
        .weight = state->f[2] + GUARD,
        .work = test->work == ZERO_F32 ? NULL : state->work + GUARD,
        .work_dtype = test->work,
        .past_caches = test->past_caches,
    };
}

static struct base_rule_scalars scalars_of(const struct test_case *test)
{
    struct base_rule_scalars scalars = input_scalars(test->rule, test->l2, false);
    if (test->forgets) {
        scalars.beta2 = 0;
        scalars.one_minus_beta2 = 1;
    }
    return scalars;
}

// What a table made of a case.
struct outcome {
    size_t done;
    double squares[GRANULES]; // of the update,
    double alone[GRANULES];   // and without one
};

// Whether an update has stored what is not finite.
static bool is_wrong(enum base_rule rule, const struct base_update *update, size_t done)
{
    bool finite = true;
    for (size_t i = 0; i < done; i++) {
        finite = finite && isfinite(update->weight[i]) && isfinite(update->moment[0][i]);
        finite = finite && (rule != BASE_RULE_ADAM || isfinite(update->moment[1][i]));
        if (update->work && update->work_dtype == ZERO_F16)
            finite = finite && (update->work[i] & 0x7c00) != 0x7c00;
    }
    return !finite;
}

static void run(const struct base_kernels *table, const struct test_case *test,
                const struct inputs *in, struct state *state, struct outcome *out)
{
    const void *sources[SOURCES];
    for (int k = 0; k < test->count; k++)
        sources[k] = test->dtype == ZERO_F32 ? (const void *)in->wide[k] : in->narrow[k];
    const struct base_contributions from = {
        .before = test->before ? in->before : NULL,
        .dtype = test->dtype,
        .sources = sources,
        .count = test->count,
        .first = test->first,
    };
    const struct base_rule_scalars scalars = scalars_of(test);
    bool alarm = false;
    struct base_update update = update_of(test, state);
    update.alarm = &alarm;
    *out = (struct outcome){.done = 0};
    out->done = table->update_sum[test->rule](&scalars, &update, &from,
                                              test->squares ? out->squares : NULL);
    if (is_wrong(test->rule, &update, out->done))
        assert_true(alarm);
    table->sum_squares(test->elements, &from, out->alone);
}

static float contribution(const struct test_case *test, const struct inputs *in, int k, size_t i)
{
    const uint16_t narrow = in->narrow[k][test->first + i];
    if (test->dtype == ZERO_F32)
        return in->wide[k][test->first + i];
    return test->dtype == ZERO_BF16 ? base_f32_from_bf16(narrow) : base_f32_from_f16(narrow);
}

// The definition, of the first `done` elements: a sum, squares, an update.
static void expect(const struct test_case *test, const struct inputs *in, size_t done,
                   struct state *state, double squares[GRANULES])
{
    static float total[LARGEST];
    for (size_t i = 0; i < done; i++) {
        float value = contribution(test, in, 0, i);
        if (test->before)
            value = in->before[i] + value;
        for (int k = 1; k < test->count; k++)
            value = value + contribution(test, in, k, i);
        total[i] = value;
    }
    for (size_t i = 0; i < done; i += BASE_GRANULE) {
        const size_t left = done - i;
        squares[i / BASE_GRANULE] =
            squares_of(usable_table(0), left < BASE_GRANULE ? left : BASE_GRANULE, total + i);
    }
    const struct base_rule_scalars scalars = scalars_of(test);
    struct base_update update = update_of(test, state);
    update.count = done;
    update.gradient = total;
    usable_table(0)->update[test->rule](&scalars, &update);
}

static void fill(struct state *state, uint64_t stream)
{
    for (uint64_t k = 0; k < STATE; k++)
        input_fill(INPUT_ORDINARY, stream * STATE + k + 1000000, ROOM, state->f[k]);
    for (size_t i = 0; i < ROOM; i++) {
        state->f[1][i] = fabsf(state->f[1][i]); // squares have no sign
        state->work[i] = (uint16_t)(0xa5a5 ^ i);
    }
}

static void compare(const struct test_case *test, uint64_t stream)
{
    static struct inputs in;
    static struct state before, expected, actual;
    make_inputs(test, stream, &in);
    fill(&before, stream);
    if (test->odd)
        before.f[test->odd_array][GUARD + test->odd_at] = test->odd_value;
    for (size_t t = 0; usable_table(t); t++) {
        double squares[GRANULES] = {0};
        struct outcome out;
        actual = expected = before;
        run(usable_table(t), test, &in, &actual, &out);
        const size_t done = out.done;
        if (test->planted == NOTHING) {
            assert_int_equal(done, test->elements);
        } else {
            assert_true(done <= test->bad);
            assert_true(done + 16 > test->bad); // at most a vector before it
        }
        expect(test, &in, done, &expected, squares);
        if (memcmp(&expected, &actual, sizeof expected) != 0)
            fail_msg("%s differs from the definition: rule %d, dtype %d, %d contributions, %zu "
                     "elements, stream %llu",
                     usable_table(t)->name, (int)test->rule, (int)test->dtype, test->count,
                     test->elements, (unsigned long long)stream);
        const size_t whole = test->planted == NOTHING ? (done + BASE_GRANULE - 1) / BASE_GRANULE
                                                      : done / BASE_GRANULE;
        assert_memory_equal(out.alone, squares, whole * sizeof(double));
        if (test->planted != NOTHING)
            assert_true(isfinite(out.alone[test->bad / BASE_GRANULE]) == 0);
        if (test->squares)
            assert_memory_equal(out.squares, squares, whole * sizeof(double));
    }
}

static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};

// Every rule with every dtype.
enum { KINDS = BASE_RULES * 3 };

// The n-th case of some number of elements: everything else by turns.
static struct test_case case_of(uint64_t n, size_t elements)
{
    return (struct test_case){
        .rule = (enum base_rule)(n % BASE_RULES),
        .dtype = dtypes[n / BASE_RULES % 3],
        .work = dtypes[n / 3 % 3],
        .count = 1 + (int)(n % SOURCES),
        .before = n / 5 % 2,
        .past_caches = n / 7 % 2,
        .squares = n % 11 > 3,
        .l2 = n / 13 % 2,
        .first = n % 2 ? 0 : n % GUARD,
        .elements = elements,
    };
}

static void counts(void **state)
{
    (void)state;
    for (size_t elements = 0; elements <= LARGEST; elements += elements < 70 ? 1 : 37)
        for (uint64_t n = 0; n < 12; n++) {
            const uint64_t stream = elements * 12 + n;
            if (!test_takes((int)(elements + n)))
                continue;
            const struct test_case test = case_of(stream * 7 + n, elements);
            compare(&test, stream);
        }
}

// Every dtype with every number of contributions and every rule.
static void kinds(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < KINDS * SOURCES * 2; n++) {
        if (!test_takes((int)(n + n / KINDS)))
            continue;
        struct test_case test = case_of(n, 1037);
        test.count = 1 + (int)(n / KINDS % SOURCES);
        test.before = n / KINDS / SOURCES;
        compare(&test, 900000 + n);
    }
}

static void stops(void **state)
{
    (void)state;
    const size_t places[] = {0,    1,    15,   16,   17,   1008,       1023,
                             1024, 1025, 2047, 2048, 2100, LARGEST - 1};
    for (uint64_t n = 0; n < 13 * 36; n++) {
        if (!test_takes((int)(n + n / 13)))
            continue;
        struct test_case test = case_of(n, LARGEST);
        test.bad = places[n % 13];
        test.planted = A_NAN + (enum planted)(n / 13 % 3);
        test.squares = true;
        if (test.planted == AN_OVERFLOW && test.dtype == ZERO_F16)
            test.dtype = ZERO_BF16;
        if (test.planted == AN_OVERFLOW && test.count == 1)
            test.count = 2;
        compare(&test, 500000 + n);
    }
}

// Two contributions whose sums are finite, the working copy of their dtype: a loop of its own,
// which mends afterwards what a number of the state that is none has led to.
static void odd_states(void **state)
{
    (void)state;
    const float values[] = {NAN, -INFINITY, INFINITY, -1.0f, 3e38f, -3e38f};
    const size_t places[] = {0, 7, 15, 16, 31, 32, 1023, 1024, 1039, 1040};
    for (uint64_t n = 0; n < KINDS * 3 * 6 * 10; n++) {
        const uint64_t value = n / KINDS / 3, place = value / 6;
        if (!test_takes((int)(n + n / KINDS)))
            continue;
        const struct test_case test = {
            .rule = (enum base_rule)(n % BASE_RULES),
            .dtype = dtypes[n / BASE_RULES % 3],
            .work = dtypes[n / BASE_RULES % 3],
            .count = 2,
            .first = n % 5,
            .elements = n % 7 ? 1041 : 1056,
            .forgets = place % 2,
            .l2 = place / 2 % 2,
            .odd = true,
            .odd_array = (int)(n / KINDS % 3),
            .odd_value = values[value % 6],
            .odd_at = places[place],
        };
        compare(&test, 700000 + n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(counts, enter, leave),
        cmocka_unit_test_setup_teardown(kinds, enter, leave),
        cmocka_unit_test_setup_teardown(stops, enter, leave),
        cmocka_unit_test_setup_teardown(odd_states, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
