/* Working copies and gradients in the caller's own memory: where they are, when they change, and
 * that nothing else does. */
#include "tests/ranks/team.h"

#include "base/bfloat16.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 3, UNITS = 3, SLICES = 3, LARGE = 1500, SMALL = 7, STEPS = 4, MOST_RANKS = 3 };
enum { LONG = 3 * 64 * 1024 + 77 }; // elements of a tensor that several threads copy

/** "stack" has a slice in every unit, "small" one in unit 0, "plain" no buffer of the caller's. */
static const struct {
    const char *name;
    uint64_t numel;
    zero_unit unit;
    int32_t slices;
} tensors[TENSORS] = {{"stack", LARGE, 0, SLICES}, {"small", SMALL, 0, 1}, {"plain", LARGE, 1, 1}};

/** The caller's memory: a page each, too. */
struct buffers {
    uint32_t work[2][SLICES * LARGE], grad[2][SLICES * LARGE];
};

struct job {
    zero_dtype dtype, grad_dtype;
    int stage, world, micro_batches;
    const char *reduction;
    bool borrow, own_gradient, raw;
    int threads; /**< of train_long() */
    uint8_t digest[MOST_RANKS][16];
};

static size_t size_of(const struct job *job)
{
    return job->dtype == ZERO_BF16 ? 2 : 4;
}

static zero_dtype gradient_dtype(const struct job *job)
{
    return job->grad_dtype == ZERO_DTYPE_DEFAULT ? job->dtype : job->grad_dtype;
}

static size_t gradient_size(const struct job *job)
{
    return gradient_dtype(job) == ZERO_BF16 ? 2 : 4;
}

/** Where a slice's working copy, or its gradient, begins in an array of its tensor. */
static void *at_slice(const struct job *job, void *array, int p, int slice)
{
    return (unsigned char *)array + (size_t)slice * tensors[p].numel * size_of(job);
}

static void *at_gradient(const struct job *job, void *array, int p, int slice)
{
    return (unsigned char *)array + (size_t)slice * tensors[p].numel * gradient_size(job);
}

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(slice + 1) * 0.37f + (float)(first + i) * 1e-3f + (float)name[0] * 0.01f;
    return ZERO_OK;
}

static zero_param_desc describe(const struct job *job, struct buffers *buffers, int p)
{
    zero_param_desc desc = zero_param_default();
    desc.name = tensors[p].name;
    desc.dtype = job->dtype;
    desc.grad_dtype = job->grad_dtype;
    desc.unit = tensors[p].unit;
    desc.unit_count = tensors[p].slices;
    desc.ndim = tensors[p].slices > 1 ? 2 : 1;
    desc.shape[0] = (uint64_t)tensors[p].slices;
    desc.shape[desc.ndim - 1] = tensors[p].numel;
    desc.fill = fill;
    if (p < 2 && job->borrow)
        desc.borrow = buffers->work[p];
    if (p < 2 && job->own_gradient)
        desc.grad = buffers->grad[p];
    return desc;
}

