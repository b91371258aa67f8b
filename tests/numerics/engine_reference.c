// The engine's whole training, element by element and step by step, against long double.
#include "checkpoint/safetensors.h"
#include "tests/numerics/synthetic_reference.h"
#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

// One training, shared by its ranks; rank 0 compares.
struct training {
    struct synthetic model;
    struct synthetic_reference reference;
    int32_t stage;
    const char *reduction;
    const char *export_path;
    long double worst;  // largest distance, relative to its bound
    long double widest; // largest bound of a weight
};

static bool matches(struct training *training, struct reference_value expected, double actual,
                    const char *what, uint64_t element)
{
    const long double distance = fabsl(actual - expected.value);
    if (distance <= expected.error) {
        if (distance > training->worst * expected.error)
            training->worst = distance / expected.error;
        return true;
    }
    fprintf(stderr, "step %llu, %s, element %llu: %.9g instead of %.9Lg within %.3Lg\n",
            (unsigned long long)training->reference.step, what, (unsigned long long)element, actual,
            expected.value, expected.error);
    return false;
}

// The working copy of one slice.
static bool slice_matches(struct team_rank *rank, struct training *training, zero_param p,
                          int32_t slice)
{
    const struct synthetic_tensor *tensor = &synthetic_tensors[p];
    const zero_dtype dtype = synthetic_dtype(&training->model, tensor);
    const void *work = zero_param_ptr(rank->z, p, slice);
    TEAM_CHECK(work != NULL);
    for (uint64_t e = 0; e < synthetic_numel(tensor); e++) {
        const struct reference_value expected =
            synthetic_reference_work(&training->reference, p, slice, e);
        const float actual = synthetic_element(dtype, work, e);
        if (!matches(training, expected, (double)actual, tensor->name, e))
            return false;
        if (dtype != ZERO_F32 || training->model.comm_dtype != ZERO_DTYPE_DEFAULT)
            synthetic_reference_adopt(&training->reference, p, slice, e, actual);
    }
    return true;
}

// The working copies of the slices in a gathered unit.
static bool unit_matches(struct team_rank *rank, struct training *training, zero_unit unit)
{
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const int32_t slice = unit - synthetic_tensors[p].unit;
        if (slice >= 0 && slice < synthetic_tensors[p].slices &&
            !slice_matches(rank, training, p, slice))
            return false;
    }
    return true;
}

static bool work_matches(struct team_rank *rank, struct training *training)
{
    for (zero_unit unit = 0; unit < SYNTHETIC_UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_CHECK(rank->rank != 0 || unit_matches(rank, training, unit));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    return true;
}

static bool verdict_matches(struct team_rank *rank, struct training *training)
{
    const struct synthetic_reference *reference = &training->reference;
    zero_step_result info = {.struct_size = sizeof info};
    double loss = 0.0, index = 0.0;
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == reference->step && info.updates == reference->step);
    TEAM_CHECK(info.skipped == 0 && info.bad_param == -1);
    TEAM_CHECK(matches(training, reference->norm, info.norm, "norm", 0));
    TEAM_CHECK(matches(training, reference->clip, info.clip, "clip", 0));
    TEAM_OK(rank, zero_metric_mean(rank->z, "loss", &loss));
    TEAM_OK(rank, zero_metric_mean(rank->z, "index", &index));
    TEAM_CHECK(matches(training, reference->loss, loss, "loss", 0));
    TEAM_CHECK(index == 0.5 * (training->model.micro_batches - 1));
    return true;
}

// The fp32 masters of one tensor, as exported.
static bool tensor_matches(struct training *training, const struct ckpt_safetensors *file,
                           zero_param p)
{
    static float values[3 * 1025];
    const struct synthetic_tensor *tensor = &synthetic_tensors[p];
    const struct ckpt_tensor *stored = ckpt_safetensors_find(file, tensor->name);
    const uint64_t numel = synthetic_numel(tensor);
    const uint64_t count = numel * (uint64_t)tensor->slices;
    TEAM_CHECK(stored && stored->dtype == CKPT_F32 && stored->count == count);
    TEAM_CHECK(stored->ndim == tensor->ndim);
    TEAM_CHECK(memcmp(stored->shape, tensor->shape, (size_t)tensor->ndim * 8) == 0);
    TEAM_CHECK(ckpt_safetensors_read_f32(file, stored, 0, count, values, NULL) == ZERO_OK);
    for (uint64_t i = 0; i < count; i++) {
        const struct reference_value expected =
            synthetic_reference_weight(&training->reference, p, (int32_t)(i / numel), i % numel);
        TEAM_CHECK(matches(training, expected, (double)values[i], tensor->name, i));
        training->widest = fmaxl(training->widest, expected.error);
    }
    return true;
}

