// examples/adopt: what its trainers lose, step by step. With zero it is the same to the last digit
// printed at every number of ranks and stage, and close to what the plain one loses.
// Arguments: zero-run, the programs of plain.c, sharded01.c and sharded.c, a text to learn.
#include "gpt2_command.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12 };

// AdamW's arithmetic is fp64 rounded to fp32 in the plain trainer, fp32 in zero: weights differ by
// roundings, and losses of 12 steps by 1e-8 of their value.
static const double tolerance = 1e-7;

static const char *runner, *plain, *sharded01, *sharded, *text;

static void train(double loss[STEPS], const char *command)
{
    static char output[COMMAND_OUTPUT_BYTES];
    const int code = command_run(output, "%s '%s' %d 1", command, text, STEPS);
    if (code != 0)
        fail_msg("%s: exit code %d: %s", command, code, output);
    const char *line = output;
    for (int n = 1; n <= STEPS; n++) {
        char key[32];
        snprintf(key, sizeof key, "step %d loss ", n);
        line = strstr(line, key);
        if (!line)
            fail_msg("%s: no step %d: %s", command, n, output);
        loss[n - 1] = strtod(line + strlen(key), NULL);
    }
}

static void compare(const double expected[STEPS], const char *program, int world, int stage,
                    const char *gather)
{
    char command[8192];
    double loss[STEPS];
    snprintf(command, sizeof command, "'%s' -n %d -o stage=%d -o gather=%s -- '%s'", runner, world,
             stage, gather, program);
    train(loss, command);
    for (int n = 1; n <= STEPS; n++)
        if (loss[n - 1] != expected[n - 1])
            fail_msg("%s: step %d: loss %.12f instead of %.12f", command, n, loss[n - 1],
                     expected[n - 1]);
}

static void test_losses(void **state)
{
    (void)state;
    char command[4096];
    double loss[STEPS], expected[STEPS];
    snprintf(command, sizeof command, "'%s'", plain);
    train(loss, command);
    snprintf(command, sizeof command, "'%s'", sharded01);
    train(expected, command);
    // Before the first update everything is the same.
    assert_true(expected[0] == loss[0]);
    for (int n = 2; n <= STEPS; n++)
        if (!(fabs(expected[n - 1] - loss[n - 1]) <= tolerance * loss[n - 1]))
            fail_msg("step %d: loss %.12f, but %.12f of the plain trainer", n, expected[n - 1],
                     loss[n - 1]);
    assert_true(loss[STEPS - 1] < 0.9 * loss[0]);

    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!test_takes(world - 1 + stage))
                continue;
            if (stage <= 1)
                compare(expected, sharded01, world, stage, "auto");
            compare(expected, sharded, world, stage, "auto");
        }
    compare(expected, sharded01, 2, 1, "copy");
    compare(expected, sharded, 3, 3, "copy");
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    runner = argv[1];
    plain = argv[2];
    sharded01 = argv[3];
    sharded = argv[4];
    text = argv[5];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests_name("adopt", tests, NULL, NULL);
}
