// Saves in which something fails or a rank dies: training goes on with the same bits, or is taken
// up again from the newest checkpoint that was acknowledged, or a later one, and never from
// anything else. The fingerprint at the end is the one written down for a run that nothing has
// befallen.
//
// With "many" as its argument more of everything.
#include "base/fault.h"
#include "tests/numerics/synthetic_matrix.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, EVERY = 2 };

/** What ranks tell the test, also if they die then. */
struct board {
    _Atomic uint64_t acknowledged; /**< the newest step whose checkpoint was complete */
    _Atomic uint64_t failures;     /**< saves that failed */
    _Atomic uint64_t fired;        /**< faults that came to pass in the victim */
};

struct job {
    struct board *board;
    const char *directory;
    int stage;
    int victim; /**< the rank that has the fault; -1: none */
    char fault[64];
    bool deadly;   /**< it kills */
    bool resuming; /**< goes on from what is there */
};

static struct synthetic model_of(void)
{
    return matrix_model(0, 1, MATRIX_CLIPPED); // adamw, bf16
}

static void acknowledge(const struct team_rank *rank, struct board *board)
{
    zero_save_info info = {.struct_size = sizeof info};
    if (rank->rank == 0 && zero_save_poll(rank->z, &info) == ZERO_OK &&
        info.phase == ZERO_SAVE_COMPLETE)
        atomic_store(&board->acknowledged, info.step);
}

/** Whether a call went wrong as it may: because another rank has died. */
static bool is_excused(const struct job *job, zero_result result)
{
    return job->deadly && (result == ZERO_E_PEER || result == ZERO_E_ABORTED);
}

/** A save that fails is reported on every rank, and the next one may succeed. */
static bool save(struct team_rank *rank, const struct job *job)
{
    const zero_save_options options = {.struct_size = sizeof options, .keep = 2};
    const zero_result r = zero_save(rank->z, job->directory, &options);
    if (r == ZERO_OK || is_excused(job, r))
        return true;
    atomic_fetch_add(&job->board->failures, 1);
    TEAM_CHECK(r == ZERO_E_IO || r == ZERO_E_NOMEM);
    return true;
}

static bool ends_as_written(struct team_rank *rank)
{
    uint8_t digest[16];
    char text[33];
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    TEAM_CHECK(strcmp(text, matrix_golden(0, 1, MATRIX_CLIPPED)) == 0);
    return true;
}

static bool train(struct team_rank *rank, const struct job *job, uint64_t step)
{
    const struct synthetic model = model_of();
    for (; step < MATRIX_STEPS; step++) {
        const zero_result r = synthetic_step(rank->z, &model, step);
        if (is_excused(job, r))
            return true;
        TEAM_OK(rank, r);
        acknowledge(rank, job->board);
        if ((step + 1) % EVERY == 0 && !save(rank, job))
            return false;
    }
    const zero_result r = zero_save_wait(rank->z);
    if (is_excused(job, r))
        return true;
    TEAM_CHECK(r == ZERO_OK || r == ZERO_E_IO || r == ZERO_E_NOMEM);
    acknowledge(rank, job->board);
    return ends_as_written(rank);
}

static bool work(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct synthetic model = model_of();
    zero_load_result loaded = {.struct_size = sizeof loaded};
    rank->config.stage = job->stage;
    synthetic_configure(&model, &rank->config);
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &model));
    if (job->resuming) {
        const uint64_t acknowledged = atomic_load(&job->board->acknowledged);
        const zero_result r = zero_resume(rank->z, job->directory, NULL, &loaded);
        TEAM_CHECK(r == ZERO_OK || (r == ZERO_NOT_FOUND && acknowledged == 0));
        TEAM_CHECK(loaded.step >= acknowledged && loaded.damaged == 0);
        atomic_store(&job->board->acknowledged, loaded.step);
    }
    if (rank->rank == job->victim)
        TEAM_CHECK(base_fault_set(job->fault, NULL) == ZERO_OK);
    const bool good = train(rank, job, loaded.step);
    if (rank->rank == job->victim) {
        atomic_store(&job->board->fired, base_fault_fired());
        base_fault_set(NULL, NULL);
    }
    return good;
}

/** Goes on with what is left, on another number of ranks, and saves there again. */
static void take_up(const struct job *job, int world)
{
    struct job next = *job;
    next.victim = -1;
    next.deadly = false;
    next.resuming = true;
    if (!team_run(team_threads(world), world, work, &next))
        fail_msg("%s on rank %d: not taken up by %d ranks", job->fault, job->victim, world);
    assert_int_equal(atomic_load(&job->board->acknowledged), MATRIX_STEPS);
}

static const char *const points[] = {
    "io.open",  "io.write", "io.truncate", "io.fsync", "io.rename",
    "io.close", "io.mkdir", "io.unlink",   "io.rmdir", "io.list",
};
enum { POINTS = sizeof points / sizeof *points };

