// Another number of micro-batches between steps: the bits of a run that goes on with it, at every
// stage and number of ranks; what needs memory that was not planned is refused, and changes
// nothing.
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, CHANGES = 5, STEPS = 2 };

struct job {
    struct toy toy;
    int32_t stage;
    int32_t first;            // V at commit
    int32_t changes[CHANGES]; // then, each for two steps; 0: no more
    int32_t sum_group;
    const char *reduction;
    const char *refused; // a part of the message
    uint64_t allocated[MOST_RANKS];
    uint8_t digest[MOST_RANKS][16];
};

static bool open_toy(struct team_rank *rank, const struct job *job, struct toy *toy)
{
    *toy = job->toy;
    toy->micro_batches = job->first;
    rank->config.stage = job->stage;
    rank->config.sum_group = job->sum_group;
    rank->config.reduction = job->reduction;
    return toy_open(rank, toy);
}

/** Bytes of the plan's row. */
static size_t planned(const zero_ctx *z, const char *purpose)
{
    const char *row = strstr(zero_plan_text(z), purpose);
    const char *host = row ? strstr(row, " host ") : NULL;
    return host ? (size_t)strtoull(host + 6, NULL, 10) : SIZE_MAX;
}

/** What depends on V in the plan follows it, but for memory that was decided for at commit. */
static bool set(struct team_rank *rank, struct toy *toy, int32_t micro_batches)
{
    char line[80];
    const size_t gradients = planned(rank->z, "\n  gradients  "),
                 blocks = planned(rank->z, "\n  unfinished blocks");
    TEAM_OK(rank, zero_set_micro_batches(rank->z, micro_batches));
    toy->micro_batches = micro_batches;
    TEAM_CHECK(zero_micro_total(rank->z) == micro_batches);
    TEAM_CHECK(zero_micro_count(rank->z) == (micro_batches + rank->world - 1) / rank->world);
    snprintf(line, sizeof line, "  micro-batches %d a step", micro_batches);
    TEAM_CHECK(strstr(zero_plan_text(rank->z), line));
    snprintf(line, sizeof line, "  %-18s %-16d (zero_set_micro_batches)", "micro_batches",
             micro_batches);
    TEAM_CHECK(strstr(zero_plan_text(rank->z), line));
    TEAM_CHECK(strstr(zero_plan_text(rank->z), "\n  fits         yes\n"));
    TEAM_CHECK(planned(rank->z, "\n  gradients  ") == gradients);
    TEAM_CHECK(planned(rank->z, "\n  unfinished blocks") == blocks);
    return true;
}

static bool changes(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy;
    zero_statistics stats = {.struct_size = sizeof stats};
    if (!open_toy(rank, job, &toy))
        return false;
    for (int i = 0; i < CHANGES && job->changes[i]; i++)
        if (!set(rank, &toy, job->changes[i]) || !toy_train(rank, &toy, STEPS))
            return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    job->allocated[rank->rank] = stats.allocated_bytes;
    return true;
}

static void run(struct job *job, int world, const uint8_t *expected)
{
    if (!team_run(team_threads(world), world, changes, job))
        fail_msg("world %d, stage %d", world, job->stage);
    for (int r = 0; r < world; r++)
        if (memcmp(job->digest[r], expected ? expected : job->digest[0], 16) != 0)
            fail_msg("world %d, stage %d: another fingerprint on rank %d", world, job->stage, r);
}

// Every stage and number of ranks against one rank at stage 0.
static void same_everywhere(struct job job)
{
    uint8_t expected[16];
    run(&job, 1, NULL);
    memcpy(expected, job.digest[0], sizeof expected);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++)
            if (test_takes(world - 1 + job.stage))
                run(&job, world, expected);
}

static void the_bits_are_those_of_one_run(void **state)
{
    (void)state;
    struct job job = {.toy = toy_odd, .first = 3, .changes = {3, 8, 1, 5}};
    same_everywhere(job);
    job.toy.dtype = ZERO_BF16;
    same_everywhere(job);
    // Blocks are there from the start: every number is above that of the ranks.
    job = (struct job){.toy = toy_odd, .first = 6, .changes = {6, 13, 3, 9}, .sum_group = 4};
    same_everywhere(job);
}

// Before the first step there is nothing to remember another number by.
static void a_change_before_the_first_step_leaves_no_trace(void **state)
{
    (void)state;
    struct job never = {.toy = toy_odd, .first = 7, .changes = {7, 7}};
    struct job changed = {.toy = toy_odd, .first = 2, .changes = {7, 7}};
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!test_takes(world - 1 + stage))
                continue;
            never.stage = changed.stage = stage;
            run(&never, world, NULL);
            run(&changed, world, never.digest[0]);
            assert_memory_equal(never.allocated, changed.allocated,
                                (size_t)world * sizeof never.allocated[0]);
        }
}

