// Gradients that are not finite: who is named, what each policy leaves behind, on every rank.
#include "tests/numerics/synthetic.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { BAD_STEP = 2, MICRO_BATCHES = 5, LARGEST = 1025, MOST_RANKS = 5 };

// The working copies of the whole model.
struct snapshot {
    unsigned char bytes[SYNTHETIC_TENSORS][3][LARGEST * sizeof(float)];
};

struct job {
    struct synthetic model;
    int32_t stage;
    zero_nonfinite policy;
    zero_step_result expected;      // of the bad step: bad_param and so on
    const char *message;            // a part of the error's
    uint8_t digest[MOST_RANKS][16]; // what each rank ended with
};

// Three gradients of step 2 are bad. The first by micro-batch, tensor, slice and element is named,
// whichever travels first: the embedding's leaves last.
static const struct synthetic_fault three_faults[SYNTHETIC_FAULTS] = {
    {true, BAD_STEP, 3, 5, 0, 1022, NAN},
    {true, BAD_STEP, 3, 0, 0, 17, -INFINITY},
    {true, BAD_STEP, 4, 2, 2, 1024, INFINITY},
};

static bool open_and_commit(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    synthetic_configure(&job->model, &rank->config);
    rank->config.nonfinite = job->policy;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &job->model));
    for (uint64_t step = 0; step < BAD_STEP; step++)
        TEAM_OK(rank, synthetic_step(rank->z, &job->model, step));
    return true;
}

static void copy_unit(const struct team_rank *rank, const struct job *job, zero_unit unit,
                      struct snapshot *snapshot)
{
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const struct synthetic_tensor *tensor = &synthetic_tensors[p];
        const int32_t slice = unit - tensor->unit;
        if (slice < 0 || slice >= tensor->slices)
            continue;
        const size_t size = synthetic_dtype(&job->model, tensor) == ZERO_F32 ? 4 : 2;
        memcpy(snapshot->bytes[p][slice], zero_param_ptr(rank->z, p, slice),
               synthetic_numel(tensor) * size);
    }
}

static bool take(struct team_rank *rank, const struct job *job, struct snapshot *snapshot)
{
    memset(snapshot, 0, sizeof *snapshot);
    for (zero_unit unit = 0; unit < SYNTHETIC_UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        copy_unit(rank, job, unit, snapshot);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    return true;
}

static bool names_the_bad_one(const struct team_rank *rank, const struct job *job)
{
    const zero_step_result *expected = &job->expected;
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 1 && !isfinite(info.norm));
    TEAM_CHECK(info.updates == BAD_STEP);
    TEAM_CHECK(info.bad_param == expected->bad_param);
    if (expected->bad_param < 0)
        return true;
    TEAM_CHECK(info.bad_slice == expected->bad_slice);
    TEAM_CHECK(info.bad_element == expected->bad_element);
    TEAM_CHECK(info.bad_micro == expected->bad_micro);
    TEAM_CHECK(info.bad_rank == (int32_t)(expected->bad_micro % (uint64_t)rank->world));
    return true;
}

/* ------------------------------------------------------------------ policy: error */

static bool stops(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct snapshot before, after;
    uint8_t digest[16];
    char who[32];
    if (!open_and_commit(rank, job) || !take(rank, job, &before))
        return false;
    TEAM_CHECK(synthetic_step(rank->z, &job->model, BAD_STEP) == ZERO_E_NONFINITE);
    TEAM_CHECK(names_the_bad_one(rank, job));
    TEAM_CHECK(strstr(zero_last_error(rank->z), job->message));
    snprintf(who, sizeof who, "rank %d", (int)job->expected.bad_micro % rank->world);
    TEAM_CHECK(job->expected.bad_param < 0 || strstr(zero_last_error(rank->z), who));
    // The failure is for good, and its message stays.
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_micro_begin(rank->z, 0, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_NONFINITE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), job->message));
    if (job->stage < 3) { // no value was changed
        memset(&after, 0, sizeof after);
        for (zero_unit unit = 0; unit < SYNTHETIC_UNITS; unit++)
            copy_unit(rank, job, unit, &after);
        TEAM_CHECK(memcmp(&before, &after, sizeof before) == 0);
    }
    return true;
}

/* ------------------------------------------------------------------ policy: skip */

