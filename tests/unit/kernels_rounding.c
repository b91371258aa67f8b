// Stochastic rounding, against its meaning: whose random numbers, which neighbour, and on average
// the value itself; and f16 to nearest. kernels_bits.c compares the tables with each other.
#include "base/bfloat16.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { COUNT = 1024 };

typedef void (*round_fn)(uint64_t key, uint64_t first, size_t count, const float *x, uint16_t *out);

// A 16-bit format and the kernels that round to it.
struct format {
    const char *name;
    uint16_t nan, infinity;
    double beyond; // what infinity counts as
    int random_bits;
    size_t kernel; // where in a table its stochastic rounding is
    float (*widen)(uint16_t half);
    uint32_t (*random)(uint64_t key, uint64_t element);
};

// As base/kernels/kernels.h says.
static uint32_t random_bf16(uint64_t key, uint64_t element)
{
    const uint64_t half = element % 128 / 16;
    const zero_philox_block block = zero_philox(key, 0, 16 * (element / 128) + element % 16);
    return block.word[half / 2] >> (half % 2 ? 16 : 0) & 0xffff;
}

static uint32_t random_f16(uint64_t key, uint64_t element)
{
    const zero_philox_block block = zero_philox(key, 0, 16 * (element / 64) + element % 16);
    return block.word[element % 64 / 16] >> 1;
}

static const struct format formats[] = {
    {"bf16", 0x7fc0, 0x7f80, 0x1p128, 16, offsetof(struct base_kernels, round_bf16),
     base_f32_from_bf16, random_bf16},
    {"f16", 0x7e00, 0x7c00, 0x1p16, 31, offsetof(struct base_kernels, round_f16), base_f32_from_f16,
     random_f16},
};

enum { FORMATS = sizeof formats / sizeof formats[0] };

static void run(const struct format *format, const struct base_kernels *table, uint64_t key,
                uint64_t first, size_t count, const float *x, uint16_t *out)
{
    round_fn round;
    memcpy(&round, (const char *)table + format->kernel, sizeof round);
    round(key, first, count, x, out);
}

static double magnitude_of(const struct format *format, uint16_t half)
{
    half &= 0x7fff;
    return half == format->infinity ? format->beyond : (double)format->widen(half);
}

