// Every rank is late at random, at every point of every collective: the bits are the same, and
// nothing fails.

#include "base/fault.h"
#include "tests/ranks/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 2, MOST_WORLD = 3 };

struct job {
    int stage;
    const char *gather;
    uint8_t (*digests)[16]; /**< of every rank */
};

static bool train(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.timeout_s = 60;
    TEAM_CHECK(toy_open(rank, &toy_odd) && toy_train(rank, &toy_odd, STEPS));
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digests[rank->rank]));
    return true;
}

static void compare(const char *transport, int world, struct job *job, const uint8_t expected[16])
{
    memset(job->digests, 0, MOST_WORLD * sizeof *job->digests);
    // Of this process's threads, or inherited by the ranks it forks.
    assert_int_equal(base_fault_set("coll.*:delay@1+", NULL), ZERO_OK);
    const bool trained = team_run(transport, world, train, job);
    const bool delayed = strcmp(transport, "shm") == 0 || base_fault_fired() > 100;
    base_fault_set(NULL, NULL);
    assert_true(trained && delayed);
    for (int r = 0; r < world; r++)
        if (memcmp(job->digests[r], expected, 16) != 0)
            fail_msg("%s, %d ranks, stage %d, %s: rank %d has another fingerprint", transport,
                     world, job->stage, job->gather, r);
}

static void delays_change_no_bit(void **state)
{
    (void)state;
    uint8_t expected[16];
    struct job job = {.gather = "copy", .digests = team_shared(MOST_WORLD * sizeof *job.digests)};
    assert_non_null(job.digests);
    assert_true(team_run("self", 1, train, &job));
    memcpy(expected, job.digests[0], sizeof expected);
    for (job.stage = 0; job.stage <= 3; job.stage++) {
        job.gather = job.stage % 2 ? "copy" : "auto";
        compare("shm", 3, &job, expected);
        job.gather = job.stage % 2 ? "auto" : "copy";
        compare(job.stage % 2 ? "shm" : "threads", 2, &job, expected);
    }
    team_shared_free(job.digests, MOST_WORLD * sizeof *job.digests);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delays_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
