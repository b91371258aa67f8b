// The loss scale by itself: what clean steps and overflows make of it.
#include "base/kernels/decide.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_fixed_scale_stays(void **state)
{
    (void)state;
    struct base_scale scale = {.value = 128, .least = 256, .window = 1};
    for (int i = 0; i < 10; i++) {
        assert_false(base_scale_clean(&scale));
        assert_true(base_scale_overflow(&scale));
    }
    assert_true(scale.value == 128);
}

static void overflows_halve_it_down_to_the_floor(void **state)
{
    (void)state;
    struct base_scale scale = {.value = 65536, .dynamic = true, .least = 1, .window = 2000};
    for (double expected = 32768; expected >= 1; expected /= 2) {
        assert_true(base_scale_overflow(&scale));
        assert_true(scale.value == expected);
    }
    for (int i = 0; i < 3; i++) {
        assert_false(base_scale_overflow(&scale));
        assert_true(scale.value == 1);
    }
}

static void the_floor_need_not_be_a_power_of_two(void **state)
{
    (void)state;
    struct base_scale scale = {.value = 100, .dynamic = true, .least = 30, .window = 1};
    assert_true(base_scale_overflow(&scale) && scale.value == 50);
    assert_true(base_scale_overflow(&scale) && scale.value == 30);
    assert_false(base_scale_overflow(&scale));
    assert_true(base_scale_clean(&scale) && scale.value == 60);
}

static void clean_steps_in_a_row_double_it(void **state)
{
    (void)state;
    struct base_scale scale = {.value = 8, .dynamic = true, .least = 1, .window = 3};
    assert_false(base_scale_clean(&scale));
    assert_false(base_scale_clean(&scale));
    assert_true(base_scale_clean(&scale) && scale.value == 16);
    // An overflow begins the count anew.
    assert_false(base_scale_clean(&scale));
    assert_false(base_scale_clean(&scale));
    assert_true(base_scale_overflow(&scale) && scale.value == 8);
    assert_false(base_scale_clean(&scale));
    assert_false(base_scale_clean(&scale));
    assert_true(base_scale_clean(&scale) && scale.value == 16);
    assert_true(scale.clean == 0);
}

static void it_does_not_grow_for_ever(void **state)
{
    (void)state;
    struct base_scale scale = {.value = 1, .dynamic = true, .least = 1, .window = 1};
    int grown = 0;
    for (int i = 0; i < 200; i++)
        grown += base_scale_clean(&scale);
    assert_int_equal(grown, 64);
    assert_true(scale.value == BASE_SCALE_MOST);
    assert_true(base_scale_overflow(&scale) && scale.value == BASE_SCALE_MOST / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fixed_scale_stays),
        cmocka_unit_test(overflows_halve_it_down_to_the_floor),
        cmocka_unit_test(the_floor_need_not_be_a_power_of_two),
        cmocka_unit_test(clean_steps_in_a_row_double_it),
        cmocka_unit_test(it_does_not_grow_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
