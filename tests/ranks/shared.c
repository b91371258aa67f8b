/* What ranks read of each other where it lies: one copy of the parameters for all of them,
 * read-only for the program; at stage 0 the sums. Written by their owners while no rank reads. */
#include "tests/ranks/toy.h"

#include "base/hash.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, UNIT = 4, TENSOR = 6 /* "large", alone in its unit */ };

struct job {
    int stage;
    const char *gather;
    zero_dtype dtype;
    int steps;
    size_t numel; // of a slice of read_late()
    uint8_t digest[MOST_RANKS][16];
};

static bool open_job(struct team_rank *rank, const struct job *job, struct toy *toy)
{
    *toy = toy_odd;
    toy->dtype = job->dtype;
    rank->config.stage = job->stage;
    rank->config.open_units = 5;
    rank->config.gather = job->gather;
    return toy_open(rank, toy);
}

/* ------------------------------------------------------------------ read-only */

/** How a child ends that reads, or writes what it read, at `at`. */
static int child_that(bool writes, volatile unsigned char *at)
{
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); // no report of a sanitizer
        const unsigned char value = *at;
        if (writes)
            *at = value;
        _exit(value == *at ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static bool write_parameters(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy;
    if (!open_job(rank, job, &toy) || !toy_train(rank, &toy, 1))
        return false;
    for (zero_unit unit = 0; unit < toy.unit_count; unit++)
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    for (int p = 0; p < toy.tensor_count; p++)
        for (int slice = 0; slice < toy.tensors[p].slices; slice++) {
            unsigned char *at = (unsigned char *)(uintptr_t)zero_param_ptr(rank->z, p, slice);
            const size_t last =
                toy.tensors[p].numel * (toy_dtype(&toy, &toy.tensors[p]) == ZERO_F32 ? 4 : 2) - 1;
            const int status = child_that(true, at + last);
            TEAM_CHECK(child_that(false, at + last) == 0);
            TEAM_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        }
    for (zero_unit unit = 0; unit < toy.unit_count; unit++)
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    return toy_train(rank, &toy, 1);
}

/** Whichever rank owns it: the program can't change it by mistake. */
static void the_program_cannot_write(void **state)
{
    (void)state;
    static const char *const transports[] = {"self", "threads", "shm"};
    for (int t = 0; t < 3; t++)
        for (int stage = 1; stage <= 3; stage++) {
            struct job job = {
                .stage = stage, .gather = NULL, .dtype = stage == 2 ? ZERO_BF16 : ZERO_F32};
            if (!team_run(transports[t], t ? 2 : 1, write_parameters, &job))
                fail_msg("%s, stage %d", transports[t], stage);
        }
}

/* ------------------------------------------------------------------ the same calls */

static bool watch_pointers(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy;
    if (!open_job(rank, job, &toy))
        return false;
    const void *before = NULL;
    for (int step = 0; step < 3; step++) {
        // The same answers as where parameters are copied: none outside gather and release.
        TEAM_CHECK(!zero_param_ptr(rank->z, TENSOR, 0) == (job->stage == 3));
        TEAM_OK(rank, zero_gather(rank->z, UNIT, NULL));
        const void *now = zero_param_ptr(rank->z, TENSOR, 0);
        TEAM_CHECK(now && (uintptr_t)now % 2048 == 0);
        TEAM_CHECK(!before || before == now);
        before = now;
        TEAM_OK(rank, zero_release(rank->z, UNIT, NULL));
        TEAM_CHECK(zero_param_ptr(rank->z, 0, 0)); // small: at any time
        if (!toy_train(rank, &toy, 1))
            return false;
    }
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.gathered_bytes == 0 && stats.gathers == 0);
    TEAM_CHECK(strstr(zero_plan_text(rank->z), "working copies, shared by the host"));
    return true;
}

