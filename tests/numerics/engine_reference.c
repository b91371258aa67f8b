// The engine's whole training, element by element and step by step, against long double: weights,
// masters and moments.
//
// With "matrix" every optimizer in every precision, clipped or not, with either decay or none,
// accumulated, with a loss scale, with steps that are skipped: so many of the combinations that any
// two of these meet; with "matrix" and an optimizer all of that one's.
#include "checkpoint/safetensors/safetensors.h"
#include "tests/numerics/own_state.h"
#include "tests/numerics/pairs.h"
#include "tests/numerics/synthetic_matrix.h"
#include "tests/numerics/synthetic_reference.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// One training, shared by its ranks; rank 0 compares.
struct training {
    struct synthetic model;
    struct synthetic_reference reference;
    int32_t stage;
    uint64_t steps;
    const char *reduction;
    const char *export_path;
    long double worst;         // largest distance, relative to its bound
    long double widest;        // largest bound of a weight
    uint64_t rounded, doubted; // values stored with 16 bits, and those that may be either of two
    uint64_t weights, wide;    // weights compared, and those whose bound is above WIDE
};

// Weights are about 1 and move by a tenth: wider bounds would see nothing.
static const long double WIDE = 2e-4L;

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

// The same of a value that is rounded to 16 bits.
static bool rounded_matches(struct training *training, struct reference_value expected,
                            double actual, const char *what, uint64_t element)
{
    training->rounded++;
    training->doubted += expected.error > 0;
    return matches(training, expected, actual, what, element);
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
        if (!(dtype == ZERO_F32 ? matches : rounded_matches)(training, expected, (double)actual,
                                                             tensor->name, e))
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

static bool moment_matches(struct training *training, const struct own_element *own, int which,
                           struct reference_value expected)
{
    static const char *const names[] = {"first moment", "second moment"};
    const double actual = (double)own->moment[which];
    if (!training->model.narrow_moments)
        return matches(training, expected, actual, names[which], own->element);
    if (!rounded_matches(training, expected, actual, names[which], own->element))
        return false;
    synthetic_reference_adopt_moment(&training->reference, own->param, own->slice, own->element,
                                     which, own->moment[which]);
    return true;
}

static bool element_matches(void *user, const struct own_element *own)
{
    struct training *training = user;
    const char *name = synthetic_tensors[own->param].name;
    const struct reference_element expected =
        *synthetic_reference_element(&training->reference, own->param, own->slice, own->element);
    training->widest = fmaxl(training->widest, expected.weight.error);
    training->weights++;
    training->wide += expected.weight.error > WIDE;
    return matches(training, expected.weight, (double)own->weight, name, own->element) &&
           moment_matches(training, own, 0, expected.m) &&
           moment_matches(training, own, 1, expected.v);
}

// Masters and moments, rank after rank: what several have is compared, and taken over, by each.
static bool state_matches(struct team_rank *rank, struct training *training)
{
    for (int turn = 0; turn < rank->world; turn++) {
        TEAM_OK(rank, zero_barrier(rank->z));
        TEAM_CHECK(turn != rank->rank || own_state_each(rank->z, element_matches, training));
    }
    return true;
}

static bool verdict_matches(struct team_rank *rank, struct training *training)
{
    const struct synthetic_reference *reference = &training->reference;
    zero_step_result info = {.struct_size = sizeof info};
    double loss = 0.0, index = 0.0;
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(!reference->doubtful);
    TEAM_CHECK(info.step == reference->step && info.updates == reference->updates);
    TEAM_CHECK(info.skipped == reference->skipped && (info.bad_param == -1) == reference->finite);
    TEAM_CHECK(zero_loss_scale(rank->z) == reference->loss_scale);
    if (reference->finite) {
        TEAM_CHECK(matches(training, reference->norm, info.norm, "norm", 0));
        TEAM_CHECK(matches(training, reference->clip, info.clip, "clip", 0));
    }
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
            synthetic_reference_element(&training->reference, p, (int32_t)(i / numel), i % numel)
                ->weight;
        TEAM_CHECK(matches(training, expected, (double)values[i], tensor->name, i));
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
    for (uint64_t step = 0; step < training->steps; step++) {
        TEAM_OK(rank, synthetic_step(rank->z, &training->model, step));
        if (rank->rank == 0)
            synthetic_reference_step(&training->reference);
        if (rank->rank == 0)
            TEAM_CHECK(verdict_matches(rank, training));
        TEAM_CHECK(work_matches(rank, training));
        TEAM_CHECK(state_matches(rank, training));
    }
    return export_matches(rank, training);
}

// Compares all of a training, of which model, stage, steps and reduction are set.
static bool follow(struct training *training, int world)
{
    struct temporary temporary;
    assert_true(temporary_make(&temporary));
    training->export_path = temporary_path(&temporary, "weights.safetensors");
    assert_true(synthetic_reference_init(&training->reference, &training->model));
    const bool good = team_run(team_threads(world), world, train, training);
    synthetic_reference_free(&training->reference);
    temporary_remove(&temporary);
    return good && 20 * training->doubted <= training->rounded;
}

static void print_training(const struct training *training)
{
    print_message("largest distance %.2Lf of its bound, widest bound of a weight %.1Lg, "
                  "%llu of %llu roundings in doubt\n",
                  training->worst, training->widest, (unsigned long long)training->doubted,
                  (unsigned long long)training->rounded);
}

static void compare_model(const struct synthetic *model, int world, int32_t stage,
                          const char *reduction)
{
    struct training training = {
        .model = *model, .stage = stage, .steps = SYNTHETIC_STEPS, .reduction = reduction};
    const bool good = follow(&training, world);
    print_training(&training);
    assert_true(good);
    assert_true(training.widest < WIDE);
}

static void compare(zero_dtype dtype, int32_t micro_batches, bool tied, int world, int32_t stage)
{
    const struct synthetic model = {.dtype = dtype, .micro_batches = micro_batches, .tied = tied};
    compare_model(&model, world, stage, NULL);
}

/** Sums in whatever order are close to the exact ones. */
static void local_sums(void **state)
{
    (void)state;
    const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 8};
    compare_model(&model, 2, 0, "local");
    compare_model(&model, 4, 1, "local");
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

/* ------------------------------------------------------------------ the matrix */

enum dimension { OPTIMIZER, PRECISION, CLIPPING, DECAY, ACCUMULATION, SCALE, SKIP, DIMENSIONS };
enum decay { NO_DECAY, OWN_DECAY, OTHER_DECAY, DECAYS };
enum skip { NO_SKIP, SKIPS, PASSES, WAYS_TO_SKIP };

static const char *only; // the optimizer all of whose trainings are run

static bool possible(const int *choice)
{
    (void)choice;
    return true;
}

static const struct pairs matrix = {
    .dims = DIMENSIONS,
    .sizes = {MATRIX_OPTIMIZERS, MATRIX_PRECISIONS, 2, DECAYS, 2, 2, WAYS_TO_SKIP},
    .possible = possible,
};

static struct synthetic chosen_model(const int *choice, unsigned turn)
{
    static const int policies[] = {MATRIX_CLIPPED, MATRIX_SKIPS, MATRIX_PASSES};
    struct synthetic model = {
        .micro_batches = choice[ACCUMULATION] ? 5 : 1,
        .tied = turn / 2 % 2,
        .undecayed = choice[DECAY] == NO_DECAY,
        .other_decay = choice[DECAY] == OTHER_DECAY,
        .scaled = choice[SCALE],
    };
    matrix_set_optimizer(&model, choice[OPTIMIZER]);
    matrix_set_precision(&model, choice[PRECISION]);
    matrix_set_policy(&model, policies[choice[SKIP]]);
    model.unclipped = !choice[CLIPPING];
    model.fused = model.unclipped && !model.skips && turn % 2;
    return model;
}

// Places and numbers of ranks take their turns. Few weights may have wide bounds: where a gradient
// that is nearly 0 is rounded in doubt, Adam's step may be anything, and Lion's has either sign.
static void compare_choice(const int *choice, unsigned turn)
{
    const int world = 1 + (int)(turn % 3);
    struct training training = {
        .model = chosen_model(choice, turn),
        .stage = (int32_t)(turn / 3 % 4),
        .steps = MATRIX_STEPS,
    };
    if (follow(&training, world) && 1000 * training.wide <= training.weights)
        return;
    print_training(&training);
    fail_msg("%s, %s%s, decay %d, V %d%s, skips %d%s, %d ranks at stage %d",
             matrix_optimizers[choice[OPTIMIZER]], matrix_precisions[choice[PRECISION]],
             choice[CLIPPING] ? ", clipped" : "", choice[DECAY], training.model.micro_batches,
             choice[SCALE] ? ", loss scale" : "", choice[SKIP],
             training.model.fused ? ", fused" : "", world, training.stage);
}

static void part_of_matrix(void **state)
{
    (void)state;
    struct pairs sweep = matrix;
    int choice[PAIRS_DIMS];
    unsigned turn = 0;
    for (; pairs_next(&sweep, choice); turn++)
        if (test_takes((int)turn))
            compare_choice(choice, turn);
    print_message("%u trainings\n", turn);
}

static void matrix_of_one_optimizer(void **state)
{
    (void)state;
    const int optimizer = matrix_find(matrix_optimizers, MATRIX_OPTIMIZERS, only);
    int choice[PAIRS_DIMS];
    unsigned turn = 0;
    assert_true(optimizer >= 0);
    for (pairs_begin(&matrix, choice); pairs_each(&matrix, choice); turn++)
        if (choice[OPTIMIZER] == optimizer)
            compare_choice(choice, turn);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),         cmocka_unit_test(three_ranks_f32),
        cmocka_unit_test(three_ranks_bf16), cmocka_unit_test(two_ranks_mixed),
        cmocka_unit_test(local_sums),       cmocka_unit_test(sums_of_blocks),
        cmocka_unit_test(three_ranks_f16),  cmocka_unit_test(gradients_of_other_types),
    };
    const struct CMUnitTest part[] = {cmocka_unit_test(part_of_matrix)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(matrix_of_one_optimizer)};
    only = argc > 2 ? argv[2] : NULL;
    if (argc > 1 && strcmp(argv[1], "matrix") == 0)
        return only ? cmocka_run_group_tests(whole, NULL, NULL)
                    : cmocka_run_group_tests(part, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
