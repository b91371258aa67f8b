// The kernels of the ordered sum: every instruction set equals the definition bit for bit, and the
// definition a loop that leaves nothing to doubt.

#include "base/bfloat16.h"
#include "collectives/sum/sum.h"
#include "tests/unit/coll_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1100, MOST_SOURCES = 9, PAD = 3 };

static float f32_sources[MOST_SOURCES][MOST + 2 * PAD];
static uint16_t bf16_sources[MOST_SOURCES][MOST + 2 * PAD];

/** Bits of every kind: ordinary, tiny, huge, zeros, and, if wanted, what is not finite. */
static uint32_t some_bits(uint32_t seed, bool finite)
{
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x00010000, 0x807f0000, 0x00800000,
                                       0x7f7f0000, 0xff7f0000, 0x3f800000, 0x7f800000, 0xff800000,
                                       0x7fc00000, 0xffc10000, 0x7f810000};
    const uint32_t bits = mix(seed, 3, 4);
    const uint32_t kinds = finite ? 8 : 13;
    if (bits % 4 == 0)
        return special[bits / 4 % kinds];
    const uint32_t random = mix(bits, 5, 6);
    const uint32_t near_one = 0x3f000000u + (random & 0x80ffffffu);
    return (random & 0x7f800000u) == 0x7f800000u || bits % 4 == 1 ? near_one : random;
}

static void fill_sources(uint32_t seed, bool finite)
{
    for (uint32_t k = 0; k < MOST_SOURCES; k++)
        for (uint32_t i = 0; i < MOST + 2 * PAD; i++) {
            const uint32_t bits = some_bits(mix(seed, k, i), finite);
            memcpy(&f32_sources[k][i], &bits, sizeof bits);
            bf16_sources[k][i] = (uint16_t)(bits >> 16);
        }
}

static const void *source(zero_dtype dtype, int k, size_t shift)
{
    return dtype == ZERO_F32 ? (const void *)(f32_sources[k] + shift)
                             : (const void *)(bf16_sources[k] + shift);
}

static float element(zero_dtype dtype, const void *from, size_t i)
{
    return dtype == ZERO_F32 ? ((const float *)from)[i]
                             : base_f32_from_bf16(((const uint16_t *)from)[i]);
}

/** The definition once more: returns whether all is finite. */
static bool plain(zero_dtype dtype, float *sum, const void *const *sources, int count, size_t first,
                  size_t n, bool store)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        volatile float value = store ? 0.0f : sum[i];
        for (int k = 0; k < count; k++) {
            const float addend = element(dtype, sources[k], first + i);
            finite &= isfinite(addend) != 0;
            if (store && k == 0)
                value = addend;
            else
                value = value + addend;
        }
        sum[i] = isnan(value) ? base_f32_from_bits(0x7fc00000) : value;
    }
    return finite;
}

static void check_one(const struct coll_sum_kernels *kernels, zero_dtype dtype, int count, size_t n,
                      size_t shift, bool store)
{
    static float memory[2][MOST + 2 * PAD];
    const void *sources[MOST_SOURCES];
    for (int k = 0; k < count; k++)
        sources[k] = source(dtype, k, (shift + (size_t)k) % 2);
    for (size_t i = 0; i < MOST + 2 * PAD; i++)
        memory[0][i] = memory[1][i] = f32_sources[MOST_SOURCES - 1][i];
    const size_t first = shift;
    const bool expected = plain(dtype, memory[0] + shift, sources, count, first, n, store);
    const bool finite =
        coll_sum_tile(kernels, dtype, memory[1] + shift, sources, count, first, n, store);
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
    assert_int_equal(finite, expected);
    bool found = false;
    for (int k = 0; k < count; k++)
        found |= coll_sum_nonfinite(dtype, sources[k], first, n) != first + n;
    assert_int_equal(finite, !found);
}

static void equal_bits(void **state)
{
    (void)state;
    static const size_t counts[] = {0,  1,  2,  7,  8,  9,   15,  16,   17,   31,  32,
                                    33, 63, 64, 65, 70, 255, 257, 1023, 1024, 1025};
    int tables = 0;
    for (const struct coll_sum_kernels *kernels; (kernels = coll_sum_at(tables)); tables++)
        for (uint32_t round = 0; round < 4; round++) {
            fill_sources(round, round % 2 == 0);
            for (int count = 1; count <= MOST_SOURCES; count++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                    for (size_t shift = 0; shift < PAD; shift++) {
                        const bool store = (c + shift + round) % 2;
                        check_one(kernels, ZERO_F32, count, counts[c], shift, store);
                        check_one(kernels, ZERO_BF16, count, counts[c], shift, store);
                    }
        }
    print_message("%d tables, the best is %s\n", tables, coll_sum_best()->name);
    assert_true(tables >= 1 && coll_sum_at(tables + 5) == NULL);
}

/** One element that is not finite, at each place, is noticed by each table. */
static void nonfinite_noticed(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81};
    enum { N = 67, SOURCES = 3 };
    fill_sources(1, true);
    const struct coll_sum_kernels *kernels;
    for (int t = 0; (kernels = coll_sum_at(t)); t++)
        for (int k = 0; k < SOURCES; k++)
            for (size_t i = 0; i < N; i++) {
                static float sum[N];
                const float f32 = f32_sources[k][i];
                const uint16_t bf16 = bf16_sources[k][i];
                const uint16_t value = bad[i % (sizeof bad / sizeof *bad)];
                f32_sources[k][i] = base_f32_from_bf16(value);
                bf16_sources[k][i] = value;
                for (zero_dtype dtype = ZERO_F32; dtype <= ZERO_BF16; dtype++) {
                    const void *sources[SOURCES];
                    for (int j = 0; j < SOURCES; j++)
                        sources[j] = source(dtype, j, 0);
                    assert_false(coll_sum_tile(kernels, dtype, sum, sources, SOURCES, 0, N, true));
                    assert_int_equal(coll_sum_nonfinite(dtype, sources[k], 0, N), i);
                }
                f32_sources[k][i] = f32;
                bf16_sources[k][i] = bf16;
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bits),
        cmocka_unit_test(nonfinite_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
