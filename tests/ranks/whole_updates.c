/* A rank that dies leaves the others' weights and moments as they were before an update or after
 * it, never in between: whatever it was doing, at every stage, whether parameters are copied or
 * shared.
 *
 * Without arguments some of the points at which it can die are tried, with "all" every one. */
#include "tests/ranks/toy.h"
#include "zero/core/addresses.h"
#include "zero/core/context.h"

#include "base/fault.h"
#include "base/hash.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3, STEPS = 3, VICTIM = 1 };

struct job {
    int stage;
    const char *gather;
    int kill_at;                         /**< the victim's hit of any point; 0: it lives */
    uint64_t expected[WORLD][STEPS + 1]; /**< hash of a rank's state after so many updates */
    bool make;                           /**< writes them instead of comparing */
    int updates[WORLD];                  /**< of the survivors */
    zero_result result[WORLD];
    bool whole[WORLD]; /**< its state is what was expected */
};

/** Weights and moments of all this rank keeps. */
static uint64_t hash_state(const zero_ctx *z)
{
    uint64_t hash = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const size_t first = place->state_first * BASE_GRANULE;
        const size_t bytes = place->state_granules * BASE_GRANULE * sizeof(float);
        hash = base_hash64(eng_weights(z, s, first), bytes, hash);
        for (int k = 0; k < 2; k++)
            hash = base_hash64(eng_moments(z, k, s, first), bytes, hash);
    }
    return hash;
}

/** A step; the first failure of all its calls. */
static zero_result step(struct team_rank *rank, const struct toy *toy)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < zero_micro_count(rank->z); i++) {
        r = zero_micro_begin(rank->z, i, NULL);
        for (zero_unit u = 0; !r && u < toy->unit_count; u++) {
            r = zero_gather(rank->z, u, NULL);
            r = r ? r : zero_grad_open(rank->z, u, NULL);
            if (!r)
                *(float *)zero_grad_ptr(rank->z, 0, u) = 0.25f * (float)(i + u);
            r = r ? r : zero_grad_done(rank->z, u, NULL);
            r = r ? r : zero_release(rank->z, u, NULL);
        }
    }
    return r ? r : toy_update(rank, toy);
}

static bool train(struct team_rank *rank, void *user)
{
    static const struct toy_tensor tensors[] = {
        {.name = "w", .slices = 6, .numel = 5000},
        {.name = "b", .slices = 6, .numel = 100, .group = 1},
    };
    const struct toy toy = {.tensors = tensors,
                            .tensor_count = 2,
                            .unit_count = 6,
                            .micro_batches = 4,
                            .dtype = ZERO_F32};
    struct job *job = user;
    const int r = rank->rank;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    if (!toy_open(rank, &toy))
        return false;
    // The others may still be in here when the victim dies, but no more in zero_commit().
    job->result[r] = zero_barrier(rank->z);
    if (r == VICTIM) {
        char fault[32];
        snprintf(fault, sizeof fault, "coll.*:kill@%d", job->kill_at ? job->kill_at : 1 << 30);
        TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    }
    if (job->make)
        job->expected[r][0] = hash_state(rank->z);
    for (int s = 0; s < STEPS && !job->result[r]; s++) {
        job->result[r] = step(rank, &toy);
        if (job->make)
            job->expected[r][s + 1] = hash_state(rank->z);
    }
    job->updates[r] = (int)rank->z->updates;
    job->whole[r] = hash_state(rank->z) == job->expected[r][rank->z->updates];
    return true;
}

/** Kills the victim at its n-th point; false if it has none. */
static bool kill_at(struct job *job, const struct job *reference, int n)
{
    *job = (struct job){.stage = reference->stage, .gather = reference->gather, .kill_at = n};
    memcpy(job->expected, reference->expected, sizeof job->expected);
    const bool lived = team_run("shm", WORLD, train, job);
    int least = STEPS, most = 0;
    for (int r = 0; r < WORLD; r++) {
        if (r == VICTIM)
            continue;
        if (!job->whole[r])
            fail_msg("rank %d is half updated when rank %d dies at point %d; stage %d, %s", r,
                     VICTIM, n, job->stage, job->gather);
        if (!lived && job->result[r] && job->result[r] != ZERO_E_PEER)
            fail_msg("rank %d has %d", r, job->result[r]);
        least = job->updates[r] < least ? job->updates[r] : least;
        most = job->updates[r] > most ? job->updates[r] : most;
    }
    if (most - least > 1)
        fail_msg("point %d, stage %d, %s: %d, %d and %d updates; results %d, %d and %d", n,
                 job->stage, job->gather, job->updates[0], job->updates[1], job->updates[2],
                 job->result[0], job->result[1], job->result[2]);
    return !lived;
}

static void kill_everywhere(int stage, const char *gather, int stride)
{
    struct job *reference = team_shared(sizeof *reference), *job = team_shared(sizeof *job);
    *reference = (struct job){.stage = stage, .gather = gather, .make = true};
    assert_true(team_run("shm", WORLD, train, reference));
    int n = 1 + (stage + 7 * TEST_PART) % stride;
    while (kill_at(job, reference, n))
        n += stride;
    print_message("stage %d, %s: up to point %d\n", stage, gather, n);
    assert_true(n > 100);
    team_shared_free(reference, sizeof *reference);
    team_shared_free(job, sizeof *job);
}

static int stride = 7 * TEST_LONG_STRIDE;

static void a_death_leaves_whole_updates(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        kill_everywhere(stage, "copy", stride);
    for (int stage = 1; stage <= 3; stage++)
        kill_everywhere(stage, "shared", stride);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        stride = 1; // every point
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_leaves_whole_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
