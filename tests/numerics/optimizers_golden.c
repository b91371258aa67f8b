// Every optimizer's trajectory, element by element and step by step, against that of PyTorch in
// fp64 (golden/make_optimizers.py): clipped, decayed either way, accumulated, with a step that is
// skipped, with a loss scale. Argument: the folder of golden files.
#include "golden_file.h"
#include "tests/ranks/team.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// The problem and the names are make_optimizers.py's.
enum { TENSORS = 3, ELEMENTS = 24, STEPS = 8, MICRO_BATCHES = 4, SKIPPED = 3 };

static const uint64_t tensor_first[TENSORS + 1] = {0, 5, 16, ELEMENTS};
static const double weight_decay = 0.1, max_norm = 2.0;

// fp32 rounds weights below 2 by up to 6e-8 (half a unit in the last place) and a step of theirs by
// 6e-8 of it; what was rounded is carried on. Norms are off by what the weights are.
static const double weight_tolerance = 4e-7, norm_tolerance = 2e-7;

struct optimizer {
    const char *name, *engine_name;
    int32_t nesterov;
    zero_decay own, other;
    double lr, beta1, beta2, eps;
};

static const struct optimizer optimizers[] = {
    {"adamw", "adamw", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_L2, 0.05, 0.9, 0.99, 1e-4},
    {"adam", "adam", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, 0.05, 0.9, 0.99, 1e-4},
    {"sgd", "sgd", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, 0.1, 0, 0, 0},
    {"momentum", "sgd", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, 0.03, 0.9, 0, 0},
    {"nesterov", "sgd", 1, ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, 0.03, 0.9, 0, 0},
    {"lion", "lion", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_L2, 0.02, 0.9, 0.99, 0},
    {"adagrad", "adagrad", 0, ZERO_DECAY_DEFAULT, ZERO_DECAY_DECOUPLED, 0.3, 0, 0, 1e-4},
};

struct variant {
    const char *name;
    int32_t micro_batches;
    bool clips, decays, other, skips;
};

static const struct variant variants[] = {
    {.name = "plain", .micro_batches = 1},
    {.name = "clip", .micro_batches = 1, .clips = true},
    {.name = "decay", .micro_batches = 1, .decays = true},
    {.name = "other", .micro_batches = 1, .decays = true, .other = true},
    {.name = "accumulate", .micro_batches = MICRO_BATCHES},
    {.name = "skip", .micro_batches = MICRO_BATCHES, .decays = true, .skips = true},
    {.name = "all", .micro_batches = MICRO_BATCHES, .clips = true, .decays = true},
};

static struct {
    float first[ELEMENTS];
    const double *curvature, *target, *noise;
} problem;

static const char *golden_folder;

// One training; what it went through is rank 0's.
struct training {
    const struct optimizer *optimizer;
    const struct variant *variant;
    int32_t stage;
    const char *reduction, *loss_scale;
    double weight[STEPS][ELEMENTS], norm[STEPS];
};

static zero_result prepare(zero_ctx *z, const struct training *training)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    zero_group_desc group = zero_group_default();
    group.optimizer = training->optimizer->engine_name;
    group.nesterov = training->optimizer->nesterov;
    group.decay = training->variant->other ? training->optimizer->other : training->optimizer->own;
    zero_result r = zero_add_group(z, NULL, &group);
    if (!r)
        r = zero_add_group(z, NULL, &group);
    for (int t = 0; t < TENSORS && !r; t++) {
        const uint64_t first = tensor_first[t];
        zero_param_desc desc =
            zero_param_vector(names[t], tensor_first[t + 1] - first, problem.first + first);
        desc.unit = t;
        desc.group = t == TENSORS - 1;
        r = zero_add_param(z, NULL, &desc);
    }
    return r ? r : zero_commit(z);
}

static void compute(zero_ctx *z, const struct training *training, int t, const zero_micro *micro)
{
    const float *weight = zero_param_ptr(z, t, 0);
    float *gradient = zero_grad_ptr(z, t, 0);
    const double *noise = problem.noise + (micro->step * MICRO_BATCHES + micro->index) * ELEMENTS;
    for (uint64_t e = tensor_first[t]; e < tensor_first[t + 1]; e++) {
        const double w = (double)weight[e - tensor_first[t]];
        const double g = problem.curvature[e] * (w - problem.target[e]) + noise[e];
        gradient[e - tensor_first[t]] += (float)(g * zero_loss_scale(z));
    }
    if (training->variant->skips && micro->step == SKIPPED && micro->index == 2 && t == 1)
        gradient[4] = NAN;
}

static bool micro_batch(struct team_rank *rank, const struct training *training, int i)
{
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    for (int t = 0; t < TENSORS; t++) {
        TEAM_OK(rank, zero_gather(rank->z, t, NULL));
        TEAM_OK(rank, zero_grad_open(rank->z, t, NULL));
        compute(rank->z, training, t, &micro);
        TEAM_OK(rank, zero_grad_done(rank->z, t, NULL));
        TEAM_OK(rank, zero_release(rank->z, t, NULL));
    }
    return true;
}