static bool goes_on(struct team_rank *rank, const struct job *job, uint8_t digest[16])
{
    zero_step_result info = {.struct_size = sizeof info};
    for (uint64_t step = BAD_STEP + 1; step < SYNTHETIC_STEPS; step++)
        TEAM_OK(rank, synthetic_step(rank->z, &job->model, step));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == SYNTHETIC_STEPS && info.updates == SYNTHETIC_STEPS - 1);
    TEAM_CHECK(info.skipped == 0 && info.bad_param == -1 && isfinite(info.norm));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    return true;
}

static bool skips_one(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct snapshot before, after;
    zero_step_result info = {.struct_size = sizeof info};
    double index = 0.0;
    if (!open_and_commit(rank, job) || !take(rank, job, &before))
        return false;
    TEAM_OK(rank, synthetic_step(rank->z, &job->model, BAD_STEP));
    TEAM_CHECK(names_the_bad_one(rank, job));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == BAD_STEP + 1);
    TEAM_OK(rank, zero_metric_mean(rank->z, "index", &index));
    TEAM_CHECK(index == 0.5 * (MICRO_BATCHES - 1));
    TEAM_CHECK(take(rank, job, &after));
    TEAM_CHECK(memcmp(&before, &after, sizeof before) == 0);
    return true;
}

static bool skips(struct team_rank *rank, void *user)
{
    struct job *job = user;
    return skips_one(rank, user) && goes_on(rank, job, job->digest[rank->rank]);
}

/* ------------------------------------------------------------------ the norm alone */

// zero_grad_norm() is what zero_step() reports, and asking for it does no harm.
static bool measures(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    zero_step_result info = {.struct_size = sizeof info};
    zero_hyper hyper[SYNTHETIC_GROUPS];
    zero_step_args args = zero_step_args_default();
    if (!open_and_commit(rank, job))
        return false;
    for (uint64_t step = BAD_STEP; step < BAD_STEP + 2; step++) {
        double norm = 0.0, again = 0.0, twice = 0.0;
        for (int32_t i = 0; i < zero_micro_count(rank->z); i++)
            TEAM_OK(rank, synthetic_micro(rank->z, &job->model, i));
        TEAM_OK(rank, zero_grad_norm(rank->z, 0.25, &norm));
        TEAM_OK(rank, zero_grad_norm(rank->z, 0.25, &again));
        TEAM_OK(rank, zero_grad_norm(rank->z, 0.5, &twice));
        synthetic_hyper(&job->model, step, hyper);
        args.group_count = SYNTHETIC_GROUPS;
        args.hyper = hyper;
        args.scale = 0.25;
        TEAM_OK(rank, zero_step(rank->z, &args, NULL));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        if (step == BAD_STEP)
            TEAM_CHECK(info.skipped == 1 && !isfinite(norm) && !isfinite(again));
        else
            TEAM_CHECK(norm == info.norm && again == norm && twice == 2.0 * norm && norm > 0.0);
    }
    return true;
}

/* ------------------------------------------------------------------ large, but finite */

static bool survives(struct team_rank *rank, void *user)
{
    struct job *job = user;
    zero_step_result info = {.struct_size = sizeof info};
    struct snapshot after;
    if (!open_and_commit(rank, job))
        return false;
    TEAM_OK(rank, synthetic_step(rank->z, &job->model, BAD_STEP));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 0 && info.bad_param == -1);
    const double norm = (double)3e38f / MICRO_BATCHES;
    TEAM_CHECK(fabs(info.norm - norm) < 1e-6 * norm);
    TEAM_CHECK(info.clip == synthetic_max_norm() / (info.norm + 1e-6));
    TEAM_CHECK(take(rank, job, &after));
    for (uint64_t e = 0; e < 1024; e++)
        TEAM_CHECK(isfinite(synthetic_element(ZERO_F32, after.bytes[4][0], e)));
    return true;
}

/* ------------------------------------------------------------------ the cases */

static struct job three_bad(zero_dtype dtype, zero_nonfinite policy)
{
    struct job job = {
        .model = {.dtype = dtype, .micro_batches = MICRO_BATCHES, .tied = true},
        .policy = policy,
        .expected = {.bad_param = 0, .bad_slice = 0, .bad_element = 17, .bad_micro = 3},
        .message = "embedding, slice 0, element 17, is not finite in micro-batch 3",
    };
    memcpy(job.model.faults, three_faults, sizeof three_faults);
    return job;
}

