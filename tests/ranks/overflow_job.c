#include "tests/ranks/overflow_job.h"

#include "base/bfloat16.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 3, SLICES = 2, NUMEL = 4100, SMALL = 40, MICRO_BATCHES = 3 };

struct temporary overflow_directory;

int overflow_set_up(void **state)
{
    (void)state;
    return temporary_make(&overflow_directory) ? 0 : -1;
}

int overflow_tear_down(void **state)
{
    (void)state;
    temporary_remove(&overflow_directory);
    return 0;
}

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    const struct overflow_job *job = user;
    const char *const names[TENSORS] = {"first", "stacked", "bias"};
    for (uint64_t i = 0; i < count; i++) {
        const bool chosen = strcmp(name, names[job->param]) == 0 && slice == job->slice &&
                            first + i == job->element;
        out[i] = chosen ? job->first : 0.5F;
    }
    return ZERO_OK;
}

static bool add_tensors(struct team_rank *rank, struct overflow_job *job)
{
    static const char *const names[TENSORS] = {"first", "stacked", "bias"};
    for (zero_param p = 0; p < TENSORS; p++) {
        zero_param_desc desc = zero_param_default();
        desc.name = names[p];
        desc.dtype = job->dtype;
        desc.ndim = p == 1 ? 2 : 1;
        desc.shape[0] = p == 0 ? NUMEL : p == 1 ? SLICES : SMALL;
        desc.shape[1] = NUMEL;
        desc.unit = p == 0 ? 0 : 1;
        desc.unit_count = p == 1 ? SLICES : 1;
        desc.fill = fill;
        desc.fill_user = job;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    return true;
}

bool overflow_open(struct team_rank *rank, struct overflow_job *job)
{
    zero_group_desc group = zero_group_default();
    rank->config.stage = job->stage;
    rank->config.micro_batches = job->local ? rank->world * 2 : MICRO_BATCHES;
    rank->config.nonfinite = job->policy;
    rank->config.skip_limit = job->skip_limit;
    rank->config.master = job->master;
    rank->config.moments = job->moments;
    rank->config.reduction = job->local ? "local" : NULL;
    rank->config.loss_scale = "off";
    if (job->nvme) {
        rank->config.offload_optimizer = "nvme";
        rank->config.offload_params = job->params_nvme ? "nvme" : "host";
        rank->config.gather = job->params_nvme ? "copy" : NULL;
        rank->config.nvme_dir = overflow_directory.directory;
        rank->config.io = "sync";
        rank->config.tile_bytes = 65536;
        rank->config.name = "overflow";
    }
    group.optimizer = job->optimizer;
    group.decay = job->decay;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_group(rank->z, NULL, &group));
    if (!add_tensors(rank, job))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static void set(zero_dtype dtype, void *array, uint64_t element, float value)
{
    if (dtype == ZERO_F32)
        ((float *)array)[element] = value;
    else
        ((uint16_t *)array)[element] = base_f16_from_f32(value);
}

static bool gradient(const struct team_rank *rank, const struct overflow_job *job, zero_unit unit,
                     const zero_micro *micro)
{
    TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
    for (zero_param p = 0; p < TENSORS; p++) {
        const int32_t slice = p == 1 ? unit - 1 : 0;
        if ((p == 0) != (unit == 0) || (p == 2 && unit != 1))
            continue;
        void *array = zero_grad_ptr(rank->z, p, slice);
        for (uint64_t e = 0; micro->index == 1 && e < (p == 2 ? SMALL : NUMEL); e++)
            set(job->dtype, array, e, 1);
        if (p == job->param && slice == job->slice && micro->index == 1)
            set(job->dtype, array, job->element, job->gradient);
    }
    TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    return true;
}

zero_step_args overflow_args(const struct overflow_job *job)
{
    return zero_step_args_for(&job->hyper, 1, job->scale, 0);
}

zero_result overflow_step(const struct team_rank *rank, const struct overflow_job *job, bool *good)
{
    const zero_step_args args = overflow_args(job);
    *good = true;
    for (int32_t i = 0; i < zero_micro_count(rank->z); i++) {
        zero_micro micro = {.struct_size = sizeof micro};
        zero_result r = zero_micro_begin(rank->z, i, &micro);
        if (!r && job->fused && i == zero_micro_count(rank->z) - 1)
            r = zero_step_in_backward(rank->z, &args);
        if (r)
            return r;
        for (zero_unit unit = 1 + SLICES; unit-- > 0;)
            *good = *good && gradient(rank, job, unit, &micro);
    }
    return zero_step(rank->z, &args, NULL);
}

struct overflow_job overflow_job_of(const char *optimizer)
{
    return (struct overflow_job){
        .optimizer = optimizer,
        .dtype = ZERO_F32,
        .hyper = {1e-3, 0.9, 0.95, 1e-8, 0.1},
        .scale = 1,
        .first = 0.5F,
        .gradient = 1,
        .param = 1,
        .slice = 1,
        .element = 4097,
    };
}

void overflow_everywhere(const struct overflow_job *job, team_fn fn)
{
    for (int world = 1; world <= 5; world += world < 3 ? 1 : 2)
        for (int stage = 0; stage <= 3; stage++) {
            struct overflow_job one = *job;
            one.stage = stage;
            if (!test_takes(world - 1 + stage) || (job->local && stage > 1))
                continue;
            if (!team_run(team_threads(world), world, fn, &one))
                fail_msg("%s, world %d, stage %d", job->optimizer, world, stage);
        }
}
