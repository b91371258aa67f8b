// One rank with one gradient a step: at stages 0 and 1 it is the sum where it lies. At stages 2 and
// 3, and where micro-batches are computed twice, sums have memory of their own. Both end in the
// same bits, whatever else happens; and where the gradient is the sum nothing reads the other sums,
// which are NaN.
#include "zero/exec/grad_is_sum.h"
#include "tests/numerics/synthetic.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"
#include "zero/core/context.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct way {
    const char *name;
    struct synthetic model;
    int32_t paranoid, verify_micro, cpu_threads;
    bool own, local, changes_v, nvme;
    bool summed; // the gradient is none the less added to sums
};

struct outcome {
    uint8_t digest[16];
    zero_step_result info[SYNTHETIC_STEPS];
};

struct job {
    const struct way *way;
    int32_t stage;
    bool kept; // the reference: sums have memory of their own
    struct outcome outcome;
};

static struct temporary directory;

static const struct way ways[] = {
    {.name = "f32", .model = {.dtype = ZERO_F32}},
    {.name = "bf16", .model = {.dtype = ZERO_BF16}},
    {.name = "f16", .model = {.dtype = ZERO_F16, .scaled = true, .skips = true}},
    {.name = "mixed, two threads", .cpu_threads = 2},
    {.name = "fp32 gradients", .model = {.grad_dtype = ZERO_F32}},
    {.name = "rounded on their way",
     .model = {.dtype = ZERO_F32, .comm_dtype = ZERO_BF16, .grad_dtype = ZERO_F32}},
    {.name = "bf16 moments", .model = {.dtype = ZERO_F32, .narrow_moments = true}},
    {.name = "bf16 moments and gradients",
     .model = {.dtype = ZERO_BF16, .narrow_moments = true},
     .summed = true},
    {.name = "without masters", .model = {.dtype = ZERO_BF16, .no_masters = true}, .summed = true},
    {.name = "without masters, fp32 gradients",
     .model = {.dtype = ZERO_BF16, .grad_dtype = ZERO_F32, .no_masters = true}},
    {.name = "absent", .model = {.dtype = ZERO_F32, .absent = true}},
    {.name = "told to be absent", .model = {.dtype = ZERO_BF16, .absent = true, .none = true}},
    {.name = "frozen", .model = {.frozen = SYNTHETIC_TAIL | SYNTHETIC_TIED}},
    {.name = "frozen for a time", .model = {.dtype = ZERO_F32, .paused = 1}},
    {.name = "tied", .model = {.dtype = ZERO_F32, .tied = true}},
    {.name = "hostile", .model = {.dtype = ZERO_F32, .hostile = true}},
    {.name = "in blocks", .model = {.dtype = ZERO_F32, .sum_group = 4}},
    {.name = "passed over", .model = {.dtype = ZERO_F32, .passes = true}},
    {.name = "skipped", .model = {.dtype = ZERO_F32, .skips = true, .scaled = true}},
    {.name = "not finite",
     .model = {.dtype = ZERO_F32,
               .skips = true,
               .faults = {{true, 2, 0, 5, 0, 1022, NAN},
                          {true, 2, 0, 0, 0, 17, -INFINITY},
                          {true, 7, 0, 2, 2, 1024, INFINITY}}}},
    {.name = "not finite in bf16",
     .model = {.dtype = ZERO_BF16,
               .skips = true,
               .faults = {{true, 3, 0, 2, 1, 1000, NAN}, {true, 3, 0, 5, 0, 3, INFINITY}}}},
    {.name = "optimizers",
     .model = {.dtype = ZERO_F32, .optimizer = {SYNTHETIC_LION, SYNTHETIC_ADAGRAD}}},
    {.name = "in backward", .model = {.dtype = ZERO_F32, .unclipped = true, .fused = true}},
    {.name = "in backward, bf16", .model = {.dtype = ZERO_BF16, .unclipped = true, .fused = true}},
    {.name = "the caller's memory", .model = {.dtype = ZERO_F32}, .own = true},
    {.name = "paranoid", .model = {.dtype = ZERO_F32}, .paranoid = 1},
    {.name = "computed twice", .model = {.dtype = ZERO_F32}, .verify_micro = 1, .summed = true},
    {.name = "V changes", .model = {.dtype = ZERO_F32}, .changes_v = true},
    {.name = "V changes, bf16", .model = {.dtype = ZERO_BF16}, .changes_v = true},
    {.name = "state in a file", .model = {.dtype = ZERO_F32}, .nvme = true},
    {.name = "state in a file, bf16", .model = {.dtype = ZERO_BF16}, .nvme = true},
    {.name = "state in a file, in backward",
     .model = {.dtype = ZERO_F32, .unclipped = true, .fused = true},
     .nvme = true},
    {.name = "local accumulation", .model = {.dtype = ZERO_F32}, .local = true},
    {.name = "local accumulation, mixed", .local = true},
};