static void nothing_is_copied(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++)
        for (int world = 1; world <= 3; world++) {
            if (!test_takes(stage + world - 1) || !test_takes_transport("shm"))
                continue;
            struct job job = {.stage = stage, .gather = "shared", .dtype = ZERO_BF16};
            if (!team_run("shm", world, watch_pointers, &job))
                fail_msg("stage %d, world %d", stage, world);
        }
}

/* ------------------------------------------------------------------ hazards */

/** Looks at a unit for a while: no rank may write meanwhile. */
static bool stare(struct team_rank *rank, const struct toy *toy, zero_unit unit, unsigned usec)
{
    TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    const double sum = toy_unit_sum(rank, toy, unit);
    usleep(usec);
    TEAM_CHECK(toy_unit_sum(rank, toy, unit) == sum);
    TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    return true;
}

/** One rank dawdles with a unit in its hands while the others are at the end of their step, and is
 * late with its own part of the update. */
static bool dawdle(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy;
    if (!open_job(rank, job, &toy))
        return false;
    for (int step = 0; step < job->steps; step++) {
        const bool late = step % rank->world == rank->rank;
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!toy_micro(rank, &toy, i, NULL, NULL))
                return false;
        for (zero_unit unit = 0; unit < toy.unit_count; unit++)
            if (!stare(rank, &toy, unit, late ? 500 : 0))
                return false;
        double norm; // agrees on the step too, but writes nothing
        TEAM_OK(rank, zero_grad_norm(rank->z, 0.5, &norm));
        if (!stare(rank, &toy, 0, late ? 500 : 0))
            return false;
        TEAM_OK(rank, toy_update(rank, &toy));
        for (zero_unit unit = 0; unit < toy.unit_count; unit++)
            if (!stare(rank, &toy, unit, late ? 0 : 200))
                return false;
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

static void nobody_writes_what_is_read(void **state)
{
    (void)state;
    struct job *expected = team_shared(sizeof *expected), *job = team_shared(sizeof *job);
    *expected = (struct job){.stage = 0, .gather = "copy", .dtype = ZERO_F32, .steps = 6};
    assert_true(team_run("self", 1, dawdle, expected));
    for (int shm = 0; shm <= (int)test_takes_transport("shm"); shm++)
        for (int stage = 0; stage <= 3; stage++) {
            *job = (struct job){.stage = stage, .dtype = ZERO_F32, .steps = 6};
            if (!team_run(shm ? "shm" : "threads", 3, dawdle, job))
                fail_msg("%s, stage %d", shm ? "shm" : "threads", stage);
            for (int r = 0; r < 3; r++)
                assert_memory_equal(job->digest[r], expected->digest[0], 16);
        }
    team_shared_free(expected, sizeof *expected);
    team_shared_free(job, sizeof *job);
}

enum { LATE_UNITS = 4 };

/** Hands over gradients that differ by step and unit. In the first micro-batch the last unit has
 * none; in the others the one before it is open meanwhile: buffers are taken in another order. */
static bool hand_over(struct team_rank *rank, int step, int i, size_t numel)
{
    const zero_unit last = LATE_UNITS - 1;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    const bool none = micro.index == 0;
    if (none)
        TEAM_OK(rank, zero_grad_none(rank->z, last, NULL));
    else
        TEAM_OK(rank, zero_grad_open_raw(rank->z, last - 1, NULL));
    for (zero_unit unit = none ? last - 1 : last; unit >= 0; unit--) {
        if (none || unit != last - 1)
            TEAM_OK(rank, zero_grad_open_raw(rank->z, unit, NULL));
        memset(zero_grad_ptr(rank->z, 0, unit), 0x3b + (step + unit) % 3, numel * sizeof(float));
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    return true;
}

/** At stage 0 all read each other's sums, or, if the model is small, gradients. Here the others
 * need nothing of the last rank, whose micro-batches do not count, and whose update is slow; theirs
 * is quick, and so is their next step. */
static bool read_late(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const struct toy_tensor tensor = {.name = "w", .slices = LATE_UNITS, .numel = job->numel};
    const struct toy toy = {.tensors = &tensor,
                            .tensor_count = 1,
                            .unit_count = LATE_UNITS,
                            .micro_batches = 2,
                            .dtype = ZERO_F32};
    rank->config.kernels = rank->rank == 2 ? "ref" : "auto";
    if (!toy_open(rank, &toy))
        return false;
    for (int step = 0; step < job->steps; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!hand_over(rank, step, i, job->numel))
                return false;
        TEAM_OK(rank, toy_update(rank, &toy));
    }
    // Of what this rank has computed: a fingerprint has what owners have.
    uint64_t hash = 0;
    for (zero_unit unit = 0; unit < LATE_UNITS; unit++)
        hash = base_hash64(zero_param_ptr(rank->z, 0, unit), job->numel * sizeof(float), hash);
    memcpy(job->digest[rank->rank], &hash, sizeof hash);
    return true;
}

static void stay_until_all_have_read_them(size_t numel)
{
    struct job *expected = team_shared(sizeof *expected), *job = team_shared(sizeof *job);
    expected->steps = job->steps = 10;
    expected->numel = job->numel = numel;
    assert_true(team_run("self", 1, read_late, expected));
    assert_true(team_run("shm", 3, read_late, job));
    for (int r = 0; r < 3; r++)
        assert_memory_equal(job->digest[r], expected->digest[0], 16);
    team_shared_free(expected, sizeof *expected);
    team_shared_free(job, sizeof *job);
}

static void sums_stay_until_all_have_read_them(void **state)
{
    (void)state;
    stay_until_all_have_read_them(256 * 1024);
}

static void gradients_stay_until_all_have_read_them(void **state)
{
    (void)state;
    stay_until_all_have_read_them(20000);
}

/* ------------------------------------------------------------------ many */

static bool train_many(struct team_rank *rank, void *user)
{
    struct job *job = user;
    static const struct toy_tensor tensors[] = {
        {.name = "f32", .slices = TOY_UNITS_MAX, .numel = 2000, .wide = true},
        {.name = "bf16", .slices = TOY_UNITS_MAX, .numel = 1500},
        {.name = "small_f32", .slices = TOY_UNITS_MAX, .numel = 9, .wide = true},
        {.name = "small_bf16", .slices = TOY_UNITS_MAX, .numel = 10},
    };
    const struct toy toy = {.tensors = tensors,
                            .tensor_count = 4,
                            .unit_count = TOY_UNITS_MAX,
                            .micro_batches = 3,
                            .dtype = ZERO_BF16};
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, 3))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

/** 256 buckets are published at a time, more than can be under way. */
static void many_buckets(void **state)
{
    (void)state;
    struct job *expected = team_shared(sizeof *expected), *job = team_shared(sizeof *job);
    expected->gather = "copy";
    assert_true(team_run("self", 1, train_many, expected));
    for (int stage = 0; stage <= 3; stage++)
        for (int shared = 0; shared <= (stage > 0) && test_takes_transport("shm"); shared++) {
            *job = (struct job){.stage = stage, .gather = shared ? "shared" : "copy"};
            if (!team_run("shm", 3, train_many, job))
                fail_msg("stage %d, %s", stage, job->gather);
            for (int r = 0; r < 3; r++)
                assert_memory_equal(job->digest[r], expected->digest[0], 16);
        }
    team_shared_free(expected, sizeof *expected);
    team_shared_free(job, sizeof *job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_cannot_write),
        cmocka_unit_test(nothing_is_copied),
        cmocka_unit_test(nobody_writes_what_is_read),
        cmocka_unit_test(sums_stay_until_all_have_read_them),
        cmocka_unit_test(gradients_stay_until_all_have_read_them),
        cmocka_unit_test(many_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
