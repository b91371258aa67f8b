// Several contexts in one job, an actor and a critic: their steps interleave, and each has the bits
// it has alone; what ends one leaves the other as it is.
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 4 };

enum { ACTOR, CRITIC, CONTEXTS };

struct job {
    struct toy toys[CONTEXTS];
    int32_t stages[CONTEXTS];
    uint8_t (*digest)[CONTEXTS][16]; // by rank; shared with forked ones
    uint8_t actor[16];               // its digest alone
};

static const char *const names[CONTEXTS] = {"actor", "critic"};

static bool open_context(const struct team_rank *rank, const struct job *job, int which,
                         struct team_rank *context)
{
    char name[64];
    *context = *rank;
    snprintf(name, sizeof name, "%s.%s", rank->config.name, names[which]);
    context->config.name = name;
    context->config.stage = job->stages[which];
    return toy_open(context, &job->toys[which]);
}

static bool micro_batch(struct team_rank *contexts, const struct job *job, int which, int i)
{
    return i >= zero_micro_count(contexts[which].z) ||
           toy_micro(&contexts[which], &job->toys[which], i, NULL, NULL);
}

// The critic makes two steps for each of the actor's, its micro-batches between the actor's.
static bool interleave(struct team_rank *contexts, const struct job *job)
{
    for (int s = 0; s < STEPS; s++) {
        const int most = zero_micro_count(contexts[ACTOR].z) + zero_micro_count(contexts[CRITIC].z);
        for (int i = 0; i < most; i++)
            if (!micro_batch(contexts, job, ACTOR, i) || !micro_batch(contexts, job, CRITIC, i))
                return false;
        TEAM_OK(&contexts[CRITIC], toy_update(&contexts[CRITIC], &job->toys[CRITIC]));
        TEAM_CHECK(toy_train(&contexts[CRITIC], &job->toys[CRITIC], 1));
        TEAM_OK(&contexts[ACTOR], toy_update(&contexts[ACTOR], &job->toys[ACTOR]));
    }
    return true;
}

static bool together(struct team_rank *rank, const struct job *job)
{
    struct team_rank contexts[CONTEXTS] = {{.z = NULL}};
    bool good = true;
    for (int c = 0; good && c < CONTEXTS; c++)
        good = open_context(rank, job, c, &contexts[c]);
    good = good && interleave(contexts, job);
    for (int c = 0; good && c < CONTEXTS; c++)
        good = team_ok(&contexts[c], zero_fingerprint(contexts[c].z, job->digest[rank->rank][c]),
                       "fingerprint");
    // The first one is closed while the other is still of use.
    team_close(&contexts[ACTOR]);
    good = good && team_ok(&contexts[CRITIC], zero_barrier(contexts[CRITIC].z), "zero_barrier");
    team_close(&contexts[CRITIC]);
    return good;
}

static bool runs_together(struct team_rank *rank, void *user)
{
    return together(rank, user);
}

static bool runs_alone(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    for (int c = 0; c < CONTEXTS; c++) {
        struct team_rank context;
        const bool good = open_context(rank, job, c, &context) &&
                          toy_train(&context, &job->toys[c], c == CRITIC ? 2 * STEPS : STEPS) &&
                          team_ok(&context, zero_fingerprint(context.z, job->digest[rank->rank][c]),
                                  "fingerprint");
        team_close(&context);
        if (!good)
            return false;
    }
    return true;
}

static struct job job_of(int actor_stage, int critic_stage, uint8_t (*digest)[CONTEXTS][16])
{
    struct job job = {
        .toys = {toy_odd, toy_odd}, .stages = {actor_stage, critic_stage}, .digest = digest};
    job.toys[ACTOR].dtype = ZERO_BF16;
    job.toys[ACTOR].micro_batches = 3;
    job.toys[CRITIC].micro_batches = 5;
    job.toys[CRITIC].salt = 7;
    return job;
}