/** Makes the sums what no gradient is. Where gradients are added to them they are stored first. */
static bool spoil_sums(const struct team_rank *rank, const struct job *job, bool once)
{
    const zero_ctx *z = rank->z;
    const bool expected = !job->kept && !job->way->summed && (once || job->way->local);
    bool some = false;
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        some = some || (!z->layout.buckets[s].frozen && eng_grad_is_sum(z, s));
    TEAM_CHECK(some == expected);
    memset(z->memory.sums, 0xff, z->placement.sums_bytes);
    return true;
}

static bool train(struct team_rank *rank, struct job *job, struct synthetic model)
{
    for (uint64_t step = 0; step < SYNTHETIC_STEPS; step++) {
        zero_step_result *info = &job->outcome.info[step];
        if (job->way->changes_v)
            model.micro_batches = step % 4 == 2 ? 3 : 1;
        TEAM_OK(rank, zero_set_micro_batches(rank->z, model.micro_batches));
        if (!spoil_sums(rank, job, model.micro_batches == 1))
            return false;
        TEAM_OK(rank, synthetic_step(rank->z, &model, step));
        *info = (zero_step_result){.struct_size = sizeof *info};
        TEAM_OK(rank, zero_step_info(rank->z, info));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->outcome.digest));
    return true;
}

static bool run(struct team_rank *rank, void *user)
{
    static struct synthetic_memory own, borrow;
    struct job *job = user;
    const struct way *way = job->way;
    struct synthetic model = way->model;
    model.micro_batches = way->local ? 3 : 1;
    model.own = way->own && job->stage < 2 ? &own : NULL;
    model.borrow = way->own && job->stage < 2 ? &borrow : NULL;
    rank->config.stage = job->stage;
    synthetic_configure(&model, &rank->config);
    rank->config.paranoid = way->paranoid;
    rank->config.verify_micro = way->verify_micro || (job->kept && way->local);
    rank->config.cpu_threads = way->cpu_threads;
    rank->config.reduction = way->local ? "local" : NULL;
    if (way->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = 65536;
    }
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &model));
    return train(rank, job, model);
}

static bool same_info(const zero_step_result *a, const zero_step_result *b)
{
    return memcmp(&a->norm, &b->norm, sizeof a->norm) == 0 && a->skipped == b->skipped &&
           a->updates == b->updates && a->bad_param == b->bad_param &&
           a->bad_slice == b->bad_slice && a->bad_element == b->bad_element &&
           a->bad_micro == b->bad_micro;
}

