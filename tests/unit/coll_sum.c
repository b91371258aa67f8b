// The kernels of sums, minima and maxima: every instruction set equals the definition bit for bit,
// and the definition a loop that leaves nothing to doubt.

#include "base/bfloat16.h"
#include "base/kernels/kernel_tables.h"
#include "base/kernels/sum.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1100, MOST_SOURCES = 9, PAD = 3, ROOM = MOST + 2 * PAD };

static _Alignas(64) unsigned char contents[MOST_SOURCES][ROOM * 8];

static void fill_sources(zero_dtype dtype, uint32_t seed, bool finite)
{
    for (uint32_t k = 0; k < MOST_SOURCES; k++)
        fill_elements(dtype, contents[k], 0, ROOM, mix(seed, k, 9), finite);
}

struct shape {
    int count;
    size_t n, shift;
    bool store, far;
    enum base_sum_to to;
};

static void check_one(const struct base_sum_kernels *kernels, enum base_op op, zero_dtype dtype,
                      const struct shape *shape)
{
    static _Alignas(64) unsigned char memory[2][ROOM * 8];
    const size_t size = dtype_bytes(dtype), wide = sum_bytes(dtype);
    const void *sources[MOST_SOURCES];
    bool expected = true;
    fill_elements(base_accumulator_dtype(dtype), memory[0], 0, ROOM, 5, false);
    memcpy(memory[1], memory[0], sizeof memory[0]);
    unsigned char *sum = memory[0] + shape->shift * wide;
    for (int k = 0; k < shape->count; k++) {
        const unsigned char *source = contents[k] + (shape->shift + (size_t)k) % 2 * size;
        sources[k] = source;
        combine(op, dtype, sum, source + shape->shift * size, shape->n, shape->store && k == 0);
        for (size_t i = 0; i < shape->n; i++)
            expected &= op != BASE_SUM || is_finite(dtype, source, shape->shift + i);
    }
    finish(dtype, sum, shape->n);
    const struct base_pass pass = {.op = op,
                                   .sum = memory[1] + shape->shift * wide,
                                   .sources = sources,
                                   .count = shape->count,
                                   .first = shape->shift,
                                   .n = shape->n,
                                   .store = shape->store,
                                   .far = shape->far,
                                   .to = shape->to};
    base_prefetch_bytes = shape->far ? 2048 : 512; // on any processor
    const bool finite = kernels->sum[dtype](&pass);
    base_sum_fence();
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
    assert_int_equal(finite, expected);
    bool found = false;
    for (int k = 0; k < shape->count && op == BASE_SUM; k++)
        found |= base_sum_nonfinite(dtype, sources[k], shape->shift, shape->n) !=
                 shape->shift + shape->n;
    assert_true(op != BASE_SUM || finite == !found);
}

static const size_t lengths[] = {0,  1,  2,  7,   8,   9,   15,  16,  17,  31,  32,   33,   63,
                                 64, 65, 70, 127, 128, 129, 143, 255, 257, 300, 1023, 1024, 1025};

static void equal_bits_of(zero_dtype dtype, const struct base_sum_kernels *kernels, uint32_t round)
{
    fill_sources(dtype, round, round % 2 == 0);
    for (int count = 1; count <= MOST_SOURCES; count++)
        for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
            for (size_t shift = 0; shift < PAD; shift++) {
                const struct shape shape = {count,
                                            lengths[c],
                                            shift,
                                            (c + shift + round) % 2,
                                            (c + shift + round) / 2 % 2,
                                            c / 2 % 2 ? BASE_SUM_MEMORY : BASE_SUM_CACHE};
                for (int op = BASE_SUM; op <= BASE_MAX; op++)
                    if (op == BASE_SUM || (c + (size_t)count) % 3 == shift)
                        check_one(kernels, (enum base_op)op, dtype, &shape);
            }
}

