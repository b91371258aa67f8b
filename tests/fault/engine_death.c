// A rank is killed or stopped somewhere in a step: every other rank's call returns an error that
// names it, and what a checkpoint would hold of the rank's shard is all as it was before a step, or
// all as it is after it.

#include "base/fault.h"
#include "tests/ranks/toy.h"
#include "zero/core/addresses.h"
#include "zero/core/context.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, STEPS = 3, MOST_FLOATS = 100000 };

/** A rank's master weights and moments after some steps. */
struct image {
    size_t count;
    float values[MOST_FLOATS];
};

struct board {
    struct image images[WORLD][STEPS + 1]; /**< of a run without a fault */
    int applied[WORLD];                    /**< what a killed run left: after how many steps */
    int returned[WORLD];                   /**< steps that zero_step() had returned from */
    _Atomic pid_t victim;
};

struct job {
    struct board *board;
    int stage;
    zero_dtype dtype;
    int victim;     /**< -1: none */
    char fault[64]; /**< of the victim */
    bool stopped;   /**< which stops it */
};

/* ------------------------------------------------------------------ state */

static void copy_image(const zero_ctx *z, struct image *image)
{
    image->count = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const size_t first = place->state_first * BASE_GRANULE;
        const size_t count = place->state_granules * BASE_GRANULE;
        if (count == 0 || image->count + 3 * count > MOST_FLOATS)
            continue;
        const float *const parts[] = {eng_weights(z, s, first), eng_moments(z, 0, s, first),
                                      eng_moments(z, 1, s, first)};
        for (int i = 0; i < 3; i++, image->count += count)
            memcpy(image->values + image->count, parts[i], count * sizeof(float));
    }
}

/** After how many steps the state was like this, -1 if never. */
static int find_image(const struct board *board, int rank, const struct image *image)
{
    for (int step = 0; step <= STEPS; step++) {
        const struct image *like = &board->images[rank][step];
        if (like->count == image->count &&
            memcmp(like->values, image->values, image->count * sizeof(float)) == 0)
            return step;
    }
    return -1;
}

/* ------------------------------------------------------------------ ranks */

static bool open_rank(struct team_rank *rank, const struct job *job, struct toy *toy)
{
    *toy = toy_odd;
    toy->dtype = job->dtype;
    rank->config.stage = job->stage;
    rank->config.stall_s = job->stopped ? 3 : 30;
    // All ranks have committed before one dies.
    return toy_open(rank, toy) && coll_barrier(rank->z->comm) == ZERO_OK;
}

/** What happens without a fault. */
static bool undisturbed_rank(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct image *images = job->board->images[rank->rank];
    struct toy toy;
    TEAM_CHECK(open_rank(rank, job, &toy));
    for (int step = 0; step <= STEPS; step++) {
        copy_image(rank->z, &images[step]);
        TEAM_CHECK(images[step].count > 0);
        TEAM_CHECK(step == 0 || memcmp(images[step].values, images[step - 1].values,
                                       images[step].count * sizeof(float)) != 0);
        TEAM_CHECK(step == STEPS || toy_train(rank, &toy, 1));
    }
    return true;
}

/** Trains until a call fails; what the helpers print of it is of no interest. */
static int train_silently(struct team_rank *rank, const struct toy *toy)
{
    const int printed = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDERR_FILENO);
    int steps = 0;
    while (steps < STEPS && toy_train(rank, toy, 1))
        steps++;
    dup2(printed, STDERR_FILENO);
    close(printed);
    close(nowhere);
    return steps;
}

static bool disturbed_rank(struct team_rank *rank, void *user)
{
    static struct image image;
    const struct job *job = user;
    struct toy toy;
    TEAM_CHECK(open_rank(rank, job, &toy));
    if (rank->rank == job->victim) {
        atomic_store(&job->board->victim, getpid());
        TEAM_CHECK(base_fault_set(job->fault, NULL) == ZERO_OK);
    }
    const int steps = train_silently(rank, &toy);
    if (rank->rank == job->victim)
        return true; // it lives, which the test notices
    if (job->stopped)
        kill(atomic_load(&job->board->victim), SIGKILL);
    const zero_result result = job->stopped ? ZERO_E_TIMEOUT : ZERO_E_PEER;
    char words[128];
    snprintf(words, sizeof words, "rank %d %s; its last call:", job->victim,
             job->stopped
                 ? "has given no sign of life for 3.0 s (its process is stopped or starved)"
                 : "died");
    TEAM_CHECK(steps < STEPS && strstr(zero_last_error(rank->z), words));
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == result);
    TEAM_CHECK(toy_update(rank, &toy) == result);
    copy_image(rank->z, &image);
    job->board->applied[rank->rank] = find_image(job->board, rank->rank, &image);
    job->board->returned[rank->rank] = steps;
    return true;
}

/* ------------------------------------------------------------------ sweeps */

/** Kills the victim; checks what is left. */
static void kill_at(struct job *job, int victim, const char *point, unsigned hit)
{
    struct board *board = job->board;
    job->victim = victim;
    snprintf(job->fault, sizeof job->fault, "%s:%s@%u", point, job->stopped ? "stop" : "kill", hit);
    if (!team_run_killed(WORLD, victim, disturbed_rank, job))
        fail_msg("stage %d, rank %d, %s", job->stage, victim, job->fault);
    for (int rank = 0; rank < WORLD; rank++) {
        const int ahead = board->applied[rank] - board->returned[rank];
        if (rank != victim && (board->applied[rank] < 0 || ahead < 0 || ahead > 1))
            fail_msg("stage %d, rank %d, %s: rank %d returned from %d steps, its state is that "
                     "after %d",
                     job->stage, victim, job->fault, rank, board->returned[rank],
                     board->applied[rank]);
    }
}

/** Around the verdict, around the publications, and somewhere among the rest. */
static void sweep(int stage, zero_dtype dtype)
{
    static const char *const points[] = {"coll.exchange.post", "coll.exchange.meet",
                                         "coll.exchange.read", "coll.exchange.done"};
    struct job job = {.stage = stage, .dtype = dtype, .victim = -1};
    job.board = team_shared(sizeof *job.board);
    assert_non_null(job.board);
    assert_true(team_run("shm", WORLD, undisturbed_rank, &job));
    for (unsigned i = 0; i < 4; i++)
        kill_at(&job, (int)(i % WORLD), points[i], 2);
    for (unsigned hit = 1; hit < 150; hit += 1 + hit / 2)
        kill_at(&job, (int)(hit % WORLD), "coll.*", hit);
    job.stopped = true;
    kill_at(&job, stage % WORLD, "coll.exchange.read", 2);
    team_shared_free(job.board, sizeof *job.board);
}

static void stage_0(void **state)
{
    (void)state;
    sweep(0, ZERO_F32);
}

static void stage_1(void **state)
{
    (void)state;
    sweep(1, ZERO_BF16);
}

static void stage_2(void **state)
{
    (void)state;
    sweep(2, ZERO_F32);
}

static void stage_3(void **state)
{
    (void)state;
    sweep(3, ZERO_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stage_0),
        cmocka_unit_test(stage_1),
        cmocka_unit_test(stage_2),
        cmocka_unit_test(stage_3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
