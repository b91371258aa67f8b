// zero-run itself dies while its ranks save, by kill -9, or ends them at once because it is told to
// stop twice: no rank outlives it, no checkpoint that was acknowledged is lost and nothing else is
// taken for one; the job that is started again goes on from there and ends with the bits of one
// run.
//
// With "many" as its last argument more of everything.
#include "base/arena.h"
#include "base/clock.h"
#include "checkpoint/directory/directory.h"
#include "tests/ranks/run_command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// Saves wait for a disk that others may keep busy, but not for as long as the back-off lasts.
enum { WORLD = 2, STOPPED = 75, PATIENCE_S = 50 };

static const char *rank_program;
static int hits = 1, cuts = 4;
static int jobs; // how many there have been: each has its directory

struct job {
    struct run_command run;
    char name[16]; /**< of the directory, in $D */
    char path[128];
};

static void begin_job(struct job *job)
{
    snprintf(job->name, sizeof job->name, "c%d", jobs++);
    snprintf(job->path, sizeof job->path, "%s/%s", run_directory.directory, job->name);
}

static void start(struct job *job, const char *ms, const char *fault)
{
    RUN_START(&job->run, "-n", "2", "--max-restarts", "3", "--backoff", "60", "--", rank_program,
              job->path, ms, fault);
}

/** A number that the job writes into a file; 0: it has not. */
static int number_of(const struct job *job, const char *what)
{
    char path[160];
    int number = 0;
    snprintf(path, sizeof path, "%s.%s", job->path, what);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &number) != 1)
        number = 0;
    if (file)
        fclose(file);
    return number;
}

static void await(bool (*come)(const struct job *job), const struct job *job)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    while (!come(job) && run_command_alive(job->run.pid)) {
        if (base_clock_s() > deadline)
            fail_msg("it has not come in %d s", PATIENCE_S);
        usleep(500);
    }
}

static bool has_saved(const struct job *job)
{
    return number_of(job, "acknowledged") > 0;
}

static bool has_stopped(const struct job *job)
{
    const int pid = number_of(job, "0");
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "r") : NULL;
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    if (file)
        fclose(file);
    return state == 'T';
}

/** No rank is left, and what was acknowledged is: this step or a later one, and each is whole. */
static void check_what_is_left(const struct job *job)
{
    static const char *const ranks[WORLD] = {"0", "1"};
    uint64_t *steps, newest = 0;
    size_t count;
    struct base_error error = {0};
    for (int rank = 0; rank < WORLD; rank++)
        if (number_of(job, ranks[rank]) > 0)
            run_expect_gone(number_of(job, ranks[rank]));
    const zero_result r = ckpt_list(&ckpt_store_posix, job->path, &steps, &count, &error);
    for (size_t i = 0; !r && i < count; i++) {
        newest = steps[i];
        if (ckpt_check_whole(&ckpt_store_posix, job->path, newest, &error))
            fail_msg("%s", error.message);
    }
    base_free(steps);
    assert_true(r == ZERO_OK || r == ZERO_NOT_FOUND);
    assert_true(newest >= (uint64_t)number_of(job, "acknowledged"));
}

/** Started again, it ends as one that nothing has befallen. */
static void go_on(struct job *job)
{
    int resumed = -1, damaged = -1;
    check_what_is_left(job);
    const int acknowledged = number_of(job, "acknowledged");
    run_command_free(&job->run);
    start(job, "0", NULL);
    run_command_finish_in(&job->run, PATIENCE_S);
    const char *line = strstr(job->run.out, "resumed ");
    if (job->run.status || !strstr(job->run.out, "as written\n") || !line)
        fail_msg("status %d: %s%s", job->run.status, job->run.out, job->run.err);
    assert_int_equal(sscanf(line, "resumed %d, %d damaged", &resumed, &damaged), 2);
    assert_true(resumed >= acknowledged && damaged == 0);
    run_command_free(&job->run);
}

/** Kills zero-run while rank 0 stands at a point; false: it has no such hit. */
static bool kill_at(const char *point, int hit)
{
    struct job job;
    char fault[64];
    snprintf(fault, sizeof fault, "%s:stop@%d", point, hit);
    begin_job(&job);
    start(&job, "0", fault);
    await(has_stopped, &job);
    const bool stopped = has_stopped(&job);
    kill(job.run.pid, SIGKILL);
    run_command_finish(&job.run);
    go_on(&job);
    return stopped;
}

static void zero_run_dies_at_a_named_point(void **state)
{
    (void)state;
    static const char *const points[] = {"io.mkdir",    "io.open",  "io.rename", "io.write",
                                         "io.truncate", "io.fsync", "io.close",  "io.unlink"};
    static const int first[] = {1, 9, 2, 3, 2, 13, 5, 2};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const int from = hits == 1 ? first[i] : 1;
        int n = 0;
        while (n < hits && kill_at(points[i], from + n))
            n++;
        assert_true(n > 0);
    }
}

static void zero_run_dies_at_any_time(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int i = 0; i < cuts; i++) {
        struct job job;
        begin_job(&job);
        start(&job, "3", NULL);
        usleep((unsigned)rand_r(&seed) % 250000);
        kill(job.run.pid, SIGKILL);
        run_command_finish(&job.run);
        go_on(&job);
    }
}

static void a_stop_saves(void **state)
{
    (void)state;
    struct job job;
    char sign[24];
    begin_job(&job);
    start(&job, "0", "waits");
    await(has_saved, &job);
    kill(job.run.pid, SIGTERM);
    run_await_error(&job.run, "SIGTERM: asking the ranks to stop");
    snprintf(sign, sizeof sign, "%s.go", job.name);
    run_give_sign(sign);
    run_command_finish_in(&job.run, PATIENCE_S);
    if (job.run.status != STOPPED)
        fail_msg("status %d: %s%s", job.run.status, job.run.out, job.run.err);
    go_on(&job);
}

static void a_second_stop_does_not_wait(void **state)
{
    (void)state;
    unsigned seed = 2;
    for (int i = 0; i < cuts; i++) {
        struct job job;
        begin_job(&job);
        start(&job, "20", NULL);
        await(has_saved, &job);
        kill(job.run.pid, SIGTERM);
        usleep((unsigned)rand_r(&seed) % 30000);
        kill(job.run.pid, SIGINT); // the same one again, so soon, would be no second wish
        run_command_finish(&job.run);
        go_on(&job);
    }
}

static bool is_waiting(const struct job *job)
{
    char text[4096];
    const ssize_t count = pread(fileno(job->run.files[1]), text, sizeof text - 1, 0);
    text[count > 0 ? count : 0] = '\0';
    return strstr(text, ", in 60 s, ");
}

// It has failed again and again without getting further, and waits.
static void zero_run_dies_between_two_starts(void **state)
{
    (void)state;
    struct job job;
    begin_job(&job);
    start(&job, "0", "fails");
    await(is_waiting, &job);
    assert_true(is_waiting(&job));
    kill(job.run.pid, SIGKILL);
    run_command_finish(&job.run);
    assert_int_equal(job.run.status, 128 + SIGKILL);
    go_on(&job);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    run_command_path = argv[1];
    rank_program = argv[2];
    if (argc > 3) {
        hits = 12;
        cuts = 100;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_run_dies_at_a_named_point),
        cmocka_unit_test(zero_run_dies_at_any_time),
        cmocka_unit_test(a_stop_saves),
        cmocka_unit_test(a_second_stop_does_not_wait),
        cmocka_unit_test(zero_run_dies_between_two_starts),
    };
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