static void each_has_its_own_bits(const char *transport)
{
    const size_t bytes = MOST_RANKS * sizeof(uint8_t[CONTEXTS][16]);
    uint8_t(*digest)[CONTEXTS][16] = team_shared(bytes);
    uint8_t expected[CONTEXTS][16];
    assert_non_null(digest);
    struct job job = job_of(0, 0, digest);
    assert_true(team_run("self", 1, runs_alone, &job));
    memcpy(expected, digest[0], sizeof expected);
    assert_memory_not_equal(expected[ACTOR], expected[CRITIC], 16);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stages = 0; stages < 8; stages++) {
            if (!test_takes(world - 1 + stages))
                continue;
            job = job_of(stages % 4, stages / 4 ? (stages + 3) % 4 : (stages + 1) % 4, digest);
            memset(digest, 0, bytes);
            if (!team_run(world == 1 && !strcmp(transport, "threads") ? "self" : transport, world,
                          runs_together, &job))
                fail_msg("world %d, stages %d and %d", world, job.stages[0], job.stages[1]);
            for (int r = 0; r < world; r++)
                assert_memory_equal(digest[r], expected, sizeof expected);
        }
    team_shared_free(digest, bytes);
}

static void ranks_that_are_threads(void **state)
{
    (void)state;
    each_has_its_own_bits("threads");
}

static void ranks_that_are_processes(void **state)
{
    (void)state;
    each_has_its_own_bits("shm");
}

/* ------------------------------------------------------------------ one that fails */

enum { NONFINITE, ABORTED, DIVERGED, WAYS };

// Ends the critic on every rank.
static bool spoil(struct team_rank *critic, const struct job *job, int way)
{
    static const zero_result expected[WAYS] = {ZERO_E_NONFINITE, ZERO_E_ABORTED, ZERO_E_DIVERGED};
    struct toy bad = job->toys[CRITIC];
    bad.boost = way == NONFINITE ? INFINITY : 0;
    for (int i = 0; i < zero_micro_count(critic->z); i++)
        TEAM_CHECK(toy_micro(critic, &bad, i, NULL, NULL));
    TEAM_OK(critic, zero_barrier(critic->z));
    if (way == ABORTED && critic->rank == 0)
        zero_abort(critic->z, "the critic is done with");
    bad.micro_batches += way == DIVERGED ? critic->rank : 0; // another scale
    const zero_result r = toy_update(critic, &bad);
    // A lone rank has no other to differ from.
    TEAM_CHECK(r == (way == DIVERGED && critic->world == 1 ? ZERO_OK : expected[way]));
    return true;
}

static bool survives(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    for (int way = 0; way < WAYS; way++) {
        struct team_rank actor, critic;
        uint8_t digest[16];
        TEAM_CHECK(open_context(rank, job, ACTOR, &actor));
        TEAM_CHECK(open_context(rank, job, CRITIC, &critic));
        TEAM_CHECK(toy_train(&actor, &job->toys[ACTOR], 1));
        TEAM_CHECK(spoil(&critic, job, way));
        TEAM_CHECK(toy_train(&actor, &job->toys[ACTOR], 1));
        team_close(&critic);
        TEAM_CHECK(toy_train(&actor, &job->toys[ACTOR], STEPS - 2));
        TEAM_OK(&actor, zero_fingerprint(actor.z, digest));
        TEAM_CHECK(memcmp(digest, job->actor, sizeof digest) == 0);
        team_close(&actor);
    }
    return true;
}

static void one_that_fails_leaves_the_other(void **state)
{
    (void)state;
    uint8_t digest[MOST_RANKS][CONTEXTS][16];
    struct job job = job_of(0, 0, digest);
    assert_true(team_run("self", 1, runs_alone, &job));
    memcpy(job.actor, digest[0][ACTOR], sizeof job.actor);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!test_takes(world + stage))
                continue;
            job.stages[ACTOR] = stage;
            job.stages[CRITIC] = 3 - stage;
            assert_true(team_run(team_threads(world), world, survives, &job));
            if (world == 3)
                assert_true(team_run("shm", world, survives, &job));
        }
}

/* ------------------------------------------------------------------ another order */

/** What each rank's log says, in memory that ranks share. */
struct told {
    struct job job;
    char (*words)[1024];
};

