// What a recovery point has beside tensors comes back with it; and what is recorded after it has
// the same number on all ranks, whatever has failed on one of them.
#include "base/fault.h"
#include "tests/ranks/offload_job.h"
#include "tests/ranks/saved.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, FROZEN = 1 };

// One job, or, with its state in files, two: the second one begins when the first one has died.
struct job {
    bool in_files;
    int life;
    uint8_t digest[16]; // at the end
};

static void configure(zero_config *config)
{
    config->name = "record"; // another one would be another job
    config->stage = 1;
    config->nonfinite = ZERO_NONFINITE_SKIP;
    config->skip_limit = 3;
}

static void put_state_into_files(zero_config *config)
{
    config->offload_optimizer = "nvme";
    config->nvme_dir = offload_directory.directory;
    config->tile_bytes = 65536;
}

static bool open_job(struct team_rank *rank, const struct job *job)
{
    configure(&rank->config);
    if (job->in_files)
        put_state_into_files(&rank->config);
    return toy_open(rank, &toy_odd);
}

static bool come_back(struct team_rank *rank, uint64_t step, bool recovered)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, temporary_path(&offload_directory, "saved"), NULL, &loaded));
    TEAM_CHECK(loaded.step == step && loaded.recovered == recovered);
    return true;
}

/* ------------------------------------------------------------------ what is beside tensors */

static bool freeze(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t now[16];
    if (!open_job(rank, job))
        return false;
    if (job->life == 0) {
        if (!toy_train(rank, &toy_odd, 1))
            return false;
        TEAM_OK(rank, zero_set_frozen(rank->z, FROZEN, 1));
        if (!toy_train(rank, &toy_odd, 1))
            return false;
        if (job->in_files)
            return team_break_off(rank);
    } else if (!come_back(rank, 2, true)) {
        return false;
    }
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, now));
    if (rank->rank == 0)
        memcpy(job->digest, now, sizeof now);
    return true;
}

static void what_is_frozen_stays_so(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS; world++) {
        struct job whole = {.life = 0}, job = {.in_files = true};
        assert_true(team_run("self", 1, freeze, &whole));
        for (; job.life < 2; job.life++)
            assert_true(team_run(team_threads(world), world, freeze, &job));
        assert_memory_equal(job.digest, whole.digest, sizeof whole.digest);
    }
}

static bool skip_one(struct team_rank *rank, void *user)
{
    struct toy bad = toy_odd;
    const struct job *job = user;
    zero_step_result info = {.struct_size = sizeof info};
    bad.boost = INFINITY;
    if (!open_job(rank, job) ||
        !(job->life ? come_back(rank, 2, true) : toy_train(rank, &toy_odd, 1)) ||
        !toy_train(rank, &bad, 1))
        return false;
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped && info.skips == 1 + (uint64_t)job->life);
    return job->life > 0 || team_break_off(rank);
}

static void skips_in_a_row_are_counted_on(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS; world++)
        for (struct job job = {.in_files = true}; job.life < 2; job.life++)
            assert_true(team_run(team_threads(world), world, skip_one, &job));
}

/* ------------------------------------------------------------------ numbers of records */

// The second one fails to come back at the last step, on rank 1 and as often as that is tried, and
// takes the checkpoint of the step before.
static bool take_turns(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const char *saved = temporary_path(&offload_directory, "saved");
    if (!open_job(rank, job))
        return false;
    switch (job->life) {
    case 0:
        return toy_train(rank, &toy_odd, 1) && saved_now(rank, saved, NULL) &&
               toy_train(rank, &toy_odd, 1) && team_break_off(rank);
    case 1:
        if (rank->rank == 1)
            TEAM_CHECK(base_fault_set("io.read@1,io.read@2,io.read@3", NULL) == ZERO_OK);
        return come_back(rank, 1, false) && toy_train(rank, &toy_odd, 2) && team_break_off(rank);
    default:
        return come_back(rank, 3, true);
    }
}

static void one_rank_that_failed_counts_as_the_others(void **state)
{
    (void)state;
    for (struct job job = {.in_files = true}; job.life < 3; job.life++)
        assert_true(team_run("shm", RANKS, take_turns, &job));
}