static void compare(const struct way *way, int32_t stage, const struct outcome *expected)
{
    struct job job = {.way = way, .stage = stage};
    if (!team_run("self", 1, run, &job))
        fail_msg("%s, stage %d", way->name, stage);
    for (int step = 0; step < SYNTHETIC_STEPS; step++)
        if (!same_info(&job.outcome.info[step], &expected->info[step]))
            fail_msg("%s, stage %d: step %d has norm %a, not %a; bad %d and %d", way->name, stage,
                     step, job.outcome.info[step].norm, expected->info[step].norm,
                     job.outcome.info[step].bad_param, expected->info[step].bad_param);
    if (memcmp(job.outcome.digest, expected->digest, sizeof expected->digest) != 0)
        fail_msg("%s, stage %d: other bits", way->name, stage);
}

static void test_ways(void **state)
{
    (void)state;
    assert_true(temporary_make(&directory));
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct job job = {.way = &ways[i], .stage = ways[i].local ? 0 : 2, .kept = true};
        if (!team_run("self", 1, run, &job))
            fail_msg("%s, the reference", ways[i].name);
        compare(&ways[i], 0, &job.outcome);
        compare(&ways[i], 1, &job.outcome);
    }
    temporary_remove(&directory);
}

/* ------------------------------------------------------------------ large ones */

enum { NUMEL = 5 * 1024 * 1024 + 5, LARGE_STEPS = 3 };

struct large {
    int32_t stage, cpu_threads;
    size_t bad; // the element that is not finite in the last step
    double norm[LARGE_STEPS];
    uint8_t digest[16];
};

static zero_result step_large(struct team_rank *rank, const struct large *large, int step)
{
    zero_result r = zero_micro_begin(rank->z, 0, NULL);
    r = r ? r : zero_gather(rank->z, 0, NULL);
    r = r ? r : zero_release(rank->z, 0, NULL);
    r = r ? r : zero_grad_open_raw(rank->z, 0, NULL);
    float *gradient = r ? NULL : zero_grad_ptr(rank->z, 0, 0);
    for (size_t i = 0; gradient && i < NUMEL; i++)
        gradient[i] = 1e-3f * (float)((i * 7 + (size_t)step) % 1013);
    if (gradient && step == LARGE_STEPS - 1) {
        gradient[large->bad] = NAN;
        gradient[NUMEL - 1] = INFINITY;
    }
    return r ? r : zero_grad_done(rank->z, 0, NULL);
}

static bool train_large(struct team_rank *rank, void *user)
{
    static const struct toy_tensor tensor = {.name = "large", .slices = 1, .numel = NUMEL};
    static const struct toy toy = {.tensors = &tensor,
                                   .tensor_count = 1,
                                   .unit_count = 1,
                                   .micro_batches = 1,
                                   .dtype = ZERO_F32};
    struct large *large = user;
    zero_step_result info = {.struct_size = sizeof info};
    rank->config.stage = large->stage;
    rank->config.cpu_threads = large->cpu_threads;
    rank->config.nonfinite = ZERO_NONFINITE_SKIP;
    if (!toy_open(rank, &toy))
        return false;
    for (int step = 0; step < LARGE_STEPS; step++) {
        TEAM_OK(rank, step_large(rank, large, step));
        TEAM_OK(rank, toy_update(rank, &toy));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        large->norm[step] = info.norm;
    }
    TEAM_CHECK(info.skipped == 1 && info.bad_param == 0 && info.bad_element == large->bad);
    TEAM_OK(rank, zero_fingerprint(rank->z, large->digest));
    return true;
}

/** More elements than a pool's threads are woken for, and than are dealt out at once. */
static void test_large(void **state)
{
    static const size_t bad[] = {0, 123456, 4 * 1024 * 1024 + 7};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct large kept = {.stage = 2, .cpu_threads = 1, .bad = bad[i]};
        assert_true(team_run("self", 1, train_large, &kept));
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            struct large large = {.stage = threads == 1 ? 1 : 0, .cpu_threads = threads};
            large.bad = bad[i];
            assert_true(team_run("self", 1, train_large, &large));
            assert_memory_equal(large.norm, kept.norm, sizeof(double) * (LARGE_STEPS - 1));
            assert_memory_equal(large.digest, kept.digest, sizeof kept.digest);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