static bool open_job(struct team_rank *rank, const struct job *job, struct buffers *buffers)
{
    memset(buffers, 0, sizeof *buffers);
    rank->config.stage = job->stage;
    rank->config.micro_batches = job->micro_batches;
    rank->config.reduction = job->reduction;
    if (!team_open(rank))
        return false;
    for (int p = 0; p < TENSORS; p++) {
        const zero_param_desc desc = describe(job, buffers, p);
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static float get(zero_dtype dtype, const void *array, uint64_t k)
{
    return dtype == ZERO_F32 ? ((const float *)array)[k]
                             : base_f32_from_bf16(((const uint16_t *)array)[k]);
}

/** Adds the gradient of a slice to what is there, or overwrites it. */
static void add_gradient(const struct job *job, const zero_micro *micro, const void *weights,
                         void *gradient, uint64_t numel, bool overwrite)
{
    for (uint64_t k = 0; k < numel; k++) {
        const float value = get(job->dtype, weights, k) * 0.1f +
                            (float)((micro->index * 5 + micro->step * 3 + k) % 11) * 0.03f;
        const float sum = overwrite ? value : value + get(gradient_dtype(job), gradient, k);
        if (gradient_dtype(job) == ZERO_F32)
            ((float *)gradient)[k] = sum;
        else
            ((uint16_t *)gradient)[k] = base_bf16_from_f32(sum);
    }
}

static bool all_zero(const void *array, size_t bytes)
{
    const unsigned char *byte = array;
    for (size_t i = 0; i < bytes; i++)
        if (byte[i])
            return false;
    return true;
}

static bool in_unit(int p, zero_unit unit, int *slice)
{
    *slice = unit - tensors[p].unit;
    return *slice >= 0 && *slice < tensors[p].slices;
}

/** Every gradient of a unit; in buffers of the caller's before anything is opened. */
static bool backward_unit(struct team_rank *rank, const struct job *job, struct buffers *buffers,
                          const zero_micro *micro, zero_unit unit)
{
    zero_ctx *z = rank->z;
    int slice;
    TEAM_OK(rank, zero_gather(z, unit, NULL));
    for (int p = 0; p < 2 && job->own_gradient; p++)
        if (in_unit(p, unit, &slice))
            add_gradient(job, micro, zero_param_ptr(z, p, slice),
                         at_gradient(job, buffers->grad[p], p, slice), tensors[p].numel, false);
    TEAM_OK(rank, job->raw ? zero_grad_open_raw(z, unit, NULL) : zero_grad_open(z, unit, NULL));
    for (int p = 0; p < TENSORS; p++) {
        if (!in_unit(p, unit, &slice))
            continue;
        void *gradient = zero_grad_ptr(z, p, slice);
        TEAM_CHECK(gradient);
        if (p < 2 && job->own_gradient)
            TEAM_CHECK(gradient == at_gradient(job, buffers->grad[p], p, slice));
        else
            add_gradient(job, micro, zero_param_ptr(z, p, slice), gradient, tensors[p].numel,
                         job->raw);
    }
    TEAM_OK(rank, zero_grad_done(z, unit, NULL));
    for (int p = 0; p < 2; p++)
        if (in_unit(p, unit, &slice)) {
            TEAM_CHECK(!zero_grad_ptr(z, p, slice));
            TEAM_CHECK(all_zero(at_gradient(job, buffers->grad[p], p, slice),
                                tensors[p].numel * gradient_size(job)));
        }
    TEAM_OK(rank, zero_release(z, unit, NULL));
    return true;
}

static zero_result update(const struct team_rank *rank)
{
    const zero_hyper hyper = {1e-2, 0.9, 0.95, 1e-8, 0.1};
    zero_step_args args = zero_step_args_default();
    args.hyper = &hyper;
    args.group_count = 1;
    args.scale = 0.25;
    args.max_norm = 1;
    return zero_step(rank->z, &args, NULL);
}

static bool one_step(struct team_rank *rank, const struct job *job, struct buffers *buffers)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        zero_micro micro = {.struct_size = sizeof micro};
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        for (zero_unit unit = 0; unit < UNITS; unit++)
            if (!backward_unit(rank, job, buffers, &micro, unit))
                return false;
    }
    TEAM_OK(rank, update(rank));
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct buffers *buffers = calloc(1, sizeof *buffers);
    TEAM_CHECK(buffers);
    bool good = open_job(rank, job, buffers);
    for (int s = 0; good && s < STEPS; s++)
        good = one_step(rank, job, buffers);
    good = good && team_ok(rank, zero_fingerprint(rank->z, job->digest[rank->rank]), "fingerprint");
    team_close(rank);
    free(buffers);
    return good;
}

static void run(struct job *job)
{
    if (!team_run(team_threads(job->world), job->world, train, job))
        fail_msg("%d ranks, stage %d, dtype %d, borrow %d, grad %d, raw %d", job->world, job->stage,
                 (int)job->dtype, job->borrow, job->own_gradient, job->raw);
}