static void equal_bits(void **state)
{
    (void)state;
    int tables = 0;
    for (const struct base_sum_kernels *kernels; (kernels = base_sum_at(tables)); tables++)
        for (uint32_t round = 0; round < 4; round++)
            for (int dtype = FIRST_DTYPE; dtype <= LAST_DTYPE; dtype++)
                equal_bits_of((zero_dtype)dtype, kernels, round);
    print_message("%d tables, the best is %s\n", tables, base_sum_best()->name);
    assert_true(tables >= 1 && base_sum_at(tables + 5) == NULL);
}

/** One element that is not finite, at each place, is noticed by each table; and so are sums that
 * are not, though all sources are. */
static void nonfinite_noticed(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81};
    enum { N = 267, SOURCES = 3 };
    static uint16_t halves[SOURCES][N];
    static _Alignas(64) float sum[N];
    const void *const sources[SOURCES] = {halves[0], halves[1], halves[2]};
    for (int k = 0; k < SOURCES; k++)
        for (int i = 0; i < N; i++)
            halves[k][i] = 0x3f80;
    const struct base_sum_kernels *kernels;
    for (int t = 0; (kernels = base_sum_at(t)); t++) {
        const struct base_pass pass = {.op = BASE_SUM,
                                       .sum = sum,
                                       .sources = sources,
                                       .count = SOURCES,
                                       .n = N,
                                       .store = true};
        for (int k = 0; k < SOURCES; k++)
            for (size_t i = 0; i < N; i++) {
                halves[k][i] = bad[i % (sizeof bad / sizeof *bad)];
                assert_false(kernels->sum[ZERO_BF16](&pass));
                assert_int_equal(base_sum_nonfinite(ZERO_BF16, sources[k], 0, N), i);
                halves[k][i] = 0x3f80;
            }
        for (int i = 0; i < N; i++)
            sum[i] = i == 200 ? base_f32_from_bits(0x7f800000) : 0.0f;
        struct base_pass again = pass;
        again.store = false;
        assert_true(kernels->sum[ZERO_BF16](&again));
        assert_int_equal(base_f32_bits(sum[200]), 0x7f800000);
    }
}

enum { PLACES = 2 };

/** Sums that go to more places, rounded or not, with and without a place of their own. */
static void check_more_places(const struct base_sum_kernels *kernels, enum base_op op,
                              zero_dtype dtype, const struct shape *shape, bool rounded)
{
    static _Alignas(64) unsigned char memory[PLACES + 1][2][ROOM * 8];
    const size_t wide = sum_bytes(dtype), size = rounded ? dtype_bytes(dtype) : wide;
    const void *sources[MOST_SOURCES];
    void *also[PLACES];
    memset(memory, 0xee, sizeof memory);
    unsigned char *sum = memory[PLACES][0] + shape->shift * wide;
    for (int k = 0; k < shape->count; k++) {
        sources[k] = contents[k];
        combine(op, dtype, sum, contents[k] + shape->shift * dtype_bytes(dtype), shape->n, k == 0);
    }
    finish(dtype, sum, shape->n);
    for (size_t q = 0; q < PLACES; q++) {
        also[q] = memory[q][1] + q * size;
        unsigned char *expected = memory[q][0] + (q + shape->shift + 1) * size;
        if (rounded)
            narrow(dtype, expected, sum, shape->n);
        else
            memcpy(expected, sum, shape->n * wide);
    }
    const bool alone = shape->store;
    if (alone)
        memset(memory[PLACES][0], 0xee, sizeof memory[PLACES][0]);
    const struct base_pass pass = {.op = op,
                                   .sum = alone ? NULL : memory[PLACES][1] + shape->shift * wide,
                                   .sources = sources,
                                   .count = shape->count,
                                   .first = shape->shift,
                                   .n = shape->n,
                                   .store = true,
                                   .to = shape->to,
                                   .also = also,
                                   .also_count = PLACES,
                                   .also_first = shape->shift + 1,
                                   .narrow = rounded};
    kernels->sum[dtype](&pass);
    base_sum_fence();
    for (size_t q = 0; q <= PLACES; q++)
        assert_memory_equal(memory[q][0], memory[q][1], sizeof memory[q][0]);
}

