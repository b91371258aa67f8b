// gpt2 with each of its optimizers: it learns, and ends in one fingerprint at every number of ranks
// and stage. Arguments: zero-run, gpt2, a text to train on.
#include "gpt2_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *runner, *program, *text;

// The words that choose each, with a learning rate that suits it.
static const char *const choices[] = {
    "--optimizer adamw --lr 3e-3",
    "--optimizer adam --lr 3e-3 --weight-decay 1e-3",
    "--optimizer sgd --lr 0.2 --weight-decay 1e-3",
    "--optimizer sgd --lr 0.2 --weight-decay 1e-3 --nesterov",
    "--optimizer sgd --lr 1 --weight-decay 1e-3 --beta1 0",
    "--optimizer lion --lr 1e-3",
    "--optimizer adagrad --lr 2e-2 --weight-decay 1e-3",
};

enum { CHOICES = sizeof choices / sizeof *choices };

// One run's first and last loss, and its fingerprint.
struct outcome {
    double first, last;
    char fingerprint[33];
};

static struct outcome train(const char *options, int world, int stage, bool shm)
{
    static char output[COMMAND_OUTPUT_BYTES];
    static const char key[] = "fingerprint step 20 ";
    char start[8192];
    if (shm)
        snprintf(start, sizeof start, "'%s' -n %d -- '%s'", runner, world, program);
    else
        snprintf(start, sizeof start, "'%s' --transport threads --ranks %d", program, world);
    const int code = command_run(output,
                                 "%s --layers 2 --heads 2 --width 40 --context 16 --batch 2 "
                                 "--micro-batches 4 --steps 20 --warmup 5 --sample 0 --data '%s' "
                                 "--stage %d %s",
                                 start, text, stage, options);
    const char *first = strstr(output, "step 1 loss "), *last = strstr(output, "step 20 loss ");
    const char *line = strstr(output, key);
    if (code != 0 || !first || !last || !line)
        fail_msg("%s --stage %d %s: exit code %d: %s", start, stage, options, code, output);
    struct outcome outcome = {strtod(first + strlen("step 1 loss "), NULL),
                              strtod(last + strlen("step 20 loss "), NULL), ""};
    snprintf(outcome.fingerprint, sizeof outcome.fingerprint, "%.32s", line + strlen(key));
    return outcome;
}

static void compare(const char *expected, const char *options, int world, int stage, bool shm)
{
    const struct outcome outcome = train(options, world, stage, shm);
    if (strcmp(outcome.fingerprint, expected) != 0)
        fail_msg("%s, %d ranks over %s, stage %d: %s instead of %s", options, world,
                 shm ? "shm" : "threads", stage, outcome.fingerprint, expected);
}

static void test_optimizers(void **state)
{
    (void)state;
    char seen[CHOICES][33];
    for (int c = 0; c < CHOICES; c++) {
        const struct outcome outcome = train(choices[c], 1, 0, false);
        if (!(outcome.last < outcome.first - 0.5))
            fail_msg("%s: the loss goes from %g to %g only", choices[c], outcome.first,
                     outcome.last);
        for (int other = 0; other < c; other++)
            assert_string_not_equal(outcome.fingerprint, seen[other]);
        memcpy(seen[c], outcome.fingerprint, sizeof seen[c]);
        compare(seen[c], choices[c], 2, 1, true);
        compare(seen[c], choices[c], 3, 2, false);
        compare(seen[c], choices[c], 2, 3, false);
    }
}

// Sums in another order: the same at either stage, and nearly the same loss as in the usual one.
static void test_accumulate_local(void **state)
{
    (void)state;
    const struct outcome canonical = train("", 2, 0, false);
    const struct outcome local = train("--accumulate-local", 2, 0, false);
    compare(local.fingerprint, "--accumulate-local", 2, 1, true);
    assert_string_not_equal(local.fingerprint, canonical.fingerprint);
    assert_true(local.last > 0.999 * canonical.last && local.last < 1.001 * canonical.last);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    runner = argv[1];
    program = argv[2];
    text = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_accumulate_local),
    };
    return cmocka_run_group_tests_name("gpt2_optimizers", tests, NULL, NULL);
}