static void nothing_else_changes(void **state)
{
    (void)state;
    static const zero_dtype dtypes[][2] = {{ZERO_F32}, {ZERO_BF16}, {ZERO_BF16, ZERO_F32}};
    for (int d = 0; d < 3; d++) {
        const struct job plain = {
            .dtype = dtypes[d][0], .grad_dtype = dtypes[d][1], .world = 1, .micro_batches = 4};
        struct job expected = plain;
        run(&expected);
        for (int turn = 0; turn < 18; turn++) {
            struct job job = plain;
            job.world = 1 + turn % MOST_RANKS;
            job.stage = turn / 3 % 3;
            job.borrow = turn % 2 == 0;
            job.own_gradient = job.stage < 2;
            job.raw = turn >= 9;
            run(&job);
            for (int r = 0; r < job.world; r++)
                assert_memory_equal(job.digest[r], expected.digest[0], 16);
        }
    }
}

/** A rank's micro-batches are added up in the engine's memory, in the gradient's type. */
static void local_sums_are_the_same(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++)
        for (int stage = 0; stage < 2; stage++) {
            struct job plain = {.dtype = dtype ? ZERO_BF16 : ZERO_F32,
                                .stage = stage,
                                .world = 2,
                                .micro_batches = 6,
                                .reduction = "local"};
            run(&plain);
            for (int raw = 0; raw < 2; raw++) {
                // Values that overwrite are rounded once more; f32 has no such difference.
                struct job job = plain;
                job.raw = raw;
                run(&job);
                struct job own = job;
                own.own_gradient = true;
                run(&own);
                if (dtype == 0)
                    assert_memory_equal(own.digest, plain.digest, sizeof own.digest);
                if (raw)
                    assert_memory_equal(own.digest, job.digest, sizeof own.digest);
            }
        }
}

static bool long_micro(struct team_rank *rank, const struct job *job, int i, float *work,
                       float *gradient)
{
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    const float *weights = zero_param_ptr(rank->z, 0, 0);
    if (job->borrow)
        TEAM_CHECK(weights == work);
    TEAM_OK(rank, zero_grad_open(rank->z, 0, NULL));
    add_gradient(job, &micro, weights, zero_grad_ptr(rank->z, 0, 0), LONG, false);
    TEAM_OK(rank, zero_grad_done(rank->z, 0, NULL));
    TEAM_CHECK(all_zero(gradient, LONG * sizeof *gradient));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    return true;
}

/** As train(), with one tensor. */
static bool train_long(struct team_rank *rank, void *user)
{
    struct job *job = user;
    float *work = calloc(LONG, sizeof *work), *gradient = calloc(LONG, sizeof *gradient);
    zero_param_desc desc = zero_param_vector("long", LONG, NULL);
    desc.fill = fill;
    desc.borrow = job->borrow ? work : NULL;
    desc.grad = job->own_gradient ? gradient : NULL;
    rank->config.stage = job->stage;
    rank->config.micro_batches = job->micro_batches;
    rank->config.reduction = job->reduction;
    rank->config.cpu_threads = job->threads;
    bool good = work && gradient && team_open(rank);
    good = good && team_ok(rank, zero_add_param(rank->z, NULL, &desc), "add") &&
           team_ok(rank, zero_commit(rank->z), "commit");
    for (int s = 0; good && s < 2; s++) {
        for (int i = 0; good && i < zero_micro_count(rank->z); i++)
            good = long_micro(rank, job, i, work, gradient);
        good = good && team_ok(rank, update(rank), "step");
    }
    good = good && team_ok(rank, zero_fingerprint(rank->z, job->digest[rank->rank]), "fingerprint");
    team_close(rank);
    free(work);
    free(gradient);
    return good;
}

static void several_threads_copy_the_same(void **state)
{
    (void)state;
    for (int local = 0; local < 2; local++) {
        struct job plain = {.dtype = ZERO_F32,
                            .stage = local,
                            .world = 2,
                            .micro_batches = 4,
                            .reduction = local ? "local" : NULL,
                            .threads = 1};
        struct job job = plain;
        job.threads = 3;
        job.borrow = job.own_gradient = true;
        assert_true(team_run("threads", plain.world, train_long, &plain));
        assert_true(team_run("threads", job.world, train_long, &job));
        assert_memory_equal(job.digest, plain.digest, sizeof job.digest);
    }
}

