// Parts of tensors, read and written between steps: on every rank, at every stage and world size,
// in every dtype; what the wrong calls leave behind.
#include "base/bfloat16.h"
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LARGEST = 5000, MOST_RANKS = 5, STEPS = 2 };

struct job {
    struct toy toy;
    int32_t stage;
    const char *gather;
    uint8_t digest[MOST_RANKS][16];
};

// Part of a slice, at its ends, across granules and owners, or empty.
struct part {
    zero_param param;
    int32_t slice;
    uint64_t first, count;
};

static const struct part parts[] = {
    {0, 0, 0, 1},       // the only element
    {1, 0, 6, 1},       // the last one
    {2, 0, 0, 1023},    // all
    {3, 0, 1, 1022},    // in the middle of a granule
    {4, 0, 1020, 5},    // across a granule
    {6, 0, 0, 5000},    // several owners
    {6, 0, 999, 3003},  // the same, from within
    {8, 2, 700, 800},   // of a stacked one, to its end
    {8, 1, 1500, 0},    // nothing, at the end
    {6, 0, 2048, 1024}, // a granule
};

enum { PARTS = sizeof parts / sizeof *parts };

static bool open_toy(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    return toy_open(rank, &job->toy);
}

static float new_value(const struct part *part, uint64_t element)
{
    return (float)(part - parts + 1) + (float)element * 0x1p-14f;
}

// What the program sees of an element of a gathered unit.
static bool sees(struct team_rank *rank, const struct job *job, const struct part *part,
                 const float *values)
{
    const struct toy_tensor *tensor = &job->toy.tensors[part->param];
    const zero_dtype dtype = toy_dtype(&job->toy, tensor);
    const zero_unit unit = tensor->unit + part->slice;
    TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    const void *work = zero_param_ptr(rank->z, part->param, part->slice);
    for (uint64_t e = 0; e < part->count; e++) {
        const float rounded =
            dtype == ZERO_F32 ? values[e] : base_f32_from_bf16(base_bf16_from_f32(values[e]));
        TEAM_CHECK(toy_element(dtype, work, part->first + e) == rounded);
    }
    TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    return true;
}

static bool reads_first_values(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    float values[LARGEST + 1];
    if (!open_toy(rank, job))
        return false;
    for (int i = 0; i < PARTS; i++) {
        const struct part *part = &parts[i];
        values[part->count] = 77.0f;
        TEAM_OK(rank, zero_param_read(rank->z, part->param, part->slice, part->first, part->count,
                                      part->count ? values : NULL));
        for (uint64_t e = 0; e < part->count; e++)
            TEAM_CHECK(values[e] == toy_value(&job->toy, job->toy.tensors[part->param].name,
                                              part->slice, part->first + e));
        TEAM_CHECK(values[part->count] == 77.0f);
        if (!sees(rank, job, part, values))
            return false;
    }
    return true;
}

// Writes a part, and reads the whole slice: the part is new, the rest is as it was.
static bool replace(struct team_rank *rank, const struct job *job, const struct part *part)
{
    float before[LARGEST], values[LARGEST], after[LARGEST];
    const uint64_t numel = job->toy.tensors[part->param].numel;
    const struct part whole = {part->param, part->slice, 0, numel};
    TEAM_OK(rank, zero_param_read(rank->z, part->param, part->slice, 0, numel, before));
    for (uint64_t e = 0; e < part->count; e++)
        values[e] = new_value(part, e);
    TEAM_OK(rank, zero_param_write(rank->z, part->param, part->slice, part->first, part->count,
                                   part->count ? values : NULL));
    memcpy(before + part->first, values, part->count * sizeof *values);
    TEAM_OK(rank, zero_param_read(rank->z, part->param, part->slice, 0, numel, after));
    TEAM_CHECK(memcmp(before, after, numel * sizeof *after) == 0);
    return sees(rank, job, &whole, after);
}

