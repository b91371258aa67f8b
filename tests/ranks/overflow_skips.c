// Values that are large and no reason to fail: steps that are skipped for them, steps that go on,
// and arguments that are refused before anything changes.
#include "tests/ranks/overflow_job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool skips(struct team_rank *rank, void *user)
{
    struct overflow_job *job = user;
    bool good = false;
    uint8_t before[16], after[16];
    zero_step_result info = {.struct_size = sizeof info};
    if (!overflow_open(rank, job))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    TEAM_OK(rank, overflow_step(rank, job, &good));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 1 && isfinite(info.norm) && info.updates == 0 && info.step == 1);
    TEAM_CHECK(info.bad_param == -1 && info.skips == 1);
    struct overflow_job smaller = *job;
    smaller.scale = 1e-30;
    TEAM_OK(rank, overflow_step(rank, &smaller, &good));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 0 && info.updates == 1);
    TEAM_OK(rank, zero_fingerprint(rank->z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) != 0);
    return true;
}

// Skips of gradients that are finite and too large are skips in a row, too.
static bool skips_too_often(struct team_rank *rank, void *user)
{
    struct overflow_job *job = user;
    bool good = false;
    zero_step_result info = {.struct_size = sizeof info};
    if (!overflow_open(rank, job))
        return false;
    for (uint64_t row = 1; row <= 2; row++) {
        TEAM_OK(rank, overflow_step(rank, job, &good));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(info.skipped == 1 && info.skips == row && isfinite(info.norm));
    }
    TEAM_CHECK(overflow_step(rank, job, &good) == ZERO_E_NONFINITE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 3, after skip_limit=2 skips in a row: "));
    return true;
}

static bool trains(struct team_rank *rank, void *user)
{
    struct overflow_job *job = user;
    bool good = false;
    if (!overflow_open(rank, job))
        return false;
    for (int s = 0; s < 3; s++) {
        TEAM_OK(rank, overflow_step(rank, job, &good));
        TEAM_CHECK(good);
    }
    return true;
}

// A step's arguments are looked at in the precision they are used in, before anything changes.
static bool refuses(struct team_rank *rank, void *user)
{
    static const struct {
        double scale;
        const char *message;
    } bad[] = {
        {1e39, "zero_step with scale 1e+39: gradients are multiplied by it in fp32"},
        {-1e39, "zero_step with scale -1e+39"},
        {INFINITY, "zero_step with scale inf"},
        {NAN, "zero_step with scale nan"},
        {1e-50, "zero_step with scale 1e-50, and a loss scale of 1: their quotient"},
    };
    struct overflow_job *job = user;
    bool good = false;
    uint8_t digest[16];
    struct overflow_job one = *job;
    if (!overflow_open(rank, job))
        return false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        zero_step_args args = overflow_args(job);
        args.scale = bad[i].scale;
        if (i == 0) {
            one.scale = bad[i].scale;
            TEAM_CHECK(overflow_step(rank, &one, &good) == ZERO_E_INVALID);
        } else {
            TEAM_CHECK(zero_step(rank->z, &args, NULL) == ZERO_E_INVALID);
        }
        TEAM_CHECK(strstr(zero_last_error(rank->z), bad[i].message));
    }
    const zero_step_args args = overflow_args(job);
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    return true;
}

static void arguments_in_their_precision(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    overflow_everywhere(&job, refuses);
}

// What one gradient alone would overflow is skipped where steps are skipped.
static void a_gradient_too_large_is_skipped(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "adagrad", "sgd", "lion"};
    for (size_t i = 0; i < 5; i++) {
        struct overflow_job job = overflow_job_of(names[i]);
        job.gradient = 1e20F;
        job.scale = i < 3 ? 1 : 1e19;
        job.policy = ZERO_NONFINITE_SKIP;
        overflow_everywhere(&job, skips);
    }
}

static void gradients_too_large_count_as_skips_in_a_row(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    job.gradient = 1e20F;
    job.scale = 1;
    job.policy = ZERO_NONFINITE_SKIP;
    job.skip_limit = 2;
    overflow_everywhere(&job, skips_too_often);
}

// Large values that are no reason to fail.
static void large_and_finite(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    job.gradient = 1e19F;
    overflow_everywhere(&job, trains);
    job.policy = ZERO_NONFINITE_SKIP;
    overflow_everywhere(&job, trains);
    job = overflow_job_of("sgd");
    job.gradient = 1e37F;
    overflow_everywhere(&job, trains);
    job = overflow_job_of("adamw");
    job.hyper.eps = 0;
    overflow_everywhere(&job, trains);
    job.dtype = ZERO_F16;
    job.policy = ZERO_NONFINITE_ERROR;
    job.first = 60000;
    overflow_everywhere(&job, trains);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_in_their_precision),
        cmocka_unit_test(a_gradient_too_large_is_skipped),
        cmocka_unit_test(gradients_too_large_count_as_skips_in_a_row),
        cmocka_unit_test(large_and_finite),
    };
    return cmocka_run_group_tests(tests, overflow_set_up, overflow_tear_down);
}