static bool export_matches(struct team_rank *rank, struct training *training)
{
    TEAM_OK(rank, zero_export(rank->z, training->export_path));
    if (rank->rank != 0)
        return true;
    struct ckpt_safetensors *file = NULL;
    TEAM_CHECK(ckpt_safetensors_open(&file, training->export_path, NULL) == ZERO_OK);
    bool good = true;
    for (zero_param p = 0; good && p < SYNTHETIC_TENSORS; p++)
        good = tensor_matches(training, file, p);
    ckpt_safetensors_close(file);
    return good;
}

static bool train(struct team_rank *rank, void *user)
{
    struct training *training = user;
    rank->config.stage = training->stage;
    synthetic_configure(&training->model, &rank->config);
    rank->config.reduction = training->reduction;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &training->model));
    TEAM_CHECK(work_matches(rank, training));
    for (uint64_t step = 0; step < SYNTHETIC_STEPS; step++) {
        TEAM_OK(rank, synthetic_step(rank->z, &training->model, step));
        if (rank->rank == 0)
            synthetic_reference_step(&training->reference);
        if (rank->rank == 0)
            TEAM_CHECK(verdict_matches(rank, training));
        TEAM_CHECK(work_matches(rank, training));
    }
    return export_matches(rank, training);
}

static void compare_model(const struct synthetic *model, int world, int32_t stage,
                          const char *reduction)
{
    struct temporary temporary;
    assert_true(temporary_make(&temporary));
    struct training training = {
        .model = *model,
        .stage = stage,
        .reduction = reduction,
        .export_path = temporary_path(&temporary, "weights.safetensors"),
    };
    assert_true(synthetic_reference_init(&training.reference, &training.model));
    const bool good = team_run(team_threads(world), world, train, &training);
    synthetic_reference_free(&training.reference);
    temporary_remove(&temporary);
    print_message("largest distance %.2Lf of its bound, widest bound of a weight %.1Lg\n",
                  training.worst, training.widest);
    assert_true(good);
    // Weights are about 1 and move by a tenth: wider bounds would see nothing.
    assert_true(training.widest < 2e-4L);
}

static void compare(zero_dtype dtype, int32_t micro_batches, bool tied, int world, int32_t stage)
{
    const struct synthetic model = {.dtype = dtype, .micro_batches = micro_batches, .tied = tied};
    compare_model(&model, world, stage, NULL);
}

/** Sums in whatever order are close to the exact ones. */
static void native_sums(void **state)
{
    (void)state;
    const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 8};
    compare_model(&model, 2, 0, "native");
    compare_model(&model, 4, 1, "native");
}

static void sums_of_blocks(void **state)
{
    (void)state;
    const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 8, .sum_group = 4};
    compare_model(&model, 3, 2, NULL);
}

static void one_rank(void **state)
{
    (void)state;
    compare(ZERO_F32, 5, true, 1, 0);
}

static void three_ranks_f32(void **state)
{
    (void)state;
    compare(ZERO_F32, 5, false, 3, 3);
}

static void three_ranks_bf16(void **state)
{
    (void)state;
    compare(ZERO_BF16, 8, true, 3, 2);
}

static void two_ranks_mixed(void **state)
{
    (void)state;
    compare(ZERO_DTYPE_DEFAULT, 5, true, 2, 1);
}

static void three_ranks_f16(void **state)
{
    (void)state;
    compare(ZERO_F16, 5, true, 3, 1);
}

/** Gradients of another type than their tensors, which travel in a third one. */
static void gradients_of_other_types(void **state)
{
    (void)state;
    static const struct synthetic models[] = {
        {.dtype = ZERO_BF16, .micro_batches = 5, .grad_dtype = ZERO_F32, .tied = true},
        {.dtype = ZERO_F32, .micro_batches = 5, .comm_dtype = ZERO_BF16, .tied = true},
        {.micro_batches = 4, .grad_dtype = ZERO_F16, .comm_dtype = ZERO_F32},
        {.dtype = ZERO_F16, .micro_batches = 4, .grad_dtype = ZERO_F32, .comm_dtype = ZERO_BF16},
    };
    for (int i = 0; i < 4; i++)
        compare_model(&models[i], 1 + i % 3, 3 - i, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),         cmocka_unit_test(three_ranks_f32),
        cmocka_unit_test(three_ranks_bf16), cmocka_unit_test(two_ranks_mixed),
        cmocka_unit_test(native_sums),      cmocka_unit_test(sums_of_blocks),
        cmocka_unit_test(three_ranks_f16),  cmocka_unit_test(gradients_of_other_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