// The second one loads the checkpoint over the point of the first, and dies when it has written
// some tiles: no rank takes what is left of that for the point.
static bool load_over_it(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const char *saved = temporary_path(&offload_directory, "saved");
    char path[SAVED_PATH];
    saved_path(path, saved, 1);
    if (!open_job(rank, job))
        return false;
    switch (job->life) {
    case 0:
        return toy_train(rank, &toy_odd, 1) && saved_now(rank, saved, NULL) &&
               toy_train(rank, &toy_odd, 1) && team_break_off(rank);
    case 1:
        if (!saved_fault(rank, "offload.write@3"))
            return false;
        TEAM_FAILS(rank, zero_load(rank->z, path, NULL, NULL), ZERO_E_IO, "writing ");
        return true;
    default:
        TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND,
                   "no recovery point");
        return true;
    }
}

static void what_is_half_loaded_over_is_none(void **state)
{
    (void)state;
    for (struct job job = {.in_files = true}; job.life < 3; job.life++) {
        assert_true(team_run("threads", RANKS, load_over_it, &job));
        base_fault_set(NULL, NULL);
    }
}

// Has 40 tiles, which is more than there are buffers.
static const struct toy_tensor long_tensor = {.name = "long", .slices = 1, .numel = 200000};
static const struct toy toy_long = {
    .tensors = &long_tensor,
    .tensor_count = 1,
    .unit_count = 1,
    .micro_batches = 2,
    .dtype = ZERO_F32,
};

// The first one takes up a checkpoint whose values cannot be looked at, then the one before, and
// dies when it has written some tiles of that: no rank takes what they are written over for a step.
static bool load_twice_over_it(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const char *saved = temporary_path(&offload_directory, "saved");
    configure(&rank->config);
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy_long))
        return false;
    if (job->life > 0) {
        TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND,
                   "no recovery point");
        return true;
    }
    if (!toy_train(rank, &toy_long, 1) || !saved_now(rank, saved, NULL) ||
        !toy_train(rank, &toy_long, 1) || !saved_now(rank, saved, NULL) ||
        !toy_train(rank, &toy_long, 1) || !saved_fault(rank, "offload.read@1,offload.write@44"))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, saved, NULL, NULL), ZERO_E_CORRUPT, "writing ");
    return true;
}

static void what_a_second_load_is_written_over_is_none(void **state)
{
    (void)state;
    for (struct job job = {.in_files = true}; job.life < 2; job.life++) {
        assert_true(team_run("self", 1, load_twice_over_it, &job));
        base_fault_set(NULL, NULL);
    }
}

/* ------------------------------------------------------------------ whose they are */

static bool leave_a_step(struct team_rank *rank, void *user)
{
    const struct job job = {.in_files = true};
    (void)user;
    return open_job(rank, &job) && toy_train(rank, &toy_odd, 1) && team_break_off(rank);
}

enum { CHANGES = 8 };

// What other bits come of, beside the model and the ranks.
static void change(zero_config *config, struct toy *toy, int number)
{
    switch (number) {
    case 0:
        config->seed = 1;
        break;
    case 1:
        config->stage = 2;
        break;
    case 2:
        toy->micro_batches = 5;
        break;
    case 3:
        config->sum_group = 2;
        break;
    case 4:
        config->comm_dtype = ZERO_BF16;
        break;
    case 5:
        config->moments = "bf16";
        break;
    case 6:
        config->loss_scale = "dynamic";
        break;
    default:
        config->reduction = "local";
    }
}

static bool find_nothing(struct team_rank *rank, void *user)
{
    struct toy toy = toy_odd;
    configure(&rank->config);
    put_state_into_files(&rank->config);
    change(&rank->config, &toy, *(const int *)user);
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return true;
}

// Nor does it take the file away.
static void another_configuration_is_another_job(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, leave_a_step, NULL));
    for (int number = 0; number < CHANGES; number++) {
        assert_true(team_run("self", 1, find_nothing, &number));
        assert_int_equal(temporary_entries(&offload_directory), 2);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, offload_set_up, offload_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_frozen_stays_so),
        TEST(skips_in_a_row_are_counted_on),
        TEST(what_is_half_loaded_over_is_none),
        TEST(what_a_second_load_is_written_over_is_none),
        TEST(another_configuration_is_another_job),
        TEST(one_rank_that_failed_counts_as_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
