// Ranks that are processes and share one GPU, under zero-run: one fingerprint over world sizes,
// stages, what moves their bytes and where the state is; and what the others say of one that is
// killed. NCCL takes the ranks for those of different hosts. With the driver, NCCL and cuBLAS that
// stand in for NVIDIA's, or on a GPU. Arguments: zero-run, gpt2, a file to train on, `few` or a
// number of ranks, which is all there is for that many, and the transports.
#include "base/device.h"
#include "tests/cuda/one_gpu.h"
#include "tests/numerics/gpt2_command.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { SKIPPED = 77, KILLED = 128 + 9, STAGES = 4, TRANSPORTS = 2, MOST = 64 };

static const char *runner, *program, *data;
static const char *transports[TRANSPORTS + 1]; // NULL: no more
static int all_of;                             // ranks; 0: a few of each

// Where the optimizer's state is: all on the GPU, or in the host's memory, and passed through the
// GPU to be updated there, or updated by the processor.
enum state { ON_GPU, PASSED_THROUGH, ON_HOST };

struct way {
    int world, stage;
    const char *transport; // of the GPU's memory; ON_HOST has no use for one
    enum state state;
};

/* ------------------------------------------------------------------ a run */

// Of three ranks two have no micro-batch of their own in the last round.
static void write_command(char *command, size_t bytes, const struct way *way, const char *before,
                          int steps)
{
    static const char *const states[] = {
        [ON_GPU] = "",
        [PASSED_THROUGH] = "-o offload_optimizer=host -o offload_update=device",
        [ON_HOST] = "-o offload_optimizer=host -o offload_update=host",
    };
    char moved[64] = "";
    if (way->state != ON_HOST)
        snprintf(moved, sizeof moved, "-o device_transport=%s", way->transport);
    const int length = snprintf(
        command, bytes,
        "'%s' -n %d --grace 100 -o device=cuda:0 %s %s -- "
        "sh -c '%s NCCL_HOSTID=host-$RANK exec \"$0\" \"$@\"' '%s' --device cuda --dtype bf16 "
        "--layers 1 --heads 1 --width 32 --context 16 --vocab 131 --batch 1 --micro-batches 4 "
        "--steps %d --warmup 1 --sample 0 --stage %d --data '%s'",
        runner, way->world, states[way->state], moved, before, program, steps, way->stage, data);
    assert_in_range(length, 1, bytes - 1);
}

static void train(char fingerprint[33], const struct way *way)
{
    static char command[4096], output[COMMAND_OUTPUT_BYTES];
    static const char key[] = "fingerprint step 2 ";
    write_command(command, sizeof command, way, "", 2);
    const int code = command_run(output, "%s", command);
    const char *line = strstr(output, key);
    if (code != 0 || !line)
        fail_msg("%s: exit code %d: %s", command, code, output);
    snprintf(fingerprint, 33, "%.32s", line + strlen(key));
}

static void compare(const char *expected, const struct way *way)
{
    char fingerprint[33];
    train(fingerprint, way);
    if (strcmp(fingerprint, expected) != 0)
        fail_msg("%d ranks, stage %d, by %s, state %d: %s instead of %s", way->world, way->stage,
                 way->transport, (int)way->state, fingerprint, expected);
}

/* ------------------------------------------------------------------ the same bits */

static void compare_all(const char *expected, int world)
{
    for (int stage = 0; stage < STAGES; stage++) {
        for (int t = 0; transports[t]; t++)
            for (enum state state = ON_GPU; state <= PASSED_THROUGH; state++)
                compare(expected, &(struct way){world, stage, transports[t], state});
        compare(expected, &(struct way){world, stage, "host", ON_HOST});
    }
}

static void compare_few(const char *expected)
{
    static const struct way ways[] = {
        {3, 3, "nccl", ON_GPU},         {2, 0, "host", ON_GPU},  {1, 2, "nccl", ON_GPU},
        {3, 1, "nccl", PASSED_THROUGH}, {2, 3, "host", ON_HOST},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int t = 0; transports[t]; t++)
            if (test_takes((int)i) && strcmp(ways[i].transport, transports[t]) == 0)
                compare(expected, &ways[i]);
}

static void the_same_bits(void **state)
{
    char expected[33];
    (void)state;
    train(expected, &(struct way){1, 0, "host", ON_GPU});
    if (all_of > 0)
        compare_all(expected, all_of);
    else
        compare_few(expected);
}