/** One run with a fault, and another one after it; false: it had no such hit. */
static bool harm(struct job job, struct board *board, const char *what, int point, int hit)
{
    struct temporary temporary;
    bool killed = false;
    assert_true(temporary_make(&temporary));
    memset((void *)board, 0, sizeof *board);
    job.board = board;
    job.directory = temporary.directory;
    job.deadly = strcmp(what, "kill") == 0;
    snprintf(job.fault, sizeof job.fault, "%s:%s@%d", points[point], what, hit);
    if (!team_run_endangered(WORLD, job.victim, &killed, work, &job))
        fail_msg("%s on rank %d", job.fault, job.victim);
    const bool happened = killed || atomic_load(&board->fired) > 0;
    if (happened)
        take_up(&job, 1 + hit % 3);
    temporary_remove(&temporary);
    return happened;
}

/** Each hit of each point, or some of them. */
static void sweep(const char *what, int stride)
{
    struct board *board = team_shared(sizeof *board);
    assert_non_null(board);
    int harmed = 0, turn = 0;
    for (int victim = 0; victim < WORLD; victim++)
        for (int point = 0; point < POINTS; point++) {
            const struct job job = {.victim = victim, .stage = (point + victim) % 4};
            for (int hit = 1 + (turn++ + 5 * TEST_PART) % stride;
                 harm(job, board, what, point, hit); hit += stride)
                harmed++;
        }
    assert_true(harmed > POINTS / 2);
    team_shared_free(board, sizeof *board);
}

static int stride = 5 * TEST_LONG_STRIDE;

static void a_rank_dies_at_a_named_point(void **state)
{
    (void)state;
    sweep("kill", stride);
}

static void the_disk_is_full(void **state)
{
    (void)state;
    sweep("enospc", stride);
}

static void a_call_fails(void **state)
{
    (void)state;
    sweep("eio", stride);
}

// Calls that are interrupted, and transfers that move a part, are no failures.
static void what_is_unfinished_is_finished(void **state)
{
    (void)state;
    struct board *board = team_shared(sizeof *board);
    struct temporary temporary;
    assert_non_null(board);
    assert_true(temporary_make(&temporary));
    struct job job = {.board = board, .directory = temporary.directory, .victim = 1, .stage = 2};
    static const char *const faults[] = {"io.short@1+", "io.write:eintr@3,io.write:eintr@7"};
    for (int i = 0; i < 2; i++) {
        snprintf(job.fault, sizeof job.fault, "%s", faults[i]);
        assert_true(temporary_empty(temporary.directory));
        assert_true(team_run("shm", WORLD, work, &job));
        assert_true(atomic_load(&board->fired) > 0);
        assert_int_equal(atomic_load(&board->failures), 0);
        take_up(&job, 3);
    }
    temporary_remove(&temporary);
    team_shared_free(board, sizeof *board);
}

static int kills = 12;

static void sleep_us(unsigned long us)
{
    const struct timespec time = {.tv_sec = 0, .tv_nsec = (long)us * 1000};
    nanosleep(&time, NULL);
}

/** The whole job dies, somewhere. */
static void kill_at_random(struct job *job, unsigned *seed)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        _exit(team_run(team_threads(WORLD), WORLD, work, job) ? 0 : 1);
    assert_true(child > 0);
    sleep_us((unsigned long)rand_r(seed) % 60000);
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(status == SIGKILL || status == 0);
}

// Again and again in one directory: each one goes on from where the last one was stopped.
static void the_job_dies_at_any_time(void **state)
{
    (void)state;
    struct board *board = team_shared(sizeof *board);
    struct temporary temporary;
    unsigned seed = 1 + TEST_PART;
    assert_non_null(board);
    assert_true(temporary_make(&temporary));
    struct job job = {
        .board = board, .directory = temporary.directory, .victim = -1, .resuming = true};
    for (int i = 0; i < kills / TEST_LONG_STRIDE; i++) {
        job.stage = i % 4;
        kill_at_random(&job, &seed);
        if (i % 4 == 3) {
            take_up(&job, 1 + i % 3);
            temporary_remove(&temporary);
            assert_true(temporary_make(&temporary));
            memset((void *)board, 0, sizeof *board);
        }
    }
    take_up(&job, 3);
    temporary_remove(&temporary);
    team_shared_free(board, sizeof *board);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_dies_at_a_named_point),
        cmocka_unit_test(the_disk_is_full),
        cmocka_unit_test(a_call_fails),
        cmocka_unit_test(what_is_unfinished_is_finished),
        cmocka_unit_test(the_job_dies_at_any_time),
    };
    if (argc > 1 && strcmp(argv[1], "many") == 0) {
        stride = 1;
        kills = 500;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
