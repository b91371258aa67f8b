// Every table gives the bits of ref, for every kind of input, count and alignment, and touches
// nothing beside its arrays.
#include "tests/unit/kernel_inputs.h"

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
    float f[ARRAYS][ROOM]; // gradient, m, v, weight
    uint16_t work[ROOM];
};

// Where each array begins, so that each can have an alignment of its own.
struct place {
    size_t f[ARRAYS];
    size_t work;
};

static const struct place aligned = {{GUARD, GUARD, GUARD, GUARD}, GUARD};

static int enter(void **state)
{
    static struct eng_fp_state saved;
    *state = &saved;
    eng_fp_enter(&saved);
    return 0;
}

static int leave(void **state)
{
    eng_fp_leave(*state);
    return 0;
}

static struct eng_adamw_scalars usual_scalars(void)
{
    return (struct eng_adamw_scalars){
        .gradient_scale = 0.125f,
        .beta1 = 0.9f,
        .one_minus_beta1 = 0.1f,
        .beta2 = 0.999f,
        .one_minus_beta2 = 0.001f,
        .decay = 1e-4f,
        .step_size = 1e-2f,
        .inverse_sqrt_correction = 31.6f,
        .eps = 1e-8f,
    };
}

// Scalars of one kind, or all bits of all scalars at random.
static struct eng_adamw_scalars scalars_of(enum input_kind kind, uint64_t stream)
{
    struct eng_adamw_scalars scalars;
    float values[sizeof scalars / sizeof(float)];
    input_fill(kind, stream, sizeof scalars / sizeof(float), values);
    memcpy(&scalars, values, sizeof scalars);
    return scalars;
}

static void fill(struct arrays *a, const enum input_kind kind[ARRAYS], uint64_t stream)
{
    for (uint64_t k = 0; k < ARRAYS; k++)
        input_fill(kind[k], stream * ARRAYS + k, ROOM, a->f[k]);
    for (size_t i = 0; i < ROOM; i++)
        a->work[i] = (uint16_t)(0xa5a5 ^ i);
}

static void run(const struct eng_kernels *table, const struct eng_adamw_scalars *scalars,
                size_t count, const struct place *at, bool narrow, struct arrays *a)
{
    table->adamw(scalars, count, a->f[0] + at->f[0], a->f[1] + at->f[1], a->f[2] + at->f[2],
                 a->f[3] + at->f[3], narrow ? a->work + at->work : NULL);
}

static void assert_canonical(const struct arrays *a, size_t count, const struct place *at)
{
    for (int k = 1; k < ARRAYS; k++) {
        for (size_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &a->f[k][at->f[k] + i], sizeof bits);
            if ((bits & 0x7fffffffu) > 0x7f800000u)
                assert_int_equal(bits, 0x7fc00000u);
        }
    }
}

static void assert_untouched(const struct arrays *before, const struct arrays *after, size_t count,
                             const struct place *at)
{
    const size_t head = sizeof(float);
    for (int k = 0; k < ARRAYS; k++) {
        const size_t begin = at->f[k], end = begin + (k == 0 ? 0 : count);
        assert_memory_equal(before->f[k], after->f[k], begin * head);
        assert_memory_equal(before->f[k] + end, after->f[k] + end, (ROOM - end) * head);
    }
    const size_t end = at->work + count;
    assert_memory_equal(before->work, after->work, at->work * sizeof(uint16_t));
    assert_memory_equal(before->work + end, after->work + end, (ROOM - end) * sizeof(uint16_t));
}

// Runs all tables over the same arrays and compares everything, guards included.
static void compare(const struct eng_adamw_scalars *scalars, size_t count, const struct place *at,
                    bool narrow, const enum input_kind kind[ARRAYS], uint64_t stream)
{
    static struct arrays before, expected, actual;
    fill(&before, kind, stream);
    expected = before;
    run(usable_table(0), scalars, count, at, narrow, &expected);
    assert_canonical(&expected, count, at);
    assert_untouched(&before, &expected, count, at);
    for (size_t t = 1; usable_table(t); t++) {
        actual = before;
        run(usable_table(t), scalars, count, at, narrow, &actual);
        if (memcmp(&expected, &actual, sizeof expected) != 0)
            fail_msg("%s differs from ref: count %zu, kinds %d %d %d %d, stream %llu",
                     usable_table(t)->name, count, kind[0], kind[1], kind[2], kind[3],
                     (unsigned long long)stream);
    }
}

static void adamw_kinds(void **state)
{
    (void)state;
    const struct eng_adamw_scalars usual = usual_scalars();
    uint64_t stream = 0;
    enum input_kind kind[ARRAYS];
    for (unsigned code = 0; code < 7 * 7 * 7 * 7; code++) {
        unsigned rest = code;
        for (int k = 0; k < ARRAYS; k++, rest /= INPUT_KINDS)
            kind[k] = (enum input_kind)(rest % INPUT_KINDS);
        compare(&usual, 53, &aligned, true, kind, stream++);
    }
}

