// All 2^32 floats, narrowed by every table. kernels_values.c has the cases that matter.
#include "tests/unit/bf16_reference.h"
#include "tests/unit/kernel_inputs.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { BATCH = 65536 };

static void every_float(void **state)
{
    (void)state;
    static float x[BATCH];
    static uint16_t expected[BATCH], actual[BATCH];
    for (uint32_t kept = 0; kept < 65536; kept++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t bits = kept << 16 | i;
            memcpy(&x[i], &bits, sizeof bits);
            expected[i] = nearest_bf16(bits);
        }
        for (size_t t = 0; usable_table(t); t++) {
            usable_table(t)->to_bf16(BATCH, x, actual);
            assert_memory_equal(actual, expected, sizeof expected);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