// Two gradients that are finite and whose sum is not.
static struct job overflowing(zero_dtype dtype, zero_nonfinite policy)
{
    return (struct job){
        .model = {.dtype = dtype,
                  .micro_batches = MICRO_BATCHES,
                  .faults = {{true, BAD_STEP, 0, 4, 0, 1023, 3e38f},
                             {true, BAD_STEP, 1, 4, 0, 1023, 3e38f}}},
        .policy = policy,
        .expected = {.bad_param = -1},
        .message = "overflow",
    };
}

// A gradient that is finite, but not in the type in which it travels.
static struct job overflowing_on_its_way(zero_dtype dtype, zero_dtype grad_dtype)
{
    return (struct job){
        .model = {.dtype = dtype,
                  .grad_dtype = grad_dtype,
                  .comm_dtype = ZERO_F16,
                  .micro_batches = MICRO_BATCHES,
                  .faults = {{true, BAD_STEP, 1, 2, 1, 1024, 65519.0f},
                             {true, BAD_STEP, 2, 2, 1, 1024, 65520.0f}}},
        .policy = ZERO_NONFINITE_ERROR,
        .expected = {.bad_param = 2, .bad_slice = 1, .bad_element = 1024, .bad_micro = 2},
        .message = "block.weight, slice 1, element 1024, is not finite in micro-batch 2",
    };
}

static void everywhere(struct job *job, team_fn fn)
{
    for (int world = 1; world <= MOST_RANKS; world += world < 3 ? 1 : 2)
        for (job->stage = 0; job->stage <= 3; job->stage++)
            if (test_takes(world - 1 + job->stage))
                assert_true(team_run(team_threads(world), world, fn, job));
}

static void error_names_the_first(void **state)
{
    (void)state;
    struct job job = three_bad(ZERO_F32, ZERO_NONFINITE_DEFAULT);
    everywhere(&job, stops);
    job = three_bad(ZERO_BF16, ZERO_NONFINITE_ERROR);
    everywhere(&job, stops);
}

static void error_in_the_last_unit(void **state)
{
    (void)state;
    struct job job = three_bad(ZERO_DTYPE_DEFAULT, ZERO_NONFINITE_ERROR);
    job.model.faults[1].on = false;
    job.model.faults[2].on = false;
    job.expected.bad_param = 5;
    job.expected.bad_element = 1022;
    job.message = "head.norm, slice 0, element 1022, is not finite in micro-batch 3";
    everywhere(&job, stops);
}

static void error_in_a_slice(void **state)
{
    (void)state;
    struct job job = three_bad(ZERO_F32, ZERO_NONFINITE_ERROR);
    job.model.faults[0].on = false;
    job.model.faults[1].on = false;
    job.expected =
        (zero_step_result){.bad_param = 2, .bad_slice = 2, .bad_element = 1024, .bad_micro = 4};
    job.message = "block.weight, slice 2, element 1024, is not finite in micro-batch 4";
    everywhere(&job, stops);
}

// In the padding behind a gradient, where nothing but the program writes.
static void error_behind_the_end(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job job = three_bad(i ? ZERO_BF16 : ZERO_F32, ZERO_NONFINITE_ERROR);
        memset(job.model.faults, 0, sizeof job.model.faults);
        job.model.faults[0] = (struct synthetic_fault){true, BAD_STEP, 4, 0, 0, 240, NAN};
        job.expected = (zero_step_result){.bad_element = 240, .bad_micro = 4};
        job.message = "embedding, slice 0, element 240 (behind its end: the program writes more "
                      "than the gradient has), is not finite in micro-batch 4";
        everywhere(&job, stops);
        job.policy = ZERO_NONFINITE_SKIP;
        everywhere(&job, skips);
    }
}

static void sum_overflows(void **state)
{
    (void)state;
    struct job job = overflowing(ZERO_F32, ZERO_NONFINITE_ERROR);
    everywhere(&job, stops);
    job = overflowing(ZERO_F32, ZERO_NONFINITE_SKIP);
    everywhere(&job, skips);
}

static void rounding_overflows(void **state)
{
    (void)state;
    struct job job = overflowing_on_its_way(ZERO_F32, ZERO_DTYPE_DEFAULT);
    everywhere(&job, stops);
    job = overflowing_on_its_way(ZERO_BF16, ZERO_F32);
    everywhere(&job, stops);
    job = overflowing_on_its_way(ZERO_F16, ZERO_F32);
    job.policy = ZERO_NONFINITE_SKIP;
    everywhere(&job, skips);
}

