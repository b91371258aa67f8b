// Requests to stop that come during an evaluation: all ranks learn of them before the same
// micro-batch and may leave, and training is what it is without.
#include "tests/ranks/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    ROUNDS = 3, /**< micro-batches of each rank */
    BEFORE = -1,
    NEVER = -2,
};

enum way {
    LEAVES,      /**< before the next micro-batch */
    LEAVES_LATE, /**< when that has begun, with nothing gathered */
    STAYS,       /**< to the end */
    HURRIES,     /**< like STAYS, but rank 0 gives no metric of the last one */
};

struct job {
    int stage, prefetch;
    const char *gather;
    int asked; /**< the local micro-batch in which a rank asks, BEFORE the first one, or NEVER */
    int who;   /**< that rank */
    enum way way;
    bool deaf; /**< the program does not want to know */
    uint8_t digest[16];
};

/** Whether all ranks know behind the beginning of local micro-batch `i`. */
static bool known(const struct job *job, int i)
{
    return !job->deaf && job->asked != NEVER && i > job->asked;
}

static bool is_told(const struct team_rank *rank, const struct job *job)
{
    return !job->deaf && zero_stop_requested(rank->z);
}

static bool pass(struct team_rank *rank, const struct job *job, int i)
{
    double sum = 0;
    for (zero_unit unit = 0; unit < zero_unit_count(rank->z); unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        sum += toy_unit_sum(rank, &toy_odd, unit);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    if (i == job->asked && rank->rank == job->who)
        zero_request_stop(rank->z);
    if (job->way != HURRIES || rank->rank > 0 || i < ROUNDS - 1)
        TEAM_OK(rank, zero_metric(rank->z, "sum", sum));
    TEAM_CHECK(is_told(rank, job) == known(job, i));
    return true;
}

static double mean(const struct team_rank *rank)
{
    double value = -1;
    zero_metric_mean(rank->z, "sum", &value);
    return value;
}

/** All micro-batches, or those before the program leaves; *end: what zero_eval_end() is to return.
 */
static bool passes(struct team_rank *rank, const struct job *job, zero_result *end)
{
    *end = job->way == HURRIES ? ZERO_AGAIN : ZERO_OK;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        if (job->way == LEAVES && is_told(rank, job)) {
            *end = ZERO_AGAIN;
            return true;
        }
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        TEAM_CHECK(is_told(rank, job) == known(job, i));
        if (job->way == LEAVES_LATE && is_told(rank, job)) {
            *end = ZERO_AGAIN;
            return true;
        }
        TEAM_CHECK(pass(rank, job, i));
    }
    return true;
}

static bool evaluate(struct team_rank *rank, const struct job *job)
{
    const double before = mean(rank);
    zero_result end;
    TEAM_CHECK(!is_told(rank, job));
    if (job->asked == BEFORE && rank->rank == job->who)
        zero_request_stop(rank->z);
    TEAM_OK(rank, zero_eval_begin(rank->z, ROUNDS * rank->world - (rank->world > 1)));
    TEAM_CHECK(is_told(rank, job) == (job->asked == BEFORE && !job->deaf));
    TEAM_CHECK(passes(rank, job, &end));
    if (job->way == LEAVES_LATE && end == ZERO_AGAIN) {
        TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
        TEAM_CHECK(zero_eval_end(rank->z) == ZERO_E_STATE); // it is gathered
        TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    }
    if (end == ZERO_AGAIN) {
        TEAM_CHECK(zero_eval_end(rank->z) == ZERO_AGAIN);
        TEAM_CHECK(mean(rank) == before);
    } else {
        TEAM_OK(rank, zero_eval_end(rank->z));
        TEAM_CHECK(mean(rank) != before);
    }
    TEAM_CHECK(is_told(rank, job) == (job->asked != NEVER && !job->deaf));
    TEAM_CHECK(zero_eval_end(rank->z) == ZERO_E_STATE);
    return true;
}

static bool run_job(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.prefetch_units = job->prefetch;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_CHECK(toy_train(rank, &toy_odd, 2));
    if (job->asked != NEVER)
        TEAM_CHECK(evaluate(rank, job));
    TEAM_CHECK(toy_train(rank, &toy_odd, 2));
    TEAM_CHECK(zero_stop_requested(rank->z) == (job->asked != NEVER));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return true;
}

/** Runs it over `transport`; the bits are those of a run without evaluation. */
static void run(struct job *job, const struct job *shape, const char *transport, int world,
                const uint8_t *plain)
{
    *job = *shape;
    if (!team_run(transport, world, run_job, job))
        fail_msg("%d ranks over %s, stage %d, gather %s, asked in %d by %d, way %d", world,
                 transport, job->stage, job->gather, job->asked, job->who, job->way);
    if (plain)
        assert_memory_equal(job->digest, plain, sizeof job->digest);
}

static void all_ranks_learn_before_the_same_micro_batch(void **state)
{
    (void)state;
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    uint8_t plain[16];
    run(job, &(struct job){.asked = NEVER, .gather = "copy"}, "self", 1, NULL);
    memcpy(plain, job->digest, sizeof plain);
    int n = 0;
    for (int world = 1; world <= 4; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (enum way way = LEAVES; way <= STAYS; way++, n++) {
                const struct job shape = {.stage = stage,
                                          .prefetch = n % 3 ? n % 3 : ZERO_OFF,
                                          .gather = stage > 0 && n % 2 ? "shared" : "copy",
                                          .asked = BEFORE + n % (ROUNDS + 1),
                                          .who = n % world,
                                          .way = way};
                const bool processes = world > 1 && n % 5 == 0;
                run(job, &shape, processes ? "shm" : team_threads(world), world, plain);
            }
    team_shared_free(job, sizeof *job);
}

static void edges(void **state)
{
    (void)state;
    struct job *job = team_shared(sizeof *job);
    assert_non_null(job);
    for (int world = 1; world <= 3; world++) {
        // One rank's last micro-batch without its metric takes the means away from all.
        const struct job hurries = {.gather = "copy", .asked = 0, .way = HURRIES};
        run(job, &hurries, team_threads(world), world, NULL);
        // A program that does not listen is not held up, and finds it out after a step.
        const struct job deaf = {.gather = "copy", .asked = 0, .way = STAYS, .deaf = true};
        run(job, &deaf, team_threads(world), world, NULL);
    }
    team_shared_free(job, sizeof *job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_learn_before_the_same_micro_batch),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