/* ------------------------------------------------------------------ when */

/** Whether a slice in the caller's memory has the values that a reader of another rank's would. */
static bool is_current(struct team_rank *rank, const struct job *job, const struct buffers *buffers,
                       int p, int slice)
{
    float values[LARGE];
    TEAM_OK(rank, zero_param_read(rank->z, p, slice, 0, tensors[p].numel, values));
    const void *borrowed =
        (const unsigned char *)buffers->work[p] + (size_t)slice * tensors[p].numel * size_of(job);
    for (uint64_t k = 0; k < tensors[p].numel; k++) {
        const float value =
            job->dtype == ZERO_F32 ? values[k] : base_f32_from_bf16(base_bf16_from_f32(values[k]));
        if (get(job->dtype, borrowed, k) != value)
            return false;
    }
    return true;
}

static bool gather_all(struct team_rank *rank)
{
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    return true;
}

/** What is small follows each update at once, the rest when it is gathered; once each. */
static bool look(struct team_rank *rank, const struct job *job, struct buffers *buffers)
{
    TEAM_CHECK(is_current(rank, job, buffers, 1, 0));
    for (int slice = 0; slice < SLICES; slice++) {
        TEAM_CHECK(zero_param_ptr(rank->z, 0, slice) == at_slice(job, buffers->work[0], 0, slice));
        TEAM_CHECK(!is_current(rank, job, buffers, 0, slice));
    }
    TEAM_CHECK(gather_all(rank));
    for (int slice = 0; slice < SLICES; slice++)
        TEAM_CHECK(is_current(rank, job, buffers, 0, slice));
    // Not copied twice: what the caller writes there stays until the next update.
    memset(buffers->work[0], 0x11, size_of(job));
    TEAM_CHECK(gather_all(rank) && !is_current(rank, job, buffers, 0, 0));
    return true;
}

static bool watch(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    static _Thread_local struct buffers buffers;
    if (!open_job(rank, job, &buffers) || !look(rank, job, &buffers))
        return false;
    TEAM_CHECK(zero_param_ptr(rank->z, 2, 0)); // the engine's
    if (!one_step(rank, job, &buffers) || !look(rank, job, &buffers))
        return false;
    const float value = 2.5f;
    TEAM_OK(rank, zero_param_write(rank->z, 0, 1, 3, 1, &value));
    TEAM_OK(rank, zero_param_write(rank->z, 1, 0, 6, 1, &value));
    TEAM_CHECK(is_current(rank, job, &buffers, 1, 0));
    TEAM_CHECK(get(job->dtype, buffers.work[1], 6) == value);
    TEAM_CHECK(gather_all(rank) && is_current(rank, job, &buffers, 0, 1));
    TEAM_CHECK(get(job->dtype, buffers.work[0], LARGE + 3) == value);
    // The arrays go no further than the tensors.
    TEAM_CHECK(all_zero((unsigned char *)buffers.work[1] + SMALL * size_of(job), 64));
    char expected[96];
    snprintf(expected, sizeof expected, "borrow       %zu bytes",
             (SLICES * LARGE + SMALL) * size_of(job));
    TEAM_CHECK(strstr(zero_plan_text(rank->z), expected));
    snprintf(expected, sizeof expected, "\"working_copies\": %zu",
             (SLICES * LARGE + SMALL) * size_of(job));
    TEAM_CHECK(strstr(zero_plan_json(rank->z), expected));
    team_close(rank);
    return true;
}

static void values_arrive_when_they_are_asked_for(void **state)
{
    (void)state;
    for (int stage = 0; stage < 3; stage++)
        for (int world = 1; world <= MOST_RANKS; world++) {
            struct job job = {.dtype = world == 2 ? ZERO_BF16 : ZERO_F32,
                              .stage = stage,
                              .micro_batches = 2,
                              .borrow = true};
            if (!team_run(team_threads(world), world, watch, &job))
                fail_msg("%d ranks, stage %d", world, stage);
        }
}

