// examples/adopt: what its trainers lose, and how long their gradients are, step by step. With zero
// both are the same to the last digit printed at every number of ranks and stage, and close to
// those of the plain one. Arguments: zero-run, the programs of plain.c, sharded01.c and sharded.c,
// a text to learn.
#include "gpt2_command.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12 };

// AdamW's arithmetic is fp64 rounded to fp32 in the plain trainer, fp32 in zero: weights differ by
// roundings, and in 12 steps losses by 1e-8 of their value, and norms of gradients by 1e-7.
static const double loss_tolerance = 1e-7, norm_tolerance = 2e-6;

static const char *runner, *plain, *sharded01, *sharded, *text;

/** What a trainer prints of its steps. */
struct curve {
    double loss[STEPS], norm[STEPS];
};

static void train(struct curve *curve, const char *command)
{
    static char output[COMMAND_OUTPUT_BYTES];
    const int code = command_run(output, "%s '%s' %d 1", command, text, STEPS);
    if (code != 0)
        fail_msg("%s: exit code %d: %s", command, code, output);
    const char *line = output;
    for (int n = 1; n <= STEPS; n++) {
        char format[64];
        snprintf(format, sizeof format, "step %d loss %%lf norm %%lf", n);
        line = strstr(line, "step ");
        if (!line || sscanf(line, format, &curve->loss[n - 1], &curve->norm[n - 1]) != 2)
            fail_msg("%s: no step %d: %s", command, n, output);
        line += strlen("step ");
    }
}

static void compare(const struct curve *expected, const char *program, int world, int stage,
                    const char *gather)
{
    char command[8192];
    struct curve curve;
    snprintf(command, sizeof command, "'%s' -n %d -o stage=%d -o gather=%s -- '%s'", runner, world,
             stage, gather, program);
    train(&curve, command);
    for (int n = 0; n < STEPS; n++)
        if (curve.loss[n] != expected->loss[n] || curve.norm[n] != expected->norm[n])
            fail_msg("%s: step %d: loss %.12f norm %.9f instead of %.12f and %.9f", command, n + 1,
                     curve.loss[n], curve.norm[n], expected->loss[n], expected->norm[n]);
}

/** Whether a is b but for roundings. */
static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * b;
}

static void test_losses(void **state)
{
    (void)state;
    char command[4096];
    struct curve expected, first;
    snprintf(command, sizeof command, "'%s'", plain);
    train(&first, command);
    snprintf(command, sizeof command, "'%s'", sharded01);
    train(&expected, command);
    // Before the first update everything is the same; a wrong scale would show in the norm.
    assert_true(expected.loss[0] == first.loss[0]);
    for (int n = 0; n < STEPS; n++)
        if (!near(expected.loss[n], first.loss[n], loss_tolerance) ||
            !near(expected.norm[n], first.norm[n], norm_tolerance))
            fail_msg("step %d: loss %.12f norm %.9f, but %.12f and %.9f of the plain trainer",
                     n + 1, expected.loss[n], expected.norm[n], first.loss[n], first.norm[n]);
    assert_true(first.loss[STEPS - 1] < 0.9 * first.loss[0]);

    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!test_takes(world - 1 + stage))
                continue;
            if (stage <= 1)
                compare(&expected, sharded01, world, stage, "auto");
            compare(&expected, sharded, world, stage, "auto");
        }
    compare(&expected, sharded01, 2, 1, "copy");
    compare(&expected, sharded, 3, 3, "copy");
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
