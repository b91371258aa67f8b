// Weights without masters and bf16 moments: every bit of them against a training written out here,
// at every number of ranks; and what stochastic rounding is for, that small steps are not lost.
#include "tests/numerics/own_state.h"
#include "tests/numerics/rounding_reference.h"
#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"
#include "zero/core/context.h"
#include "zero/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 4, MOST = 2 * 1500, STEPS = 6, MICRO_BATCHES = 3, SEED = 99 };

struct tensor {
    const char *name;
    zero_dtype dtype;
    zero_unit unit;
    int32_t slices;
    uint64_t numel; // of a slice
};

static const struct tensor tensors[TENSORS] = {
    {"stacked", ZERO_BF16, 0, 2, 1500},
    {"half", ZERO_F16, 2, 1, 1025},
    {"wide", ZERO_F32, 2, 1, 700},
    {"odd", ZERO_BF16, 1, 1, 131},
};

// The state of every element as it is stored.
struct state {
    float weight[MOST], m[MOST], v[MOST];
};

struct job {
    const char *master, *moments;
    int32_t stage, threads;
    struct state *states; // one a tensor, of rank 0's reference
};

/* ------------------------------------------------------------------ the formula */

static float uniform(uint64_t purpose, zero_param p, uint64_t e)
{
    return (float)(zero_random_bits(7, purpose << 8 | (uint64_t)p, e) >> 40) * 0x1p-23f - 1.0f;
}

static float first_value(zero_param p, uint64_t e)
{
    return 0.25f * uniform(1, p, e);
}

// Small and large ones, and now and then none.
static float gradient(uint64_t step, uint64_t micro, zero_param p, uint64_t e)
{
    const float value = uniform(16 + step * MICRO_BATCHES + micro, p, e);
    return e % 17 == 3 ? 0.0f : ldexpf(value, -(int)(e % 9));
}

static const zero_hyper hyper = {2e-3, 0.9, 0.95, 1e-8, 0.01};

/* ------------------------------------------------------------------ the reference */

static float nearest(zero_dtype dtype, float value)
{
    return (float)rounding_nearest(dtype, value);
}

static float stochastic(zero_dtype dtype, zero_param p, int32_t slice, uint64_t updates,
                        uint64_t purpose, uint64_t e, float value)
{
    const uint64_t key = rounding_key(SEED, tensors[p].name, slice, updates, purpose);
    return (float)rounding_stochastic(dtype, key, e, value);
}

static void first_state(const struct job *job)
{
    const bool bare = strcmp(job->master, "none") == 0;
    for (zero_param p = 0; p < TENSORS; p++) {
        memset(&job->states[p], 0, sizeof job->states[p]);
        for (uint64_t i = 0; i < tensors[p].numel * (uint64_t)tensors[p].slices; i++)
            job->states[p].weight[i] =
                nearest(bare ? tensors[p].dtype : ZERO_F32, first_value(p, i));
    }
}

// One AdamW update of one element with its sum of gradients, as kernels.h defines it.
static void update_element(float *w, float *m, float *v, float g, uint64_t updates)
{
    const double beta1 = (double)(float)hyper.beta1, beta2 = (double)(float)hyper.beta2;
    const float step_size = (float)(hyper.lr / (1.0 - eng_power(beta1, updates)));
    const float correction = (float)(1.0 / sqrt(1.0 - eng_power(beta2, updates)));
    *m = fmaf((float)beta1, *m, (float)(1.0 - beta1) * g);
    *v = fmaf((float)beta2, *v, (float)(1.0 - beta2) * g * g);
    const float decayed = fmaf(-(float)(hyper.lr * hyper.weight_decay), *w, *w);
    *w = fmaf(-step_size, *m / fmaf(sqrtf(*v), correction, (float)hyper.eps), decayed);
}

