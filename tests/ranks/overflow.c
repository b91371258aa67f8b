// Updates whose results are not finite, though every gradient is: what each case leaves behind, on
// every rank.
#include "base/bfloat16.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <zero/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 3, SLICES = 2, NUMEL = 4100, SMALL = 40, MICRO_BATCHES = 3 };

static struct temporary directory;

// One element's gradient, summed over the micro-batches, is `gradient` from step `from` on; all
// others are 1.
struct job {
    int32_t stage;
    const char *optimizer;
    zero_dtype dtype;
    const char *master, *moments;
    zero_nonfinite policy;
    zero_hyper hyper;
    double scale;
    zero_param param;
    int32_t slice;
    uint64_t element;
    float first, gradient; // first value and gradient of that element
    int32_t steps;         // good ones; the next one is not
    int32_t skip_limit;
    bool fused, nvme, params_nvme, local, skips;
    zero_decay decay;
    const char *message;
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    const struct job *job = user;
    const char *const names[TENSORS] = {"first", "stacked", "bias"};
    for (uint64_t i = 0; i < count; i++) {
        const bool chosen = strcmp(name, names[job->param]) == 0 && slice == job->slice &&
                            first + i == job->element;
        out[i] = chosen ? job->first : 0.5F;
    }
    return ZERO_OK;
}

static bool add_tensors(struct team_rank *rank, struct job *job)
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

static bool open_and_commit(struct team_rank *rank, struct job *job)
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
        rank->config.nvme_dir = directory.directory;
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

static bool gradient(const struct team_rank *rank, const struct job *job, zero_unit unit,
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

static zero_step_args args_of(const struct job *job)
{
    return zero_step_args_for(&job->hyper, 1, job->scale, 0);
}

static zero_result step(const struct team_rank *rank, const struct job *job, bool *good)
{
    const zero_step_args args = args_of(job);
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

static bool fails(struct team_rank *rank, void *user)
{
    struct job *job = user;
    bool good = false;
    uint8_t digest[16];
    char message[1024];
    if (!open_and_commit(rank, job))
        return false;
    for (int32_t s = 0; s < job->steps; s++) {
        TEAM_OK(rank, step(rank, job, &good));
        TEAM_CHECK(good);
    }
    TEAM_CHECK(step(rank, job, &good) == ZERO_E_NONFINITE);
    snprintf(message, sizeof message, "%s", zero_last_error(rank->z));
    if (!strstr(message, job->message))
        fprintf(stderr, "\"%s\" instead of \"%s\"\n", message, job->message);
    TEAM_CHECK(strstr(message, job->message));
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.bad_param == job->param && info.bad_slice == job->slice);
    TEAM_CHECK(info.bad_element == job->element);
    // For good: nobody reads what was made, and nobody saves it.
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_fingerprint(rank->z, digest) == ZERO_E_NONFINITE);
    TEAM_CHECK(zero_save(rank->z, directory.directory, NULL) == ZERO_E_NONFINITE);
    TEAM_CHECK(strcmp(message, zero_last_error(rank->z)) == 0);
    return true;
}

static bool skips(struct team_rank *rank, void *user)
{
    struct job *job = user;
    bool good = false;
    uint8_t before[16], after[16];
    zero_step_result info = {.struct_size = sizeof info};
    if (!open_and_commit(rank, job))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    TEAM_OK(rank, step(rank, job, &good));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 1 && isfinite(info.norm) && info.updates == 0 && info.step == 1);
    TEAM_CHECK(info.bad_param == -1 && info.skips == 1);
    struct job smaller = *job;
    smaller.scale = 1e-30;
    TEAM_OK(rank, step(rank, &smaller, &good));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == 0 && info.updates == 1);
    TEAM_OK(rank, zero_fingerprint(rank->z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) != 0);
    return true;
}