static void more_places(void **state)
{
    (void)state;
    const struct base_sum_kernels *kernels;
    for (int dtype = FIRST_DTYPE; dtype <= LAST_DTYPE; dtype++) {
        const bool narrow_dtype = dtype == ZERO_BF16 || dtype == ZERO_F16;
        fill_sources((zero_dtype)dtype, 8, false);
        for (int t = 0; (kernels = base_sum_at(t)); t++)
            for (int count = 1; count <= MOST_SOURCES; count += 2)
                for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
                    for (size_t shift = 0; shift < PAD; shift++) {
                        const struct shape shape = {
                            count,      lengths[c],
                            shift,      (c + shift) % 2,
                            c % 3 == 0, c / 2 % 2 ? BASE_SUM_MEMORY : BASE_SUM_CACHE};
                        check_more_places(kernels, (enum base_op)(c % 3), (zero_dtype)dtype, &shape,
                                          narrow_dtype && (c + shift) % 3 != 0);
                    }
    }
}

static void copying(void **state)
{
    (void)state;
    static unsigned char from[ROOM], memory[2][ROOM];
    fill_elements(ZERO_BF16, from, 0, ROOM / 2, 3, false);
    const struct base_sum_kernels *kernels;
    for (int t = 0; (kernels = base_sum_at(t)); t++)
        for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
            for (size_t shift = 0; shift < 2 * PAD; shift++) {
                memset(memory, 0xee, sizeof memory);
                memcpy(memory[0] + shift, from + 1, lengths[c]);
                kernels->copy(memory[1] + shift, from + 1, lengths[c],
                              shift % 2 ? BASE_SUM_MEMORY : BASE_SUM_CACHE);
                base_sum_fence();
                assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
            }
}

/** Floats of all exponents are rounded as the definition says. */
static void rounding(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float sums[N];
    static uint16_t expected[N], got[N], zeros[N];
    void *also = got;
    const struct base_sum_kernels *kernels;
    for (int dtype = ZERO_BF16; dtype <= ZERO_F16; dtype++) {
        const void *sources[] = {zeros};
        for (uint64_t begin = 0; begin <= UINT32_MAX; begin += (uint64_t)N * 509) {
            for (uint32_t i = 0; i < N; i++)
                sums[i] = base_f32_from_bits((uint32_t)begin + i * 509u);
            for (int t = 0; (kernels = base_sum_at(t)); t++) {
                static float sum[N];
                memcpy(sum, sums, sizeof sum);
                const struct base_pass pass = {.op = BASE_SUM,
                                               .sum = sum,
                                               .sources = sources,
                                               .count = 1,
                                               .n = N,
                                               .also = &also,
                                               .also_count = 1,
                                               .narrow = true};
                kernels->sum[dtype](&pass);
                narrow((zero_dtype)dtype, expected, sum, N);
                assert_memory_equal(got, expected, sizeof got);
            }
        }
    }
}

static void dtypes(void **state)
{
    (void)state;
    for (int dtype = FIRST_DTYPE; dtype <= LAST_DTYPE; dtype++) {
        assert_int_equal(base_dtype_bytes((zero_dtype)dtype), dtype_bytes((zero_dtype)dtype));
        assert_int_equal(base_dtype_bytes(base_accumulator_dtype((zero_dtype)dtype)),
                         sum_bytes((zero_dtype)dtype));
    }
    assert_int_equal(base_dtype_bytes(ZERO_DTYPE_DEFAULT), 0);
    assert_int_equal(base_dtype_bytes((zero_dtype)77), 0);
    assert_int_equal(base_accumulator_dtype(ZERO_F16), ZERO_F32);
    assert_int_equal(base_accumulator_dtype(ZERO_I64), ZERO_I64);
    assert_true(base_sum_core_bytes() > 0 && base_sum_cache_bytes() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bits),  cmocka_unit_test(nonfinite_noticed),
        cmocka_unit_test(more_places), cmocka_unit_test(copying),
        cmocka_unit_test(rounding),    cmocka_unit_test(dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