// The update that makes `updates` with the gradients of a step.
static void reference_step(const struct job *job, uint64_t step, uint64_t updates)
{
    const bool bare = strcmp(job->master, "none") == 0;
    const bool narrow = strcmp(job->moments, "bf16") == 0;
    for (zero_param p = 0; p < TENSORS; p++) {
        struct state *s = &job->states[p];
        const struct tensor *tensor = &tensors[p];
        for (uint64_t i = 0; i < tensor->numel * (uint64_t)tensor->slices; i++) {
            const int32_t slice = (int32_t)(i / tensor->numel);
            const uint64_t e = i % tensor->numel;
            float sum = nearest(tensor->dtype, gradient(step, 0, p, i));
            for (uint64_t micro = 1; micro < MICRO_BATCHES; micro++)
                sum += nearest(tensor->dtype, gradient(step, micro, p, i));
            update_element(&s->weight[i], &s->m[i], &s->v[i], sum, updates);
            if (bare && tensor->dtype != ZERO_F32)
                s->weight[i] =
                    stochastic(tensor->dtype, p, slice, updates, ROUNDED_WEIGHT, e, s->weight[i]);
            if (narrow) {
                s->m[i] = stochastic(ZERO_BF16, p, slice, updates, ROUNDED_MOMENT, e, s->m[i]);
                s->v[i] = stochastic(ZERO_BF16, p, slice, updates, ROUNDED_MOMENT + 1, e, s->v[i]);
            }
        }
    }
}

/* ------------------------------------------------------------------ the program */

static float element(zero_dtype dtype, const void *array, uint64_t e)
{
    float value;
    eng_widen(base_kernels_at(0), dtype, (const unsigned char *)array + e * eng_dtype_size(dtype),
              1, &value);
    return value;
}

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    zero_param p = 0;
    while (strcmp(tensors[p].name, name) != 0)
        p++;
    for (uint64_t i = 0; i < count; i++)
        out[i] = first_value(p, (uint64_t)slice * tensors[p].numel + first + i);
    return ZERO_OK;
}

static zero_result commit(zero_ctx *z)
{
    zero_result result = zero_add_group(z, NULL, NULL);
    for (zero_param p = 0; p < TENSORS && !result; p++) {
        zero_param_desc desc = zero_param_default();
        desc.name = tensors[p].name;
        desc.dtype = tensors[p].dtype;
        desc.unit = tensors[p].unit;
        desc.unit_count = tensors[p].slices;
        desc.ndim = 2;
        desc.shape[0] = (uint64_t)tensors[p].slices;
        desc.shape[1] = tensors[p].numel;
        desc.fill = fill;
        result = zero_add_param(z, NULL, &desc);
    }
    return result ? result : zero_commit(z);
}

static void give_gradients(zero_ctx *z, const zero_micro *micro, zero_unit unit)
{
    const struct base_kernels *kernels = base_kernels_at(0);
    for (zero_param p = 0; p < TENSORS; p++) {
        const int32_t slice = unit - tensors[p].unit;
        if (slice < 0 || slice >= tensors[p].slices)
            continue;
        unsigned char *out = zero_grad_ptr(z, p, slice);
        for (uint64_t e = 0; e < tensors[p].numel; e++) {
            const uint64_t i = (uint64_t)slice * tensors[p].numel + e;
            const float value = gradient(micro->step, micro->index, p, i);
            eng_narrow(kernels, tensors[p].dtype, &value, 1,
                       out + e * eng_dtype_size(tensors[p].dtype));
        }
    }
}

static zero_result end_step(zero_ctx *z, bool skip)
{
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    return skip ? zero_skip_step(z) : zero_step(z, &args, NULL);
}

static zero_result train_step(zero_ctx *z, bool skip)
{
    zero_result result = ZERO_OK;
    for (int32_t i = 0; i < zero_micro_count(z); i++) {
        zero_micro micro = {.struct_size = sizeof micro};
        result = result ? result : zero_micro_begin(z, i, &micro);
        for (zero_unit unit = 0; unit < zero_unit_count(z) && !result; unit++) {
            result = zero_grad_open(z, unit, NULL);
            if (result)
                return result;
            give_gradients(z, &micro, unit);
            result = zero_grad_done(z, unit, NULL);
        }
    }
    return result ? result : end_step(z, skip);
}

static bool same(float expected, float actual, const struct tensor *tensor, uint64_t i,
                 const char *what)
{
    if (memcmp(&expected, &actual, sizeof expected) == 0)
        return true;
    fprintf(stderr, "%s, element %llu: %s is %.9g instead of %.9g\n", tensor->name,
            (unsigned long long)i, what, (double)actual, (double)expected);
    return false;
}