// After a skip all go on with the same bits, at every world size and stage.
static void skip_goes_on(void **state)
{
    (void)state;
    uint8_t first[16];
    struct job job = three_bad(ZERO_DTYPE_DEFAULT, ZERO_NONFINITE_SKIP);
    assert_true(team_run("self", 1, skips, &job));
    memcpy(first, job.digest[0], sizeof first);
    for (int world = 1; world <= MOST_RANKS; world += world < 3 ? 1 : 2) {
        for (job.stage = 0; job.stage <= 3; job.stage++) {
            if (!test_takes(world - 1 + job.stage))
                continue;
            assert_true(team_run(team_threads(world), world, skips, &job));
            for (int r = 0; r < world; r++)
                assert_memory_equal(job.digest[r], first, sizeof first);
        }
    }
}

// The first and the last unit, the elements beside padding, the first and the last micro-batch: at
// every stage, by each policy, in some dtype, on some number of ranks.
static void wherever_it_is(void **state)
{
    (void)state;
    static const struct synthetic_fault places[] = {
        {true, BAD_STEP, 0, 0, 0, 0, NAN},          // the very first element
        {true, BAD_STEP, 4, 0, 0, 239, INFINITY},   // beside padding, and it persists
        {true, BAD_STEP, 2, 1, 0, 0, -INFINITY},    // a scalar
        {true, BAD_STEP, 1, 2, 0, 1024, NAN},       // alone in its granule
        {true, BAD_STEP, 0, 4, 0, 1023, INFINITY},  // the end of a granule without padding
        {true, BAD_STEP, 4, 5, 0, 1022, -INFINITY}, // the very last one
    };
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_DTYPE_DEFAULT};
    char message[96];
    for (int i = 0; i < 24; i++) {
        if (!test_takes(i + i / 6 * 2))
            continue;
        const struct synthetic_fault *place = &places[i % 6];
        struct job job = three_bad(dtypes[(i + i / 6) % 3], ZERO_NONFINITE_ERROR);
        memset(job.model.faults, 0, sizeof job.model.faults);
        job.model.faults[1] = *place;
        job.expected = (zero_step_result){
            .bad_param = place->param, .bad_element = place->element, .bad_micro = place->micro};
        snprintf(message, sizeof message,
                 "%s, slice 0, element %d, is not finite in micro-batch %d",
                 synthetic_tensors[place->param].name, (int)place->element, (int)place->micro);
        job.message = message;
        job.stage = i / 6;
        const int world = 1 + (i + i / 6) % 4;
        assert_true(team_run(team_threads(world), world, stops, &job));
        job.policy = ZERO_NONFINITE_SKIP;
        assert_true(team_run(team_threads(world), world, skips_one, &job));
    }
}

static void a_sum_of_bf16_overflows(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++)
        for (int stage = 0; stage <= 3; stage++) {
            struct job job = overflowing(ZERO_BF16, ZERO_NONFINITE_ERROR);
            job.stage = stage;
            assert_true(team_run(team_threads(world), world, stops, &job));
            job.policy = ZERO_NONFINITE_SKIP;
            assert_true(team_run(team_threads(world), world, skips_one, &job));
        }
}

static void norm_alone(void **state)
{
    (void)state;
    struct job job = three_bad(ZERO_F32, ZERO_NONFINITE_SKIP);
    everywhere(&job, measures);
}

static void large_gradients(void **state)
{
    (void)state;
    struct job job = overflowing(ZERO_F32, ZERO_NONFINITE_ERROR);
    job.model.faults[1].on = false;
    everywhere(&job, survives);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_names_the_first),
        cmocka_unit_test(error_in_the_last_unit),
        cmocka_unit_test(error_in_a_slice),
        cmocka_unit_test(error_behind_the_end),
        cmocka_unit_test(sum_overflows),
        cmocka_unit_test(skip_goes_on),
        cmocka_unit_test(norm_alone),
        cmocka_unit_test(large_gradients),
        cmocka_unit_test(wherever_it_is),
        cmocka_unit_test(a_sum_of_bf16_overflows),
        cmocka_unit_test(rounding_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
