// base/bfloat16.h against the definition: every half, and floats around every rounding boundary.
#include "base/bfloat16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// A 16-bit format with a sign, `exponent_bits` and the rest.
struct format {
    int exponent_bits;
    uint16_t nan;
    float (*widen)(uint16_t half);
    uint16_t (*narrow)(float value);
};

static const struct format formats[] = {
    {8, 0x7fc0, base_f32_from_bf16, base_bf16_from_f32},
    {5, 0x7e00, base_f32_from_f16, base_f16_from_f32},
};

enum { FORMATS = sizeof formats / sizeof *formats };

// Values of the patterns from 0 to that of infinity, which counts as the next power of two.
static double value[0x7f81];

static int fill_values(const struct format *format)
{
    const int fraction_bits = 15 - format->exponent_bits;
    const int bias = (1 << (format->exponent_bits - 1)) - 1;
    const int infinity = ((1 << format->exponent_bits) - 1) << fraction_bits;
    for (int h = 0; h <= infinity; h++) {
        const int exponent = h >> fraction_bits, fraction = h & ((1 << fraction_bits) - 1);
        const int significand = exponent ? fraction | 1 << fraction_bits : fraction;
        value[h] = ldexp(significand, (exponent ? exponent : 1) - bias - fraction_bits);
    }
    return infinity;
}

// The pattern nearest to x >= 0, the even one of two.
static int nearest(double x, int infinity)
{
    int low = 0, high = infinity;
    if (x >= value[infinity])
        return infinity;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (value[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    const double below = x - value[low], above = value[high] - x;
    if (below != above)
        return below < above ? low : high;
    return low % 2 == 0 ? low : high;
}

static void check_bits(const struct format *format, uint32_t bits, int infinity)
{
    const float x = base_f32_from_bits(bits);
    const uint16_t got = format->narrow(x);
    if (isnan(x)) {
        assert_int_equal(got, format->nan);
        return;
    }
    const int expected = nearest(fabs((double)x), infinity) | (signbit(x) ? 0x8000 : 0);
    if (got != expected)
        print_error("%08x: %04x instead of %04x\n", bits, got, (unsigned)expected);
    assert_int_equal(got, expected);
}

static void halves_widen_exactly(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        const struct format *format = &formats[f];
        const int infinity = fill_values(format);
        for (int h = 0; h <= 0xffff; h++) {
            const int magnitude = h & 0x7fff;
            const float wide = format->widen((uint16_t)h);
            assert_int_equal(!!signbit(wide), h >> 15);
            if (magnitude > infinity)
                assert_true(isnan(wide));
            else if (magnitude == infinity)
                assert_true(isinf(wide));
            else
                assert_true(fabs((double)wide) == value[magnitude]);
            if (!isnan(wide))
                assert_int_equal(format->narrow(wide), h);
        }
    }
}

static void floats_round_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t offsets[] = {0,      1,      0x0fff, 0x1000, 0x1001,
                                       0x7fff, 0x8000, 0x8001, 0xffff};
    for (int f = 0; f < FORMATS; f++) {
        const int infinity = fill_values(&formats[f]);
        // Around all boundaries of bf16 and normal f16, around those of f16's denormals, which lie
        // elsewhere, and a sweep.
        for (uint32_t high = 0; high <= 0xffff; high++)
            for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
                check_bits(&formats[f], high << 16 | offsets[i], infinity);
        for (int h = 0; h < 0x7c00; h++) {
            const double middle = ((double)base_f32_from_f16((uint16_t)h) +
                                   (double)base_f32_from_f16((uint16_t)(h + 1))) /
                                  2;
            const uint32_t bits = base_f32_bits((float)middle);
            for (uint32_t k = 0; k < 3; k++)
                check_bits(&formats[f], bits + k - 1, infinity);
        }
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 9973)
            check_bits(&formats[f], (uint32_t)bits, infinity);
    }
}

static void nans_keep_their_payload_when_widened(void **state)
{
    (void)state;
    assert_int_equal(base_f32_bits(base_f32_from_bf16(0xffc5)), 0xffc50000u);
    assert_int_equal(base_f32_bits(base_f32_from_bf16(0x7f81)), 0x7f810000u);
    assert_int_equal(base_f32_bits(base_f32_from_f16(0xfe03)), 0xffc06000u);
    assert_int_equal(base_bf16_from_f32(base_f32_from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(base_bf16_from_f32(base_f32_from_bits(0xffffffff)), 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_widen_exactly),
        cmocka_unit_test(floats_round_to_nearest_even),
        cmocka_unit_test(nans_keep_their_payload_when_widened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