/* ------------------------------------------------------------------ a rank that is killed */

struct heard {
    bool begun;       // some steps
    bool named[MOST]; // by these ranks: the one that was killed
    bool blamed;      // by zero-run
    char last[256];
};

// The ranks of a line: "[1] ..." or, where ranks have written alike, "[0,2] ...", "[1-2] ...".
static void hear_named(struct heard *heard, const char *line)
{
    int first, last;
    char *end;
    for (const char *at = line; *at == '[' || *at == ','; at = end) {
        first = last = (int)strtol(at + 1, &end, 10);
        if (*end == '-')
            last = (int)strtol(end + 1, &end, 10);
        for (int rank = first; rank >= 0 && rank <= last && rank < MOST; rank++)
            heard->named[rank] = true;
    }
}

static void hear(struct heard *heard, const char *line, int victim)
{
    char named[32], blamed[64];
    snprintf(named, sizeof named, "rank %d died", victim);
    snprintf(blamed, sizeof blamed, "zero-run: rank %d (process ", victim);
    heard->begun = heard->begun || strstr(line, "] step 3 ");
    if (strstr(line, "] gpt2: ") && strstr(line, named))
        hear_named(heard, line);
    heard->blamed =
        heard->blamed || (strncmp(line, blamed, strlen(blamed)) == 0 && strstr(line, "SIGKILL"));
    snprintf(heard->last, sizeof heard->last, "%.255s", line);
}

// It is somewhere in a step; what zero-run would have the others end by, they don't hear.
static void kill_one(const struct way *way, int victim)
{
    static char command[4096];
    struct temporary temporary;
    struct heard heard = {.begun = false};
    char path[256], before[512], line[1024];
    assert_true(temporary_make(&temporary));
    snprintf(path, sizeof path, "%s/word", temporary.directory);
    assert_int_equal(mkfifo(path, 0600), 0);
    FILE *word = fopen(path, "r+e"); // it waits for no reader, and what it is told for one
    assert_non_null(word);
    snprintf(before, sizeof before,
             "trap \"\" TERM; [ $RANK != %d ] || { read word <\"%s\"; kill -9 $$; } &", victim,
             path);
    write_command(command, sizeof command, way, before, 1000000);
    char *piped = NULL;
    assert_true(asprintf(&piped, "exec 2>&1; %s", command) > 0);
    FILE *stream = popen(piped, "r");
    assert_non_null(stream);
    while (fgets(line, sizeof line, stream)) {
        const bool begun = heard.begun;
        hear(&heard, line, victim);
        if (heard.begun && !begun)
            assert_true(fputs("now\n", word) >= 0 && fflush(word) == 0);
    }
    const int status = pclose(stream);
    fclose(word);
    free(piped);
    temporary_remove(&temporary);
    if (!heard.begun || !heard.blamed || !WIFEXITED(status) || WEXITSTATUS(status) != KILLED)
        fail_msg("%s: status %#x, the last line: %s", command, (unsigned)status, heard.last);
    for (int rank = 0; rank < way->world; rank++)
        if (rank != victim && !heard.named[rank])
            fail_msg("%s: rank %d has not said who died", command, rank);
}

static void a_rank_that_is_killed(void **state)
{
    (void)state;
    if (all_of == 1)
        skip();
    for (int t = 0; transports[t]; t++) {
        if (all_of == 0 && (!transports[1] || test_takes(t)))
            kill_one(&(struct way){3, 3, transports[t], ON_GPU}, 1);
        for (int stage = 0; stage < STAGES && all_of > 0; stage++)
            kill_one(&(struct way){all_of, stage, transports[t], ON_GPU}, stage % all_of);
    }
}

static bool there_is_a_gpu(void)
{
    struct base_error error = {.result = ZERO_OK};
    int count;
    if (base_device_find("cuda")->count(&count, &error) == ZERO_OK)
        return true;
    printf("skipped: %s\n", error.message);
    return false;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(a_rank_that_is_killed),
    };
    if (count < 6 || count > 5 + TRANSPORTS)
        return 1;
    runner = arguments[1];
    program = arguments[2];
    data = arguments[3];
    all_of = strcmp(arguments[4], "few") == 0 ? 0 : atoi(arguments[4]);
    for (int t = 5; t < count; t++)
        transports[t - 5] = arguments[t];
    if (!there_is_a_gpu())
        return SKIPPED;
    one_gpu_for_all();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
