// One fingerprint after 20 steps of gpt2, however the work is spread: world size, stage, transport,
// prefetch, shared or copied parameters, threads, recomputation; V is not divisible by most of the
// world sizes. Arguments: zero-run, gpt2, a text to train on, and `all` for the whole product of
// these.
#include "gpt2_command.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *runner, *program, *text;
static bool all;

// One way to do the same.
struct way {
    int world, stage;
    bool shm;    // ranks are processes; else threads of one
    bool shared; // one copy of the parameters, from stage 1 on; else gather=copy
    int prefetch, threads;
    bool recompute;
    const char *more; // options; NULL: none
};

static void train(char *fingerprint, const char *dtype, const struct way *way)
{
    static char output[COMMAND_OUTPUT_BYTES];
    static const char key[] = "fingerprint step 20 ";
    char start[4096], options[1024];
    const char *gather = way->shared && way->stage > 0 ? "shared" : "copy";
    if (way->shm)
        snprintf(start, sizeof start, "'%s' -n %d -o gather=%s -- '%s'", runner, way->world, gather,
                 program);
    else
        snprintf(start, sizeof start, "ZERO_GATHER=%s '%s' --transport threads --ranks %d", gather,
                 program, way->world);
    snprintf(options, sizeof options,
             "--layers 2 --heads 2 --width 40 --context 16 --batch 2 --micro-batches 3 --steps 20 "
             "--warmup 5 --sample 0 --dtype %s --stage %d --prefetch %d --threads %d %s %s",
             dtype, way->stage, way->prefetch, way->threads, way->recompute ? "--recompute" : "",
             way->more ? way->more : "");
    const int code = command_run(output, "%s %s --data '%s'", start, options, text);
    const char *line = strstr(output, key);
    if (code != 0 || !line)
        fail_msg("%s %s: exit code %d: %s", start, options, code, output);
    snprintf(fingerprint, 33, "%.32s", line + strlen(key));
}

static void compare(const char *dtype, const char *expected, const struct way *way)
{
    char fingerprint[33];
    train(fingerprint, dtype, way);
    if (strcmp(fingerprint, expected) != 0)
        fail_msg("%s, %d ranks over %s, stage %d, %s, prefetch %d, %d threads%s: %s instead of %s",
                 dtype, way->world, way->shm ? "shm" : "threads", way->stage,
                 way->shared ? "shared" : "copied", way->prefetch, way->threads,
                 way->recompute ? ", recomputed" : "", fingerprint, expected);
}

// Every world size, stage and transport, or each `stride`-th of these, and with it some prefetch,
// threads and recomputation.
static void compare_some(const char *dtype, const char *expected, int stride)
{
    int n = 2 * TEST_PART;
    if (TEST_STRIDE > 1)
        stride = 7; // no divisor of what follows from n
    for (int world = 1; world <= 5; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int shm = 0; shm <= 1; shm++, n++)
                if (n % stride == 0)
                    compare(dtype, expected,
                            &(struct way){.world = world,
                                          .stage = stage,
                                          .shm = shm == 1,
                                          .shared = (world + stage + shm) % 2 == 1,
                                          .prefetch = n * 7 % 3,
                                          .threads = 1 + n * 5 % 3,
                                          .recompute = n % 5 == 0});
}

static void compare_all(const char *dtype, const char *expected)
{
    for (int n = 0; n < 5 * 4 * 2 * 2 * 3 * 2; n++)
        compare(dtype, expected,
                &(struct way){.world = 1 + n % 5,
                              .stage = n / 5 % 4,
                              .shm = n / 20 % 2 == 1,
                              .prefetch = n / 40 % 2 * 2,
                              .threads = 1 + n / 80 % 3,
                              .shared = n / 240 == 1,
                              .recompute = n % 3 == 0});
}

static void test_dtype(const char *dtype, int stride)
{
    char expected[33];
    train(expected, dtype, &(struct way){.world = 1, .threads = 1, .prefetch = 2});
    compare_some(dtype, expected, stride);
    if (all)
        compare_all(dtype, expected);
}