static void keep_words(void *user, zero_log_level level, const char *component, const char *message)
{
    char *words = user;
    const size_t used = strlen(words);
    (void)component;
    if (level == ZERO_LOG_WARN)
        snprintf(words + used, 1024 - used, "%s\n", message);
}

static void listen_to(struct team_rank *rank, const struct told *told)
{
    rank->config.log = keep_words;
    rank->config.log_user = told->words[rank->rank];
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.timeout_s = 2;
}

// Each waits for the other one, until the time of one is over; that one then is where it is waited
// for, or gone.
static bool steps_in_another_order(struct team_rank *rank, void *user)
{
    const struct told *told = user;
    struct team_rank contexts[CONTEXTS] = {{.z = NULL}};
    listen_to(rank, told);
    for (int c = 0; c < CONTEXTS; c++)
        TEAM_CHECK(open_context(rank, &told->job, c, &contexts[c]));
    const int first = rank->rank == 0 ? ACTOR : CRITIC;
    for (int i = 0; i < zero_micro_count(contexts[first].z); i++)
        if (!toy_micro(&contexts[first], &told->job.toys[first], i, NULL, NULL))
            break;
    toy_update(&contexts[first], &told->job.toys[first]);
    for (int c = 0; c < CONTEXTS; c++)
        team_close(&contexts[c]);
    return true;
}

static bool opens_in_another_order(struct team_rank *rank, void *user)
{
    const struct told *told = user;
    struct team_rank context;
    listen_to(rank, told);
    // Silent: it says itself that it can't.
    context = *rank;
    context.config.name = rank->rank == 0 ? names[ACTOR] : names[CRITIC];
    TEAM_CHECK(zero_open(&context.z, &context.config) == ZERO_E_TIMEOUT);
    return true;
}

static void expect_words(const struct told *told, int rank, const char *first, const char *second)
{
    if (!strstr(told->words[rank], first) || !strstr(told->words[rank], second))
        fail_msg("rank %d: no \"%s\" or \"%s\" in: %s", rank, first, second, told->words[rank]);
}

static void another_order_is_said(void **state)
{
    (void)state;
    static const char *const transports[] = {"threads", "shm"};
    uint8_t digest[MOST_RANKS][CONTEXTS][16];
    struct told told = {.job = job_of(2, 3, digest), .words = team_shared(2 * sizeof *told.words)};
    assert_non_null(told.words);
    for (int t = 0; t < 2; t++) {
        memset(told.words, 0, 2 * sizeof *told.words);
        team_run(transports[t], 2, steps_in_another_order, &told);
        expect_words(&told, 0, ".actor\" have waited ", "for rank 1 (last call: ");
        expect_words(&told, 1, ".critic\" have waited ", "for rank 0 (last call: ");
        memset(told.words, 0, 2 * sizeof *told.words);
        assert_true(team_run(transports[t], 2, opens_in_another_order, &told));
        expect_words(&told, 0, "\"actor\"", "for rank 1 of 2");
        expect_words(&told, 1, "\"critic\"", "for rank 0 of 2");
    }
    team_shared_free(told.words, 2 * sizeof *told.words);
}

/* ------------------------------------------------------------------ one file of metrics */

static void lines_tell_whose_they_are(void **state)
{
    (void)state;
    char number[16], lines[4096] = "";
    uint8_t digest[MOST_RANKS][CONTEXTS][16];
    struct job job = job_of(0, 3, digest);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    setenv("ZERO_METRICS_FD", number, 1);
    assert_true(team_run("self", 1, runs_together, &job));
    unsetenv("ZERO_METRICS_FD");
    assert_true(read(ends[0], lines, sizeof lines - 1) > 0);
    // The critic is the first to make a step.
    assert_ptr_equal(strstr(lines, "{\"step\":1,\"updates\":1,\"context\":\"team-"), lines);
    assert_non_null(strstr(lines, ".critic\",\"norm\":"));
    assert_non_null(strstr(lines, ".actor\",\"norm\":"));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_are_threads),
        cmocka_unit_test(ranks_that_are_processes),
        cmocka_unit_test(one_that_fails_leaves_the_other),
        cmocka_unit_test(another_order_is_said),
        cmocka_unit_test(lines_tell_whose_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
