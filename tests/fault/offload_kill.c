// kill -9 of one rank, or of all, at random times of a job whose state is in files, without any
// checkpoint: it comes back at the last step that every rank has finished, or a later one, and ends
// with the fingerprint written down for a run that nothing has befallen. Steps of some jobs are
// fused. Argument: how many kills.
#include "tests/numerics/synthetic_matrix.h"
#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, LONGEST_MS = 2000, SHORTEST_MS = 10 };

static int kills = 50;
static struct temporary directory;

/** What ranks tell the test, also if they die then. */
struct board {
    _Atomic uint64_t finished[MOST_RANKS]; /**< steps */
    _Atomic bool complete;                 /**< the end was reached, and as it should be */
    _Atomic bool wrong;
    _Atomic uint64_t recoveries;
};

struct job {
    struct board *board;
    int world, stage, optimizer, precision;
    bool fused;    /**< its steps are fused */
    int victim;    /**< -1: all */
    long delay_us; /**< after which it is killed; 0: not at all */
};

/** Fused steps are neither clipped nor skipped. */
static int policy_of(const struct job *job)
{
    return job->fused ? MATRIX_UNCLIPPED : MATRIX_SKIPS;
}

static struct synthetic model_of(const struct job *job)
{
    struct synthetic model = matrix_model(job->optimizer, job->precision, policy_of(job));
    model.fused = job->fused;
    return model;
}

static void configure(struct team_rank *rank, const struct job *job)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    rank->config.stage = job->stage;
    rank->config.name = "kills";
    rank->config.offload_optimizer = "nvme";
    rank->config.offload_grads = job->stage > 1 && !job->fused ? "nvme" : "host";
    rank->config.nvme_dir = directory.directory;
    rank->config.io = engines[job->stage % 3];
    rank->config.tile_bytes = 65536;
    rank->config.offload_params = (job->world + job->stage) % 2 ? "nvme" : "host";
    rank->config.host_bytes = job->world % 2 ? 64 << 20 : 0;
    rank->config.compress = (job->world + job->optimizer) % 2 ? "on" : "off";
}

/** The kernel ends this process then, whatever it is doing; 0: it doesn't any more. */
static void be_killed_in(long us)
{
    const struct itimerval timer = {.it_value = {us / 1000000, us % 1000000}};
    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static uint64_t finished_by_all(const struct job *job)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < job->world; r++)
        if (atomic_load(&job->board->finished[r]) < least)
            least = atomic_load(&job->board->finished[r]);
    return least;
}

/** Whether a call went wrong because another rank has died. */
static bool is_excused(zero_result result)
{
    return result == ZERO_E_PEER || result == ZERO_E_ABORTED;
}

/** No rank that comes here is killed: what ends well leaves nothing to come back at. */
static bool ends_as_written(struct team_rank *rank, const struct job *job)
{
    uint8_t digest[16];
    char text[33];
    be_killed_in(0);
    const zero_result r = zero_fingerprint(rank->z, digest);
    if (is_excused(r))
        return true;
    TEAM_OK(rank, r);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    TEAM_CHECK(strcmp(text, matrix_golden(job->optimizer, job->precision, policy_of(job))) == 0);
    atomic_store(&job->board->complete, true);
    return true;
}

static bool train(struct team_rank *rank, const struct job *job, uint64_t step)
{
    const struct synthetic model = model_of(job);
    for (; step < MATRIX_STEPS; step++) {
        const zero_result r = synthetic_step(rank->z, &model, step);
        if (is_excused(r))
            return true;
        TEAM_OK(rank, r);
        atomic_store(&job->board->finished[rank->rank], step + 1);
    }
    return ends_as_written(rank, job);
}

static bool come_back_and_train(struct team_rank *rank, const struct job *job)
{
    const struct synthetic model = model_of(job);
    const uint64_t finished = finished_by_all(job);
    zero_load_result loaded = {.struct_size = sizeof loaded};
    configure(rank, job);
    synthetic_configure(&model, &rank->config);
    if (!team_open(rank))
        return false;
    if (job->victim < 0 || job->victim == rank->rank)
        be_killed_in(job->delay_us); // not while ranks wait for each other to come
    zero_result r = synthetic_commit(rank->z, &model);
    if (!r)
        r = zero_resume(rank->z, NULL, NULL, &loaded);
    if (is_excused(r))
        return true;
    if (r != ZERO_NOT_FOUND || finished > 0)
        TEAM_OK(rank, r);
    TEAM_CHECK(loaded.step >= finished);
    // A step that some ranks had finished, and not all, is given up, and finished anew.
    atomic_store(&job->board->finished[rank->rank], loaded.step);
    atomic_fetch_add(&job->board->recoveries, loaded.recovered);
    return train(rank, job, loaded.step);
}

static bool work(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (come_back_and_train(rank, job))
        return true;
    atomic_store(&job->board->wrong, true);
    return false;
}

/** One start of a job; whether something was killed. */
static bool start(const struct job *job)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(team_run("shm", job->world, work, (void *)(uintptr_t)job) ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (atomic_load(&job->board->wrong))
        fail_msg("%d ranks, stage %d%s, victim %d after %ld us", job->world, job->stage,
                 job->fused ? ", fused" : "", job->victim, job->delay_us);
    return status != 0;
}

static void a_killed_job_comes_back(void **state)
{
    (void)state;
    struct board *board = team_shared(sizeof *board);
    uint64_t recoveries = 0;
    int killed = 0;
    long longest_us = 100000;
    srand(11);
    for (int number = 0; killed < kills; number++) {
        struct job job = {.board = board,
                          .world = 1 + number % MOST_RANKS,
                          .stage = number % 4,
                          .fused = number % 5 % 2,
                          .optimizer = number % MATRIX_OPTIMIZERS,
                          .precision = number % 3};
        memset(board, 0, sizeof *board);
        while (!atomic_load(&board->complete)) {
            const uint64_t before = finished_by_all(&job);
            job.victim = rand() % (job.world + 1) - 1;
            job.delay_us = killed < kills ? 1 + rand() % longest_us : 0;
            killed += start(&job);
            // So long that about every other start gets anywhere.
            longest_us = finished_by_all(&job) > before ? longest_us * 4 / 5 : longest_us * 3 / 2;
            longest_us = longest_us < SHORTEST_MS * 1000 ? SHORTEST_MS * 1000 : longest_us;
            longest_us = longest_us > LONGEST_MS * 1000 ? LONGEST_MS * 1000 : longest_us;
        }
        assert_int_equal(temporary_entries(&directory), 0);
        recoveries += atomic_load(&board->recoveries);
    }
    print_message("%d kills, %ju recoveries of ranks\n", killed, (uintmax_t)recoveries);
    assert_true(recoveries > (uint64_t)kills / 4);
    team_shared_free(board, sizeof *board);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_killed_job_comes_back)};
    if (argc > 1)
        kills = atoi(argv[1]);
    if (!temporary_make(&directory))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temporary_remove(&directory);
    return failed;
}