static void test_f32(void **state)
{
    (void)state;
    test_dtype("f32", 1);
}

static void test_bf16(void **state)
{
    (void)state;
    test_dtype("bf16", 1);
}

// A loss scale that starts too high and is soon doubled again: some steps are skipped, the same
// ones everywhere.
static void test_f16(void **state)
{
    (void)state;
    assert_int_equal(setenv("ZERO_LOSS_SCALE_INIT", "16777216", 1), 0);
    assert_int_equal(setenv("ZERO_LOSS_SCALE_WINDOW", "4", 1), 0);
    test_dtype("f16", 3);
    unsetenv("ZERO_LOSS_SCALE_INIT");
    unsetenv("ZERO_LOSS_SCALE_WINDOW");
}

// Checkpoints on the way change nothing, and a run that goes on from one ends where the other did.
static void test_resume(void **state)
{
    (void)state;
    struct temporary temporary;
    char expected[33], saving[256], resuming[256];
    assert_true(temporary_make(&temporary));
    snprintf(saving, sizeof saving, "--checkpoint %s --save-every 7 --keep 0", temporary.directory);
    train(expected, "bf16", &(struct way){.world = 1, .threads = 1, .prefetch = 2});
    compare("bf16", expected,
            &(struct way){.world = 3, .stage = 3, .shm = true, .threads = 1, .more = saving});
    for (int step = 7; step < 20; step += 7)
        for (int world = 1; world <= 4; world += 3) {
            snprintf(resuming, sizeof resuming, "--resume %s/step-%08d", temporary.directory, step);
            compare("bf16", expected,
                    &(struct way){.world = world,
                                  .stage = (step + world) % 4,
                                  .shm = step == 7,
                                  .threads = 1,
                                  .more = resuming});
        }
    temporary_remove(&temporary);
}

// So does one whose optimizer's state is in files, alone or with working copies and gradient sums;
// killed, it goes on after its last step.
static void test_state_in_files(void **state)
{
    (void)state;
    static char output[COMMAND_OUTPUT_BYTES];
    struct temporary temporary;
    char expected[33], more[512], params[600], also[640];
    assert_true(temporary_make(&temporary));
    snprintf(more, sizeof more, "--offload-optimizer nvme --nvme-dir %s --tile 64KiB --resume auto",
             temporary.directory);
    snprintf(params, sizeof params, "%s --offload-params nvme", more);
    snprintf(also, sizeof also, "%s --offload-grads nvme --compress on", params);
    const char *const tiers[] = {params, also, more, also};
    train(expected, "bf16", &(struct way){.world = 1, .threads = 1, .prefetch = 2});
    for (int stage = 0; stage <= 3; stage++)
        compare("bf16", expected,
                &(struct way){.world = 1 + (stage + 1) % 4,
                              .stage = stage,
                              .shm = stage % 2,
                              .threads = 1,
                              .prefetch = stage,
                              .more = tiers[stage]});
    // Killed in its 13th step, started again by zero-run.
    const int code =
        command_run(output,
                    "'%s' -n 2 --max-restarts 1 --backoff 0 -- sh -c '[ $ZERO_RESTARTS = 0 ] && [ "
                    "$RANK = 1 ] && export ZERO_FAULT=offload.write:kill@60; exec "
                    "\"$0\" \"$@\"' '%s' --layers 2 --heads 2 --width 40 --context 16 "
                    "--batch 2 --micro-batches 3 --steps 20 --warmup 5 --sample 0 --dtype "
                    "bf16 --stage 2 %s --data '%s'",
                    runner, program, also, text);
    if (code != 0 || !strstr(output, ", of the state on NVMe") || !strstr(output, expected))
        fail_msg("exit code %d: %s", code, output);
    assert_int_equal(temporary_entries(&temporary), 0);
    temporary_remove(&temporary);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    runner = argv[1];
    program = argv[2];
    text = argv[3];
    all = argc > 4 && strcmp(argv[4], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),    cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_state_in_files),
        cmocka_unit_test(test_f16),
    };
    return cmocka_run_group_tests_name("gpt2_equivalence", tests, NULL, NULL);
}
