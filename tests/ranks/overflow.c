// Updates whose results are not finite, though every gradient is: what each case leaves behind, on
// every rank.
#include "tests/ranks/overflow_job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool fails(struct team_rank *rank, void *user)
{
    struct overflow_job *job = user;
    bool good = false;
    uint8_t digest[16];
    char message[1024];
    if (!overflow_open(rank, job))
        return false;
    for (int32_t s = 0; s < job->steps; s++) {
        TEAM_OK(rank, overflow_step(rank, job, &good));
        TEAM_CHECK(good);
    }
    TEAM_CHECK(overflow_step(rank, job, &good) == ZERO_E_NONFINITE);
    snprintf(message, sizeof message, "%s", zero_last_error(rank->z));
    if (!strstr(message, job->message))
        fprintf(stderr, "\"%s\" instead of \"%s\"\n", message, job->message);
    TEAM_CHECK(strstr(message, job->message));
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.bad_param == job->param && info.bad_slice == job->slice);
    TEAM_CHECK(info.bad_element == job->element);
    // For good: no rank reads what was made, and none saves it.
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_save(rank->z, overflow_directory.directory, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(strcmp(message, zero_last_error(rank->z)) == 0);
    return true;
}

static void a_square_overflows(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "adagrad"};
    for (size_t i = 0; i < 3; i++) {
        struct overflow_job job = overflow_job_of(names[i]);
        job.gradient = 1e20F;
        job.message = i < 2 ? "moment 2 becomes inf in stacked, slice 1, element 4097"
                            : "moment 1 becomes inf in stacked, slice 1, element 4097";
        overflow_everywhere(&job, fails);
        job.fused = true;
        overflow_everywhere(&job, fails);
    }
}

// In the other units, in what persists, and in a full vector of a granule.
static void wherever_it_is(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    job.gradient = -1e20F;
    job.param = 0;
    job.slice = 0;
    job.element = 0;
    job.message = "moment 2 becomes inf in first, slice 0, element 0;";
    overflow_everywhere(&job, fails);
    job.param = 2;
    job.element = 39;
    job.message = "moment 2 becomes inf in bias, slice 0, element 39;";
    overflow_everywhere(&job, fails);
    job.fused = true;
    overflow_everywhere(&job, fails);
}

static void scaled_it_is_infinite(void **state)
{
    (void)state;
    static const struct {
        const char *optimizer, *message;
    } cases[] = {
        // Whose square overflows by scale 1e37 alone: the first element of all.
        {"adamw", "moment 2 becomes inf in first, slice 0, element 0;"},
        {"adagrad", "moment 1 becomes inf in first, slice 0, element 0;"},
        {"sgd", "the weight becomes -inf in stacked, slice 1, element 4097;"},
        {"lion", "moment 1 becomes inf in stacked, slice 1, element 4097;"},
    };
    for (size_t i = 0; i < 4; i++) {
        struct overflow_job job = overflow_job_of(cases[i].optimizer);
        job.gradient = i < 2 ? 1 : 1e3F;
        job.scale = 1e37;
        job.param = i < 2 ? 0 : 1;
        job.slice = i < 2 ? 0 : 1;
        job.element = i < 2 ? 0 : 4097;
        job.message = cases[i].message;
        overflow_everywhere(&job, fails);
    }
}

static void momentum_overflows(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("sgd");
    job.hyper.weight_decay = 0;
    job.gradient = 1e38F;
    job.steps = 3; // 1, 1.9, 2.71, 3.44
    job.message = "step 4: every gradient is finite, but what the update makes is not: the weight "
                  "becomes -inf in stacked, slice 1, element 4097";
    overflow_everywhere(&job, fails);
}

static void a_weight_overflows(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("lion");
    job.hyper = (zero_hyper){2e38, 0.9, 0.99, 0, 0};
    job.gradient = 1;
    job.first = -2e38F;
    job.message = "the weight becomes -inf in stacked, slice 1, element 4097";
    overflow_everywhere(&job, fails);
}

// A finite weight whose working copy, or the weight itself, is f16.
static void f16_overflows(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("sgd");
    job.dtype = ZERO_F16;
    job.first = -60000;
    job.hyper = (zero_hyper){6000, 0, 0, 0, 0};
    job.message = "the weight becomes -66000, for which the working copy has no number, in "
                  "stacked, slice 1, element 4097";
    job.policy = ZERO_NONFINITE_SKIP;
    overflow_everywhere(&job, fails);
    job.fused = true;
    job.policy = ZERO_NONFINITE_ERROR;
    overflow_everywhere(&job, fails);
    job.fused = false;
    job.master = "none";
    job.message = "the weight becomes -inf in stacked, slice 1, element 4097";
    overflow_everywhere(&job, fails);
}

static void moments_of_16_bits(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    job.gradient = 1e20F;
    job.moments = "bf16";
    job.message = "moment 2 becomes inf in stacked, slice 1, element 4097";
    overflow_everywhere(&job, fails);
    job.local = true;
    overflow_everywhere(&job, fails);
}

// Nothing of the step is recorded: the file has the step before.
static void in_files(void **state)
{
    (void)state;
    struct overflow_job job = overflow_job_of("adamw");
    job.gradient = 1e20F;
    job.nvme = true;
    job.message = "moment 2 becomes inf in stacked, slice 1, element 4097";
    for (int i = 0; i < 3; i++) {
        job.fused = i == 1;
        job.params_nvme = i == 2;
        overflow_everywhere(&job, fails);
    }
    job = overflow_job_of("sgd");
    job.dtype = ZERO_F16;
    job.policy = ZERO_NONFINITE_ERROR;
    job.first = -60000;
    job.hyper = (zero_hyper){6000, 0, 0, 0, 0};
    job.nvme = job.params_nvme = true;
    job.message = "the weight becomes -66000, for which the working copy has no number, in "
                  "stacked, slice 1, element 4097";
    overflow_everywhere(&job, fails);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_square_overflows),    cmocka_unit_test(wherever_it_is),
        cmocka_unit_test(scaled_it_is_infinite), cmocka_unit_test(momentum_overflows),
        cmocka_unit_test(a_weight_overflows),    cmocka_unit_test(f16_overflows),
        cmocka_unit_test(moments_of_16_bits),    cmocka_unit_test(in_files),
    };
    return cmocka_run_group_tests(tests, overflow_set_up, overflow_tear_down);
}