// The neighbour of |x| at or below it.
static uint16_t below(const struct format *format, double magnitude)
{
    uint16_t low = 0, high = format->infinity;
    if (magnitude >= format->beyond)
        return format->infinity;
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (magnitude_of(format, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// What rounding must give, by values in fp64, where all of this is exact.
static uint16_t expected_of(const struct format *format, uint64_t key, uint64_t element, float x)
{
    if (isnan(x))
        return format->nan;
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs((double)x);
    const uint16_t low = below(format, magnitude);
    if (low == format->infinity)
        return sign | low;
    const double base = magnitude_of(format, low);
    const double part = (magnitude - base) / (magnitude_of(format, low + 1) - base);
    const double random = (double)format->random(key, element);
    const bool up =
        floor(ldexp(part, format->random_bits)) + random >= ldexp(1, format->random_bits);
    return (uint16_t)(sign | (low + up));
}

static void assert_rounds(const struct format *format, uint64_t key, uint64_t first, size_t count,
                          const float *x)
{
    uint16_t out[COUNT];
    for (size_t t = 0; usable_table(t); t++) {
        run(format, usable_table(t), key, first, count, x, out);
        for (size_t i = 0; i < count; i++)
            if (out[i] != expected_of(format, key, first + i, x[i]))
                fail_msg("%s, %s: element %llu, %a becomes %04x instead of %04x",
                         usable_table(t)->name, format->name, (unsigned long long)(first + i),
                         (double)x[i], out[i], expected_of(format, key, first + i, x[i]));
    }
}

static void every_kind(void **state)
{
    (void)state;
    static const uint64_t firsts[] = {0,
                                      1,
                                      63,
                                      64,
                                      129,
                                      1000,
                                      UINT32_MAX - UINT64_C(500),
                                      UINT64_C(16) * UINT32_MAX - 77,
                                      UINT64_C(1) << 60};
    float x[COUNT];
    for (size_t f = 0; f < FORMATS; f++)
        for (uint64_t kind = 0; kind < INPUT_KINDS; kind++)
            for (size_t k = 0; k < sizeof firsts / sizeof firsts[0]; k++) {
                input_fill((enum input_kind)kind, 31 * kind + k, COUNT, x);
                assert_rounds(&formats[f], zero_random_bits(1, kind, k), firsts[k], COUNT, x);
            }
}

// f16 has its own range: 2^-50 to 2^17, and the borders of it.
static void f16_range(void **state)
{
    (void)state;
    float x[COUNT];
    for (uint64_t i = 0; i < 100; i++) {
        for (uint64_t e = 0; e < COUNT; e++) {
            const uint64_t random = zero_random_bits(5, i, e);
            const uint32_t exponent = 77 + (uint32_t)(random >> 32) % 67;
            x[e] = base_f32_from_bits(((uint32_t)random & 0x807fffffu) | exponent << 23);
        }
        assert_rounds(&formats[1], i, 64 * i, COUNT, x);
    }
    static const float borders[] = {65503.996f, 65504,    65504.004f, 65519.996f,      65520,
                                    65535.996f, 65536,    0x1p-14f,   0x1.fffffep-15f, 0x1p-24f,
                                    0x1.8p-25f, 0x1p-25f, 0x1p-31f,   0x1p-55f,        0x1p-56f,
                                    0x1p-126f,  0x1p-149f};
    for (uint64_t key = 0; key < 2000; key++)
        assert_rounds(&formats[1], key, key, sizeof borders / sizeof borders[0], borders);
}

// Whatever is drawn, a value that the format has stays what it is.
static void representable_values_stay(void **state)
{
    (void)state;
    static float x[65536];
    static uint16_t out[65536];
    for (size_t f = 0; f < FORMATS; f++) {
        for (uint32_t half = 0; half < 65536; half++)
            x[half] = formats[f].widen((uint16_t)half);
        for (size_t t = 0; usable_table(t); t++)
            for (uint64_t key = 0; key < 20; key++) {
                run(&formats[f], usable_table(t), key, key * 7, 65536, x, out);
                for (uint32_t half = 0; half < 65536; half++)
                    if (out[half] != (isnan(x[half]) ? formats[f].nan : half))
                        fail_msg("%s: %04x becomes %04x", formats[f].name, half, out[half]);
            }
    }
}

// A result does not depend on where a run begins and ends.
static void runs_may_be_cut(void **state)
{
    (void)state;
    float x[COUNT];
    uint16_t whole[COUNT], parts[COUNT];
    input_fill(INPUT_ORDINARY, 9, COUNT, x);
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t t = 0; usable_table(t); t++)
            for (uint64_t cut = 0; cut < 200; cut++) {
                const uint64_t first = zero_random_bits(3, cut, 0);
                run(&formats[f], usable_table(0), 77, first, COUNT, x, whole);
                for (size_t i = 0, k = 0; i < COUNT; k++) {
                    const size_t wanted = zero_random_bits(4, cut, k) % 300;
                    const size_t part = wanted < COUNT - i ? wanted : COUNT - i;
                    run(&formats[f], usable_table(t), 77, first + i, part, x + i, parts + i);
                    i += part;
                }
                assert_memory_equal(whole, parts, sizeof whole);
            }
}

// The mean of many draws of one value is within 4.5 deviations of it, over keys for one element
// and over elements for one key; and draws of neighbours are not each other's.
static void assert_mean(const struct format *format, float value, uint64_t stream)
{
    enum { DRAWS = 64 * COUNT };
    float x[COUNT];
    uint16_t out[COUNT];
    const double base = magnitude_of(format, below(format, fabs((double)value)));
    const double above = magnitude_of(format, (uint16_t)(below(format, fabs((double)value)) + 1));
    const double part = (fabs((double)value) - base) / (above - base);
    double ups[2] = {0, 0}, pairs = 0;
    for (size_t i = 0; i < COUNT; i++)
        x[i] = value;
    for (uint64_t k = 0; k < DRAWS / COUNT; k++) {
        run(format, usable_table(0), stream, k * COUNT, COUNT, x, out);
        for (size_t i = 0; i < COUNT; i++) {
            const bool up = fabs((double)format->widen(out[i])) == above;
            ups[0] += up;
            pairs += up && i > 0 && out[i] == out[i - 1];
        }
    }
    for (uint64_t k = 0; k < DRAWS; k++) {
        run(format, usable_table(0), (stream << 32) + k, 12345, 1, x, out);
        ups[1] += fabs((double)format->widen(out[0])) == above;
    }
    const double bound = 4.5 * sqrt(part * (1 - part) / DRAWS);
    for (int k = 0; k < 2; k++)
        if (fabs(ups[k] / DRAWS - part) > bound)
            fail_msg("%s: %a is rounded up with probability %g instead of %g", format->name,
                     (double)value, ups[k] / DRAWS, part);
    const long pairs_drawn = DRAWS / COUNT * (COUNT - 1);
    const double n = (double)pairs_drawn, both = part * part;
    assert_true(fabs(pairs / n - both) <= 4.5 * sqrt(3 * both * (1 - both) / n));
}

static void means(void **state)
{
    (void)state;
    static const float values[] = {1.001f,      -1.0039f,   3.14159f, -1e-3f,  0x1.3p-20f,
                                   -0x1.7p-24f, 0x1.8p-26f, 40001.5f, 60001.5f};
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            const double low =
                magnitude_of(&formats[f], below(&formats[f], fabs((double)values[i])));
            if (low != fabs((double)values[i]))
                assert_mean(&formats[f], values[i], 100 * f + i);
        }
}

// f16 to nearest and back, against base/bfloat16.h, whose own test knows values.
static void f16_to_nearest(void **state)
{
    (void)state;
    static const uint32_t dropped[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff,
                                       0x2000, 0x3000, 0x5000, 0x7000, 0x8000, 0x9000,
                                       0xb000, 0xd000, 0xf000, 0xffff};
    float x[16], wide[16];
    uint16_t out[16];
    for (uint32_t kept = 0; kept < 65536; kept++) {
        for (size_t i = 0; i < 16; i++)
            x[i] = base_f32_from_bits(kept << 16 | dropped[i]);
        for (size_t t = 0; usable_table(t); t++) {
            usable_table(t)->to_f16(16, x, out);
            for (size_t i = 0; i < 16; i++)
                assert_int_equal(out[i], base_f16_from_f32(x[i]));
            for (size_t i = 0; i < 16; i++)
                out[i] = (uint16_t)(kept + i);
            usable_table(t)->from_f16(16, out, wide);
            for (size_t i = 0; i < 16; i++) {
                const float expected = base_f32_from_f16(out[i]);
                assert_int_equal(base_f32_bits(wide[i]),
                                 isnan(expected) ? 0x7fc00000u : base_f32_bits(expected));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),      cmocka_unit_test(f16_range),
        cmocka_unit_test(runs_may_be_cut), cmocka_unit_test(representable_values_stay),
        cmocka_unit_test(means),           cmocka_unit_test(f16_to_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