// Sums of a rank's own micro-batches have the bits of their number of ranks.
static void local_sums_change_too(void **state)
{
    (void)state;
    for (int raw = 0; raw < 2; raw++)
        for (int world = 1; world <= MOST_RANKS; world++) {
            struct job job = {.toy = toy_odd,
                              .first = 2 * world,
                              .changes = {2 * world, 5 * world, world, 3 * world},
                              .reduction = "local"};
            job.toy.raw = raw;
            run(&job, world, NULL);
            uint8_t expected[16];
            memcpy(expected, job.digest[0], sizeof expected);
            job.stage = 1;
            run(&job, world, expected);
            // One on each rank needs nothing that was not there for one on each.
            job.first = world;
            memset(job.changes, 0, sizeof job.changes);
            job.changes[0] = world;
            run(&job, world, NULL);
        }
}

/* ------------------------------------------------------------------ refusals */

static bool refuses(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy;
    uint8_t before[16], after[16];
    char plan[16384];
    if (!open_toy(rank, job, &toy) || !toy_train(rank, &toy, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    snprintf(plan, sizeof plan, "%s", zero_plan_text(rank->z));
    for (int i = 0; i < CHANGES && job->changes[i]; i++) {
        TEAM_CHECK(zero_set_micro_batches(rank->z, job->changes[i]) == ZERO_E_INVALID);
        TEAM_CHECK(strstr(zero_last_error(rank->z), job->refused));
    }
    TEAM_CHECK(zero_set_micro_batches(rank->z, 0) == ZERO_E_INVALID);
    TEAM_OK(rank, zero_fingerprint(rank->z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) == 0);
    TEAM_CHECK(strcmp(plan, zero_plan_text(rank->z)) == 0);
    TEAM_CHECK(zero_micro_total(rank->z) == job->first);
    return toy_train(rank, &toy, 1);
}

static void what_was_not_planned_is_refused(void **state)
{
    (void)state;
    const struct job jobs[] = {
        {.changes = {-1, (1 << 20) + 1, INT32_MIN},
         .first = 3,
         .refused = "is not in 1 to 1048576"},
        {.changes = {4, 6}, .first = 3, .sum_group = 2, .refused = "with sum_group=2 on 3 ranks"},
        {.changes = {4, 7}, .first = 6, .reduction = "local", .refused = "reduction=local with"},
        {.changes = {6, 9}, .first = 3, .reduction = "local", .refused = "no spare gradients"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct job job = jobs[i];
        job.toy = toy_odd;
        for (job.stage = 0; job.stage <= (job.reduction ? 1 : 3); job.stage++)
            assert_true(team_run("threads", 3, refuses, &job));
    }
}

static bool at_the_wrong_time(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy;
    TEAM_CHECK(zero_set_micro_batches(NULL, 1) == ZERO_E_INVALID);
    rank->config.stage = job->stage;
    if (!team_open(rank))
        return false;
    TEAM_CHECK(zero_set_micro_batches(rank->z, 1) == ZERO_E_STATE);
    team_close(rank);
    if (!open_toy(rank, job, &toy))
        return false;
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    TEAM_CHECK(zero_set_micro_batches(rank->z, 1) == ZERO_E_STATE);
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_CHECK(zero_set_micro_batches(rank->z, 1) == ZERO_E_STATE);
    TEAM_CHECK(zero_micro_total(rank->z) == job->first);
    return true;
}

static void inside_a_step_it_is_refused(void **state)
{
    (void)state;
    struct job job = {.toy = toy_odd, .first = 3};
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("threads", 2, at_the_wrong_time, &job));
}

static bool diverges(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy;
    if (!open_toy(rank, job, &toy))
        return false;
    TEAM_CHECK(zero_set_micro_batches(rank->z, rank->rank == 2 ? 5 : 4) == ZERO_E_DIVERGED);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "ranks 0 and 2 differ in the micro-batches"));
    return true;
}

static void ranks_must_agree(void **state)
{
    (void)state;
    struct job job = {.toy = toy_odd, .first = 3};
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("threads", 3, diverges, &job));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_one_run),
        cmocka_unit_test(a_change_before_the_first_step_leaves_no_trace),
        cmocka_unit_test(local_sums_change_too),
        cmocka_unit_test(what_was_not_planned_is_refused),
        cmocka_unit_test(inside_a_step_it_is_refused),
        cmocka_unit_test(ranks_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