// Skips of gradients that are finite and too large are skips in a row, too.
static bool skips_too_often(struct team_rank *rank, void *user)
{
    struct job *job = user;
    bool good = false;
    zero_step_result info = {.struct_size = sizeof info};
    if (!open_and_commit(rank, job))
        return false;
    for (uint64_t row = 1; row <= 2; row++) {
        TEAM_OK(rank, step(rank, job, &good));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(info.skipped == 1 && info.skips == row && isfinite(info.norm));
    }
    TEAM_CHECK(step(rank, job, &good) == ZERO_E_NONFINITE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "step 3, after skip_limit=2 skips in a row: "));
    return true;
}

static bool trains(struct team_rank *rank, void *user)
{
    struct job *job = user;
    bool good = false;
    if (!open_and_commit(rank, job))
        return false;
    for (int s = 0; s < 3; s++) {
        TEAM_OK(rank, step(rank, job, &good));
        TEAM_CHECK(good);
    }
    return true;
}

static struct job job_of(const char *optimizer)
{
    return (struct job){
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

static void everywhere(const struct job *job, team_fn fn)
{
    for (int world = 1; world <= 5; world += world < 3 ? 1 : 2)
        for (int stage = 0; stage <= 3; stage++) {
            struct job one = *job;
            one.stage = stage;
            if (!test_takes(world - 1 + stage) || (job->local && stage > 1))
                continue;
            if (!team_run(team_threads(world), world, fn, &one))
                fail_msg("%s, world %d, stage %d", job->optimizer, world, stage);
        }
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
    struct job *job = user;
    bool good = false;
    uint8_t digest[16];
    struct job one = *job;
    if (!open_and_commit(rank, job))
        return false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        zero_step_args args = args_of(job);
        args.scale = bad[i].scale;
        if (i == 0) {
            one.scale = bad[i].scale;
            TEAM_CHECK(step(rank, &one, &good) == ZERO_E_INVALID);
        } else {
            TEAM_CHECK(zero_step(rank->z, &args, NULL) == ZERO_E_INVALID);
        }
        TEAM_CHECK(strstr(zero_last_error(rank->z), bad[i].message));
    }
    const zero_step_args args = args_of(job);
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    return true;
}

static void arguments_in_their_precision(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    everywhere(&job, refuses);
}

static void a_square_overflows(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "adagrad"};
    for (size_t i = 0; i < 3; i++) {
        struct job job = job_of(names[i]);
        job.gradient = 1e20F;
        job.message = i < 2 ? "moment 2 becomes inf in stacked, slice 1, element 4097"
                            : "moment 1 becomes inf in stacked, slice 1, element 4097";
        everywhere(&job, fails);
        job.fused = true;
        everywhere(&job, fails);
    }
}

// In the other units, in what persists, and in a full vector of a granule.
static void wherever_it_is(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    job.gradient = -1e20F;
    job.param = 0;
    job.slice = 0;
    job.element = 0;
    job.message = "moment 2 becomes inf in first, slice 0, element 0;";
    everywhere(&job, fails);
    job.param = 2;
    job.element = 39;
    job.message = "moment 2 becomes inf in bias, slice 0, element 39;";
    everywhere(&job, fails);
    job.fused = true;
    everywhere(&job, fails);
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
        struct job job = job_of(cases[i].optimizer);
        job.gradient = i < 2 ? 1 : 1e3F;
        job.scale = 1e37;
        job.param = i < 2 ? 0 : 1;
        job.slice = i < 2 ? 0 : 1;
        job.element = i < 2 ? 0 : 4097;
        job.message = cases[i].message;
        everywhere(&job, fails);
    }
}

static void momentum_overflows(void **state)
{
    (void)state;
    struct job job = job_of("sgd");
    job.hyper.weight_decay = 0;
    job.gradient = 1e38F;
    job.steps = 3; // 1, 1.9, 2.71, 3.44
    job.message = "step 4: every gradient is finite, but what the update makes is not: the weight "
                  "becomes -inf in stacked, slice 1, element 4097";
    everywhere(&job, fails);
}

static void a_weight_overflows(void **state)
{
    (void)state;
    struct job job = job_of("lion");
    job.hyper = (zero_hyper){2e38, 0.9, 0.99, 0, 0};
    job.gradient = 1;
    job.first = -2e38F;
    job.message = "the weight becomes -inf in stacked, slice 1, element 4097";
    everywhere(&job, fails);
}