static void adamw_scalars(void **state)
{
    (void)state;
    const enum input_kind any[ARRAYS] = {INPUT_ANY, INPUT_ANY, INPUT_ANY, INPUT_ANY};
    const enum input_kind ordinary[ARRAYS] = {INPUT_ORDINARY, INPUT_ORDINARY, INPUT_ORDINARY,
                                              INPUT_ORDINARY};
    for (uint64_t i = 0; i < 100 * INPUT_KINDS; i++) {
        const struct eng_adamw_scalars scalars =
            scalars_of((enum input_kind)(i % INPUT_KINDS), 900000 + i);
        compare(&scalars, 53, &aligned, true, any, 100000 + i);
        compare(&scalars, 53, &aligned, true, ordinary, 100000 + i);
    }
}

static void adamw_counts(void **state)
{
    (void)state;
    const struct eng_adamw_scalars usual = usual_scalars();
    const enum input_kind kinds[ARRAYS] = {INPUT_NONFINITE, INPUT_ORDINARY, INPUT_ORDINARY,
                                           INPUT_ANY};
    for (size_t count = 0; count <= LARGEST; count += count < 100 ? 1 : 13) {
        compare(&usual, count, &aligned, true, kinds, 200000 + count);
        compare(&usual, count, &aligned, false, kinds, 200000 + count);
    }
}

static void adamw_alignments(void **state)
{
    (void)state;
    const struct eng_adamw_scalars usual = usual_scalars();
    const enum input_kind kinds[ARRAYS] = {INPUT_ORDINARY, INPUT_ORDINARY, INPUT_ORDINARY,
                                           INPUT_ORDINARY};
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t random = zero_random_bits(7, 7, i);
        struct place at;
        for (int k = 0; k < ARRAYS; k++)
            at.f[k] = GUARD + (random >> (4 * k) & 15);
        at.work = GUARD + (random >> 16 & 15);
        compare(&usual, random >> 32 & 127, &at, true, kinds, 300000 + i);
    }
}

// The rest of a table, on one input each.
static void compare_rest(const struct eng_kernels *table, enum input_kind kind, size_t count,
                         size_t at, uint64_t stream)
{
    static float in[ROOM], wide[2][ROOM];
    static uint16_t half[ROOM], out[2][ROOM];
    const struct eng_kernels *const tables[2] = {usable_table(0), table};
    double sum[2];
    input_fill(kind, stream, ROOM, in);
    for (size_t i = 0; i < ROOM; i++)
        half[i] = (uint16_t)(input_bits(kind, stream + 1, i) >> 16);
    memset(out, 0x5a, sizeof out);
    memset(wide, 0x5a, sizeof wide);
    for (int k = 0; k < 2; k++) {
        sum[k] = tables[k]->sum_squares(count, in + at);
        tables[k]->to_bf16(count, in + at, out[k] + GUARD);
        tables[k]->from_bf16(count, half + at, wide[k] + GUARD);
    }
    assert_memory_equal(&sum[0], &sum[1], sizeof sum[0]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_equal(wide[0], wide[1], sizeof wide[0]);
    for (size_t i = 0; i < 2; i++) { // nothing beside the result
        const size_t outside = i == 0 ? GUARD - 1 : GUARD + count;
        uint32_t bits;
        memcpy(&bits, &wide[1][outside], sizeof bits);
        assert_int_equal(bits, 0x5a5a5a5au);
        assert_int_equal(out[1][outside], 0x5a5a);
    }
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
    const struct eng_adamw_scalars usual = usual_scalars();
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
            const struct eng_kernels *table = usable_table(t);
            table->adamw(&usual, count, array[0], array[1], array[2], array[3], half);
            assert_true(table->sum_squares(count, array[0]) == 0.0);
            table->to_bf16(count, array[0], half);
            table->from_bf16(count, half, array[1]);
        }
    }
    for (int k = 0; k < ARRAYS; k++)
        munmap(f[k].map, 3 * f[k].page);
    munmap(work.map, 3 * work.page);
}

int main(void)
{
    for (size_t t = 0; eng_kernels_at(t); t++)
        print_message("%s: %s\n", eng_kernels_at(t)->name,
                      eng_kernels_at(t)->usable() ? "tested" : "not tested, no such processor");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(adamw_kinds, enter, leave),
        cmocka_unit_test_setup_teardown(adamw_scalars, enter, leave),
        cmocka_unit_test_setup_teardown(adamw_counts, enter, leave),
        cmocka_unit_test_setup_teardown(adamw_alignments, enter, leave),
        cmocka_unit_test_setup_teardown(others, enter, leave),
        cmocka_unit_test_setup_teardown(page_ends, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