static bool update(struct team_rank *rank, struct training *training, int step)
{
    const struct optimizer *o = training->optimizer;
    const struct variant *v = training->variant;
    zero_hyper hyper[2];
    for (int g = 0; g < 2; g++)
        hyper[g] = (zero_hyper){.lr = o->lr * (g == 0 ? 1 : 0.5) * (1 - step / 16.0),
                                .beta1 = o->beta1,
                                .beta2 = o->beta2,
                                .eps = o->eps,
                                .weight_decay = g == 0 && v->decays ? weight_decay : 0};
    const zero_step_args args =
        zero_step_args_for(hyper, 2, 1.0 / v->micro_batches, v->clips ? max_norm : 0);
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.skipped == (v->skips && step == SKIPPED));
    TEAM_CHECK(info.updates == (uint64_t)(step + !(v->skips && step >= SKIPPED)));
    if (rank->rank == 0)
        training->norm[step] = info.norm;
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    struct training *training = user;
    rank->config.stage = training->stage;
    rank->config.reduction = training->reduction;
    rank->config.loss_scale = training->loss_scale;
    rank->config.micro_batches = training->variant->micro_batches;
    rank->config.nonfinite = ZERO_NONFINITE_SKIP;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, prepare(rank->z, training));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!micro_batch(rank, training, i))
                return false;
        if (!update(rank, training, step))
            return false;
        for (int t = 0; t < TENSORS; t++) {
            TEAM_OK(rank, zero_gather(rank->z, t, NULL));
            const float *weight = zero_param_ptr(rank->z, t, 0);
            for (uint64_t e = tensor_first[t]; e < tensor_first[t + 1] && rank->rank == 0; e++)
                training->weight[step][e] = (double)weight[e - tensor_first[t]];
            TEAM_OK(rank, zero_release(rank->z, t, NULL));
        }
    }
    return true;
}

static void compare(const struct training *training, struct golden_file *golden, double worst[2])
{
    char name[64];
    const char *optimizer = training->optimizer->name, *variant = training->variant->name;
    snprintf(name, sizeof name, "%s.%s", optimizer, variant);
    const double *weight = golden_tensor(golden, name, (size_t)STEPS * ELEMENTS);
    snprintf(name, sizeof name, "%s.%s.norm", optimizer, variant);
    const double *norm = golden_tensor(golden, name, STEPS);
    for (int step = 0; step < STEPS; step++) {
        for (int e = 0; e < ELEMENTS; e++) {
            const double expected = weight[step * ELEMENTS + e];
            const double distance = fabs(training->weight[step][e] - expected);
            if (!(distance <= weight_tolerance))
                fail_msg("%s.%s, stage %d, step %d, element %d: %.9g instead of %.9g", optimizer,
                         variant, training->stage, step, e, training->weight[step][e], expected);
            worst[0] = fmax(worst[0], distance);
        }
        if (training->variant->skips && step == SKIPPED)
            continue;
        const double distance = fabs(training->norm[step] - norm[step]) / norm[step];
        if (!(distance <= norm_tolerance))
            fail_msg("%s.%s, stage %d, step %d: norm %.9g instead of %.9g", optimizer, variant,
                     training->stage, step, training->norm[step], norm[step]);
        worst[1] = fmax(worst[1], distance);
    }
}

static void run(struct training *training, int world, struct golden_file *golden, double worst[2])
{
    assert_true(team_run(team_threads(world), world, train, training));
    compare(training, golden, worst);
}

// A loss scale that is a power of two changes no bit: neither a fixed one nor one that is halved by
// the step that is skipped.
static void run_scaled(const struct training *unscaled, const char *loss_scale, int stage,
                       struct golden_file *golden, double worst[2])
{
    struct training training = {.optimizer = unscaled->optimizer,
                                .variant = unscaled->variant,
                                .stage = stage,
                                .loss_scale = loss_scale};
    run(&training, 2, golden, worst);
    assert_memory_equal(training.weight, unscaled->weight, sizeof training.weight);
}

// Every variant of one optimizer; ranks and stages go round.
static void test_optimizer(void **state)
{
    const struct optimizer *optimizer = *state;
    struct golden_file *golden = golden_open(golden_folder, "optimizers_golden.safetensors");
    const double *first = golden_tensor(golden, "first", ELEMENTS);
    for (int e = 0; e < ELEMENTS; e++)
        problem.first[e] = (float)first[e];
    problem.curvature = golden_tensor(golden, "curvature", ELEMENTS);
    problem.target = golden_tensor(golden, "target", ELEMENTS);
    problem.noise = golden_tensor(golden, "noise", (size_t)STEPS * MICRO_BATCHES * ELEMENTS);
    double worst[2] = {0, 0};
    const int count = (int)(sizeof variants / sizeof *variants);
    for (int v = 0; v < count; v++)
        for (int n = 0; n < 3; n++) {
            struct training training = {
                .optimizer = optimizer, .variant = &variants[v], .stage = (v + n) % 4};
            run(&training, 1 + n, golden, worst);
            if (n == 2)
                run_scaled(&training, variants[v].skips ? "dynamic" : "1024", 3 - training.stage,
                           golden, worst);
        }
    struct training local = {
        .optimizer = optimizer, .variant = &variants[count - 1], .reduction = "local"};
    run(&local, 2, golden, worst);
    print_message("%s: weights are off by at most %.1e, norms by %.1e of their value\n",
                  optimizer->name, worst[0], worst[1]);
    golden_close(golden);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    golden_folder = argv[1];
    enum { COUNT = sizeof optimizers / sizeof *optimizers };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){.name = optimizers[i].name,
                                       .test_func = test_optimizer,
                                       .initial_state = (void *)&optimizers[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