// The working copy, which every rank has while it is gathered.
static bool work_matches(struct team_rank *rank, const struct job *job)
{
    for (zero_param p = 0; p < TENSORS; p++)
        for (int32_t slice = 0; slice < tensors[p].slices; slice++) {
            const struct tensor *tensor = &tensors[p];
            TEAM_OK(rank, zero_gather(rank->z, tensor->unit + slice, NULL));
            const void *work = zero_param_ptr(rank->z, p, slice);
            for (uint64_t e = 0; e < tensor->numel; e++) {
                const uint64_t i = (uint64_t)slice * tensor->numel + e;
                const float expected = nearest(tensor->dtype, job->states[p].weight[i]);
                TEAM_CHECK(same(expected, element(tensor->dtype, work, e), tensor, i, "weight"));
            }
            TEAM_OK(rank, zero_release(rank->z, tensor->unit + slice, NULL));
        }
    return true;
}

static bool element_matches(void *user, const struct own_element *own)
{
    const struct job *job = user;
    const struct tensor *tensor = &tensors[own->param];
    const struct state *state = &job->states[own->param];
    const uint64_t i = (uint64_t)own->slice * tensor->numel + own->element;
    return same(state->weight[i], own->weight, tensor, i, "master") &&
           same(state->m[i], own->moment[0], tensor, i, "m") &&
           same(state->v[i], own->moment[1], tensor, i, "v");
}

// Moments and master weights of what this rank has the state of.
static bool state_matches(const struct team_rank *rank, struct job *job)
{
    return own_state_each(rank->z, element_matches, job);
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    rank->config.stage = job->stage;
    rank->config.micro_batches = MICRO_BATCHES;
    rank->config.seed = SEED;
    rank->config.loss_scale = "off";
    rank->config.master = job->master;
    rank->config.moments = job->moments;
    rank->config.cpu_threads = job->threads;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, commit(rank->z));
    for (uint64_t step = 0, updates = 0; step < STEPS; step++) {
        const bool skip = step == 2; // the random numbers are those of an update, not of a step
        TEAM_CHECK(work_matches(rank, job));
        TEAM_CHECK(state_matches(rank, job));
        TEAM_OK(rank, train_step(rank->z, skip));
        TEAM_OK(rank, zero_barrier(rank->z));
        updates += !skip;
        if (rank->rank == 0 && !skip)
            reference_step(job, step, updates);
        TEAM_OK(rank, zero_barrier(rank->z));
    }
    TEAM_CHECK(work_matches(rank, job));
    TEAM_CHECK(state_matches(rank, job));
    return true;
}

static void compare(const char *master, const char *moments)
{
    for (int32_t stage = 0; stage <= 3; stage++) {
        const int world = 1 + (stage + (int)strlen(master)) % 4;
        struct job job = {master, moments, stage, 1 + stage % 2,
                          calloc(TENSORS, sizeof(struct state))};
        assert_non_null(job.states);
        first_state(&job);
        const bool good = team_run(team_threads(world), world, train, &job);
        free(job.states);
        if (!good)
            fail_msg("master %s, moments %s, stage %d, %d ranks", master, moments, stage, world);
    }
}

static void without_masters(void **state)
{
    (void)state;
    compare("none", "f32");
}

static void bf16_moments(void **state)
{
    (void)state;
    compare("f32", "bf16");
}

static void without_either(void **state)
{
    (void)state;
    compare("none", "bf16");
}

/* ------------------------------------------------------------------ between steps */

struct handing_on {
    struct job job; // whose states are what the file holds
    const char *path;
};

static bool open_bare(struct team_rank *rank, int32_t stage)
{
    rank->config.stage = stage;
    rank->config.micro_batches = MICRO_BATCHES;
    rank->config.seed = SEED;
    rank->config.loss_scale = "off";
    rank->config.master = "none";
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, commit(rank->z));
    return true;
}

static bool hand_over(struct team_rank *rank, void *user)
{
    const struct handing_on *handing = user;
    if (!open_bare(rank, handing->job.stage))
        return false;
    TEAM_OK(rank, train_step(rank->z, false));
    TEAM_OK(rank, zero_export(rank->z, handing->path));
    return true;
}