/** A gradient that is said not to be stays where it is. */
static bool none(struct team_rank *rank, void *user)
{
    (void)user;
    const struct job job = {
        .dtype = ZERO_F32, .stage = 1, .micro_batches = 2, .own_gradient = true};
    static _Thread_local struct buffers buffers;
    if (!open_job(rank, &job, &buffers))
        return false;
    float *gradient = (float *)(void *)buffers.grad[0];
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        gradient[5] = 7;
        TEAM_OK(rank, zero_grad_none(rank->z, 0, NULL));
        TEAM_CHECK(gradient[5] == 7);
        for (zero_unit unit = 1; unit < UNITS; unit++) {
            TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        }
    }
    double norm = -1;
    TEAM_OK(rank, zero_grad_norm(rank->z, 1, &norm));
    TEAM_CHECK(norm == 0);
    char expected[96];
    snprintf(expected, sizeof expected, "grad         %zu bytes", (SLICES * LARGE + SMALL) * 4ul);
    TEAM_CHECK(strstr(zero_plan_text(rank->z), expected));
    team_close(rank);
    return true;
}

static void no_gradient_leaves_the_buffer(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, none, NULL));
    assert_true(team_run("threads", 2, none, NULL));
}

/* ------------------------------------------------------------------ misuse */

static bool refuse(struct team_rank *rank, void *user)
{
    (void)user;
    static _Thread_local struct buffers buffers;
    for (int stage = 0; stage <= 3; stage++) {
        rank->config.stage = stage;
        if (!team_open(rank))
            return false;
        zero_param_desc desc = zero_param_default();
        desc.name = "weight";
        desc.ndim = 1;
        desc.shape[0] = 5;
        desc.borrow = (unsigned char *)buffers.work[0] + 2;
        TEAM_CHECK(zero_add_param(rank->z, NULL, &desc) == ZERO_E_INVALID);
        TEAM_CHECK(strstr(zero_last_error(rank->z), stage < 3 ? "aligned" : "at stage 3"));
        desc.borrow = NULL;
        desc.grad = (unsigned char *)buffers.grad[0] + 1;
        TEAM_CHECK(zero_add_param(rank->z, NULL, &desc) == ZERO_E_INVALID);
        TEAM_CHECK(strstr(zero_last_error(rank->z), stage < 2 ? "aligned" : "gradient buffer at"));
        // What was refused is not forgotten: nothing can be registered in its place.
        desc.grad = NULL;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
        TEAM_CHECK(zero_commit(rank->z) == ZERO_E_INVALID);
        TEAM_CHECK(strstr(zero_last_error(rank->z), stage < 3 ? "aligned" : "at stage 3"));
        team_close(rank);
        if (!team_open(rank))
            return false;
        desc.grad = stage < 2 ? buffers.grad[0] : NULL;
        desc.borrow = stage < 3 ? buffers.work[0] : NULL;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
        TEAM_OK(rank, zero_commit(rank->z));
        TEAM_CHECK(!strstr(zero_plan_text(rank->z), "borrow ") == (stage == 3));
        team_close(rank);
    }
    return true;
}

static bool refuse_on_nvme(struct team_rank *rank, void *user)
{
    (void)user;
    static _Thread_local struct buffers buffers;
    rank->config.offload_optimizer = "nvme";
    rank->config.offload_params = "nvme";
    rank->config.nvme_dir = "/tmp";
    if (!team_open(rank))
        return false;
    zero_param_desc desc = zero_param_default();
    desc.name = "weight";
    desc.ndim = 1;
    desc.shape[0] = 5;
    desc.borrow = buffers.work[0];
    TEAM_CHECK(zero_add_param(rank->z, NULL, &desc) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "borrow with offload_params=nvme"));
    team_close(rank);
    return true;
}

static void other_stages_refuse(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, refuse, NULL));
    assert_true(team_run("self", 1, refuse_on_nvme, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_else_changes),
        cmocka_unit_test(local_sums_are_the_same),
        cmocka_unit_test(several_threads_copy_the_same),
        cmocka_unit_test(values_arrive_when_they_are_asked_for),
        cmocka_unit_test(no_gradient_leaves_the_buffer),
        cmocka_unit_test(other_stages_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