// A finite weight whose working copy, or the weight itself, is f16.
static void f16_overflows(void **state)
{
    (void)state;
    struct job job = job_of("sgd");
    job.dtype = ZERO_F16;
    job.first = -60000;
    job.hyper = (zero_hyper){6000, 0, 0, 0, 0};
    job.message = "the weight becomes -66000, for which the working copy has no number, in "
                  "stacked, slice 1, element 4097";
    job.policy = ZERO_NONFINITE_SKIP;
    everywhere(&job, fails);
    job.fused = true;
    job.policy = ZERO_NONFINITE_ERROR;
    everywhere(&job, fails);
    job.fused = false;
    job.master = "none";
    job.message = "the weight becomes -inf in stacked, slice 1, element 4097";
    everywhere(&job, fails);
}

static void moments_of_16_bits(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    job.gradient = 1e20F;
    job.moments = "bf16";
    job.message = "moment 2 becomes inf in stacked, slice 1, element 4097";
    everywhere(&job, fails);
    job.local = true;
    everywhere(&job, fails);
}

// Nothing of the step is recorded: the file has the step before.
static void in_files(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    job.gradient = 1e20F;
    job.nvme = true;
    job.message = "moment 2 becomes inf in stacked, slice 1, element 4097";
    for (int i = 0; i < 3; i++) {
        job.fused = i == 1;
        job.params_nvme = i == 2;
        everywhere(&job, fails);
    }
    job = job_of("sgd");
    job.dtype = ZERO_F16;
    job.policy = ZERO_NONFINITE_ERROR;
    job.first = -60000;
    job.hyper = (zero_hyper){6000, 0, 0, 0, 0};
    job.nvme = job.params_nvme = true;
    job.message = "the weight becomes -66000, for which the working copy has no number, in "
                  "stacked, slice 1, element 4097";
    everywhere(&job, fails);
}

// What one gradient alone would overflow is skipped where steps are skipped.
static void a_gradient_too_large_is_skipped(void **state)
{
    (void)state;
    static const char *const names[] = {"adamw", "adam", "adagrad", "sgd", "lion"};
    for (size_t i = 0; i < 5; i++) {
        struct job job = job_of(names[i]);
        job.gradient = 1e20F;
        job.scale = i < 3 ? 1 : 1e19;
        job.policy = ZERO_NONFINITE_SKIP;
        everywhere(&job, skips);
    }
}

static void gradients_too_large_count_as_skips_in_a_row(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    job.gradient = 1e20F;
    job.scale = 1;
    job.policy = ZERO_NONFINITE_SKIP;
    job.skip_limit = 2;
    everywhere(&job, skips_too_often);
}

// Large values that are no reason to fail.
static void large_and_finite(void **state)
{
    (void)state;
    struct job job = job_of("adamw");
    job.gradient = 1e19F;
    everywhere(&job, trains);
    job.policy = ZERO_NONFINITE_SKIP;
    everywhere(&job, trains);
    job = job_of("sgd");
    job.gradient = 1e37F;
    everywhere(&job, trains);
    job = job_of("adamw");
    job.hyper.eps = 0;
    everywhere(&job, trains);
    job.dtype = ZERO_F16;
    job.policy = ZERO_NONFINITE_ERROR;
    job.first = 60000;
    everywhere(&job, trains);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_in_their_precision),
        cmocka_unit_test(a_square_overflows),
        cmocka_unit_test(wherever_it_is),
        cmocka_unit_test(scaled_it_is_infinite),
        cmocka_unit_test(momentum_overflows),
        cmocka_unit_test(a_weight_overflows),
        cmocka_unit_test(f16_overflows),
        cmocka_unit_test(moments_of_16_bits),
        cmocka_unit_test(in_files),
        cmocka_unit_test(a_gradient_too_large_is_skipped),
        cmocka_unit_test(gradients_too_large_count_as_skips_in_a_row),
        cmocka_unit_test(large_and_finite),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