// What was exported is there again, exactly, since every value has 16 bits; and a value that has
// more is rounded to nearest.
static bool take_over(struct team_rank *rank, void *user)
{
    const struct handing_on *handing = user;
    static const float between[] = {1 + 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 0x3p-8f};
    static const float rounded[] = {1, 1 + 0x1p-7f, -1 - 0x1p-6f};
    float values[3];
    if (!open_bare(rank, handing->job.stage))
        return false;
    TEAM_OK(rank, zero_import(rank->z, handing->path, NULL));
    TEAM_CHECK(work_matches(rank, &handing->job));
    TEAM_OK(rank, zero_param_write(rank->z, 0, 1, 1030, 3, between));
    TEAM_OK(rank, zero_param_read(rank->z, 0, 1, 1030, 3, values));
    TEAM_CHECK(memcmp(values, rounded, sizeof rounded) == 0);
    return true;
}

static void values_are_handed_on(void **state)
{
    (void)state;
    struct temporary temporary;
    assert_true(temporary_make(&temporary));
    struct handing_on handing = {.job = {.master = "none",
                                         .moments = "f32",
                                         .states = calloc(TENSORS, sizeof(struct state))},
                                 .path = temporary_path(&temporary, "weights.safetensors")};
    assert_non_null(handing.job.states);
    first_state(&handing.job);
    reference_step(&handing.job, 0, 1);
    for (handing.job.stage = 0; handing.job.stage <= 3; handing.job.stage++) {
        const int world = 1 + handing.job.stage % 3;
        assert_true(team_run(team_threads(4 - world), 4 - world, hand_over, &handing));
        assert_true(team_run(team_threads(world), world, take_over, &handing));
    }
    free(handing.job.states);
    temporary_remove(&temporary);
}

/* ------------------------------------------------------------------ what it is for */

enum { MANY = 40000, SMALL_STEPS = 64 };

// Steps of 2^-14 from 1: rounded to nearest, none of them would ever change a bf16 near 1, whose
// neighbours are 2^-8 below and 2^-7 above.
static void small_steps_are_not_lost(void **state)
{
    (void)state;
    static float ones[MANY];
    static uint16_t halves[MANY];
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.world = 1;
    config.master = "none";
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    zero_param_desc desc = zero_param_default();
    desc.name = "w";
    desc.dtype = ZERO_BF16;
    desc.grad_dtype = ZERO_F32;
    desc.ndim = 1;
    desc.shape[0] = MANY;
    for (size_t i = 0; i < MANY; i++)
        ones[i] = 1;
    eng_narrow(base_kernels_at(0), ZERO_BF16, ones, MANY, halves);
    desc.data = halves;
    assert_int_equal(zero_add_param(z, NULL, &desc), ZERO_OK);
    assert_int_equal(zero_commit(z), ZERO_OK);
    const zero_hyper steady = {0x1p-14, 0, 0, 0, 0}; // a step is lr * g / |g|
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &steady;
    for (int step = 0; step < SMALL_STEPS; step++) {
        assert_int_equal(zero_micro_begin(z, 0, NULL), ZERO_OK);
        assert_int_equal(zero_grad_open_raw(z, 0, NULL), ZERO_OK);
        memcpy(zero_grad_ptr(z, 0, 0), ones, sizeof ones);
        assert_int_equal(zero_grad_done(z, 0, NULL), ZERO_OK);
        assert_int_equal(zero_step(z, &args, NULL), ZERO_OK);
    }
    const uint16_t *work = zero_param_ptr(z, 0, 0);
    double sum = 0;
    for (size_t i = 0; i < MANY; i++)
        sum += (double)element(ZERO_BF16, work, i);
    zero_close(z);
    // Each element has made a step of 2^-8 down with probability 2^-6, SMALL_STEPS times.
    const double expected = 1 - SMALL_STEPS * 0x1p-14;
    const double deviation = 0x1p-8 * sqrt(SMALL_STEPS * 0x1p-6 / MANY);
    print_message("mean %.6f, expected %.6f, deviation %.1e\n", sum / MANY, expected, deviation);
    assert_true(fabs(sum / MANY - expected) < 5 * deviation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_masters),          cmocka_unit_test(bf16_moments),
        cmocka_unit_test(without_either),           cmocka_unit_test(values_are_handed_on),
        cmocka_unit_test(small_steps_are_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
