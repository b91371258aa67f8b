// Requests to stop: every rank learns of them after the same step, whichever rank asks, whenever it
// does, and no bit is another one.
#include "tests/ranks/toy.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 4, ASKED = 2, MOMENTS = 4 };

struct job {
    int stage;
    int asks;  /**< the rank that asks in step ASKED; -1: none does, -2: all do */
    bool skip; /**< that step is skipped */
    uint8_t digest[16];
};

static bool ask(const struct team_rank *rank, const struct job *job, int step, int micro)
{
    const bool last = micro == zero_micro_count(rank->z) - 1;
    if (step == ASKED && last && (job->asks == -2 || job->asks == rank->rank))
        zero_request_stop(rank->z);
    return zero_stop_requested(rank->z) == (job->asks != -1 && step > ASKED);
}

static bool run_step(struct team_rank *rank, const struct job *job, int step)
{
    double norm;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_CHECK(toy_micro(rank, &toy_odd, i, NULL, NULL));
        TEAM_CHECK(ask(rank, job, step, i));
    }
    // What ranks tell each other before the step ends says nothing.
    TEAM_OK(rank, zero_grad_norm(rank->z, 1, &norm));
    TEAM_CHECK(zero_stop_requested(rank->z) == (job->asks != -1 && step > ASKED));
    if (job->skip && step == ASKED)
        TEAM_OK(rank, zero_skip_step(rank->z));
    else
        TEAM_OK(rank, toy_update(rank, &toy_odd));
    TEAM_CHECK(zero_stop_requested(rank->z) == (job->asks != -1 && step >= ASKED));
    return true;
}

static bool steps(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    rank->config.stage = job->stage;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    for (int step = 1; step <= STEPS; step++)
        TEAM_CHECK(run_step(rank, job, step));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return true;
}

static void all_ranks_learn_after_the_same_step(void **state)
{
    (void)state;
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    for (int skip = 0; skip < 2; skip++) {
        *job = (struct job){.asks = -1, .skip = skip};
        assert_true(team_run("self", 1, steps, job));
        uint8_t plain[16];
        memcpy(plain, job->digest, sizeof plain);
        for (int world = 1; world <= 4; world++)
            for (int shm = 0; shm < 2; shm++) {
                *job = (struct job){.stage = (world + skip) % 4, .skip = skip};
                job->asks = shm == skip ? world - 1 : -2;
                assert_true(
                    team_run(shm && world > 1 ? "shm" : team_threads(world), world, steps, job));
                assert_memory_equal(job->digest, plain, sizeof plain);
            }
    }
    team_shared_free(job, sizeof *job);
}

/* ------------------------------------------------------------------ at any moment */

static zero_ctx *volatile own; // of this process

static void on_alarm(int number)
{
    (void)number;
    zero_request_stop(own);
}

static void *later(void *user)
{
    const struct team_rank *rank = user;
    usleep(500 + 1500 * (unsigned)rank->rank);
    zero_request_stop(rank->z);
    return NULL;
}

/** All ranks end after the same step; if they did not, one would wait for the others. */
static bool until_asked(struct team_rank *rank)
{
    double first = 0, last = 0;
    while (!zero_stop_requested(rank->z)) {
        TEAM_CHECK(toy_train(rank, &toy_odd, 1));
        first = ++last;
    }
    TEAM_OK(rank, zero_allreduce(rank->z, &first, 1, ZERO_MIN));
    TEAM_OK(rank, zero_allreduce(rank->z, &last, 1, ZERO_MAX));
    TEAM_CHECK(first == last && first >= 1);
    return true;
}

static bool by_a_signal(struct team_rank *rank, void *user)
{
    const int *moment = user;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    own = rank->z;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    const struct itimerval after = {.it_value.tv_usec = 300 + 1700 * *moment};
    if (*moment % rank->world == rank->rank) {
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &after, NULL);
    }
    return until_asked(rank);
}

static bool by_a_thread(struct team_rank *rank, void *user)
{
    (void)user;
    pthread_t thread;
    rank->config.stage = 3;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_CHECK(pthread_create(&thread, NULL, later, rank) == 0);
    const bool good = until_asked(rank);
    pthread_join(thread, NULL);
    return good;
}

static void a_request_may_come_at_any_moment(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        assert_true(team_run("threads", world, by_a_thread, NULL));
        for (int moment = 0; moment < MOMENTS; moment++)
            assert_true(team_run("shm", world, by_a_signal, &moment));
    }
}

/* ------------------------------------------------------------------ edges */

static bool early(struct team_rank *rank, void *user)
{
    (void)user;
    TEAM_CHECK(team_open(rank));
    zero_request_stop(rank->z);
    TEAM_CHECK(zero_stop_requested(rank->z) == 0);
    TEAM_CHECK(toy_register(rank, &toy_odd));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(zero_stop_requested(rank->z) == 0);
    TEAM_CHECK(toy_train(rank, &toy_odd, 1));
    TEAM_CHECK(zero_stop_requested(rank->z) == 1);
    // A failure doesn't take it back.
    zero_abort(rank->z, "enough");
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_ABORTED);
    TEAM_CHECK(zero_stop_requested(rank->z) == 1);
    return true;
}

static void a_request_before_the_first_step_counts(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, early, NULL));
    zero_request_stop(NULL);
    assert_int_equal(zero_stop_requested(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_learn_after_the_same_step),
        cmocka_unit_test(a_request_may_come_at_any_moment),
        cmocka_unit_test(a_request_before_the_first_step_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