// Between steps of a training, which goes on from what was written.
static bool writes(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_toy(rank, job) || !toy_train(rank, &job->toy, STEPS))
        return false;
    for (int i = 0; i < PARTS; i++)
        if (!replace(rank, job, &parts[i]))
            return false;
    if (!toy_train(rank, &job->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

static bool refuses(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    uint8_t before[16], after[16];
    float values[8] = {0};
    if (!open_toy(rank, job))
        return false;
    zero_ctx *z = rank->z;
    TEAM_OK(rank, zero_fingerprint(z, before));
    const struct part wrong[] = {{-1, 0, 0, 1}, {9, 0, 0, 1}, {1, 1, 0, 1}, {1, -1, 0, 1},
                                 {1, 0, 1, 7},  {1, 0, 8, 0}, {1, 0, 0, 8}, {1, 0, 7, UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct part *part = &wrong[i];
        TEAM_CHECK(zero_param_read(z, part->param, part->slice, part->first, part->count, values) ==
                   ZERO_E_INVALID);
        TEAM_CHECK(zero_param_write(z, part->param, part->slice, part->first, part->count,
                                    values) == ZERO_E_INVALID);
    }
    TEAM_CHECK(strstr(zero_last_error(z), "of seven, slice 0, which has 7"));
    TEAM_CHECK(zero_param_read(z, 1, 0, 0, 1, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_param_write(z, 1, 0, 0, 1, NULL) == ZERO_E_INVALID);
    TEAM_OK(rank, zero_gather(z, 3, NULL));
    TEAM_CHECK(zero_param_read(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    TEAM_CHECK(zero_param_write(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    TEAM_OK(rank, zero_release(z, 3, NULL));
    TEAM_OK(rank, zero_eval_begin(z, rank->world));
    TEAM_CHECK(zero_param_read(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    TEAM_CHECK(zero_param_write(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    TEAM_OK(rank, zero_micro_begin(z, 0, NULL));
    TEAM_OK(rank, zero_eval_end(z));
    TEAM_OK(rank, zero_fingerprint(z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) == 0);
    TEAM_OK(rank, zero_micro_begin(z, 0, NULL));
    TEAM_CHECK(zero_param_read(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    TEAM_CHECK(zero_param_write(z, 1, 0, 0, 1, values) == ZERO_E_STATE);
    return true;
}

// Rank 1 reads another part than the others, or writes other values to the same one.
static bool diverges(struct team_rank *rank, void *user)
{
    static const struct part pairs[][2] = {
        {{6, 0, 3, 1}, {7, 0, 3, 1}}, // tensor
        {{8, 0, 3, 1}, {8, 1, 3, 1}}, // slice
        {{6, 0, 3, 1}, {6, 0, 4, 1}}, // where it begins
        {{6, 0, 3, 1}, {6, 0, 3, 2}}, // and how much of it
        {{6, 0, 3, 2}, {6, 0, 3, 2}},
    };
    enum { WAYS = sizeof pairs / sizeof *pairs };
    const struct job *job = user;
    for (int way = 0; way < WAYS; way++) {
        const struct part *part = &pairs[way][rank->rank == 1];
        float values[2] = {1.0f, rank->rank == 1 ? 3.0f : 2.0f};
        if (!open_toy(rank, job))
            return false;
        const zero_result r = way == WAYS - 1 ? zero_param_write(rank->z, part->param, part->slice,
                                                                 part->first, part->count, values)
                                              : zero_param_read(rank->z, part->param, part->slice,
                                                                part->first, part->count, values);
        TEAM_CHECK(r == ZERO_E_DIVERGED);
        TEAM_CHECK(strstr(zero_last_error(rank->z), "ranks 0 and 1 differ in what zero_param_"));
        TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_DIVERGED);
        team_close(rank);
    }
    return true;
}

/* ------------------------------------------------------------------ the cases */

static struct job job_of(zero_dtype dtype)
{
    struct job job = {.toy = toy_odd, .gather = "auto"};
    job.toy.dtype = dtype;
    return job;
}

// Every stage and number of ranks, with a copy of the parameters for all and for each.
static void everywhere(struct job *job, team_fn fn)
{
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int place = 0; place < 7; place++) {
            if (!test_takes(world - 1 + place))
                continue;
            job->stage = (place + 1) / 2;
            job->gather = place > 0 && place % 2 == 0 ? "copy" : "auto";
            if (!team_run(team_threads(world), world, fn, job))
                fail_msg("world %d, stage %d, gather %s", world, job->stage, job->gather);
        }
}

static void first_values(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32);
    everywhere(&job, reads_first_values);
}

static void written_bits(zero_dtype dtype)
{
    uint8_t expected[16];
    struct job job = job_of(dtype);
    assert_true(team_run("self", 1, writes, &job));
    memcpy(expected, job.digest[0], sizeof expected);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++) {
            if (!test_takes(world - 1 + job.stage))
                continue;
            job.gather = world % 2 ? "copy" : "auto"; // what was gathered before must not stay
            assert_true(team_run(team_threads(world), world, writes, &job));
            for (int r = 0; r < world; r++)
                assert_memory_equal(job.digest[r], expected, sizeof expected);
        }
}

static void written_values(void **state)
{
    (void)state;
    written_bits(ZERO_F32);
    written_bits(ZERO_BF16);
}

static void processes(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_BF16);
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("shm", 3, writes, &job));
}

static void wrong_calls(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32);
    everywhere(&job, refuses);
}

static void different_calls(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32);
    for (int world = 2; world <= 4; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++)
            if (test_takes(world + job.stage))
                assert_true(team_run("threads", world, diverges, &job));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_values),    cmocka_unit_test(written_values),
        cmocka_unit_test(processes),       cmocka_unit_test(wrong_calls),
        cmocka_unit_test(different_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
