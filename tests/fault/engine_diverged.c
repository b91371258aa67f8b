/* Ranks that don't do the same: every one of them is told, within seconds, and what it was. */
#include "tests/ranks/team.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD_MAX = 3, UNITS = 4, TENSORS = 5, MICRO_BATCHES = 6, ORDER = UNITS + 2 };

/** What one rank does otherwise; all zero: nothing. */
struct deviation {
    const char *name; /**< of the case */

    // Settings, and the model.
    void (*configure)(zero_config *config);
    void (*register_other)(zero_param_desc tensors[TENSORS + 1], int *count);

    // Its third step and those after it: orders of units, ended by -1, and arguments.
    zero_unit forward[ORDER], backward[ORDER];
    bool other_order;
    zero_hyper hyper;
    bool other_hyper;
    double scale, max_norm;
    const char *metric;
    int steps_less;

    // After the last step: what this rank calls, and what the others do.
    zero_result (*odd_call)(zero_ctx *z);
    zero_result (*even_call)(zero_ctx *z);

    int stage_from; /**< the first stage at which it matters */
    zero_result result;
    const char *says; /**< on every rank */
};

struct job {
    const struct deviation *deviation;
    int odd; /**< the rank that deviates */
    int stage;
    atomic_int told; /**< ranks that have their error */
    zero_result result[WORLD_MAX];
    char message[WORLD_MAX][512];
    double seconds[WORLD_MAX]; /**< its whole life */
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    (void)name;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(first + i) * 0x1p-12f + (float)slice;
    return ZERO_OK;
}

/** A tensor a unit, all but the first alike, and one more in that. */
static void describe(zero_param_desc tensors[TENSORS + 1], int *count)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    for (int p = 0; p <= TENSORS; p++) {
        tensors[p] = zero_param_default();
        tensors[p].name = names[p];
        tensors[p].ndim = 2;
        tensors[p].shape[0] = 3;
        tensors[p].shape[1] = 1100;
        tensors[p].unit = p % UNITS;
        tensors[p].fill = fill;
    }
    *count = TENSORS;
}

static zero_result add_model(zero_ctx *z, const struct deviation *deviation)
{
    zero_param_desc tensors[TENSORS + 1];
    int count;
    describe(tensors, &count);
    if (deviation && deviation->register_other)
        deviation->register_other(tensors, &count);
    zero_result r = ZERO_OK;
    for (int g = 0; !r && g < 2; g++)
        r = zero_add_group(z, NULL, NULL);
    for (int p = 0; !r && p < count; p++)
        r = zero_add_param(z, NULL, &tensors[p]);
    return r;
}

static zero_result micro_batch(zero_ctx *z, int i, const struct deviation *deviation)
{
    static const zero_unit up[] = {0, 1, 2, 3, -1}, down[] = {3, 2, 1, 0, -1};
    const bool other = deviation && deviation->other_order;
    const zero_unit *forward = other ? deviation->forward : up;
    const zero_unit *backward = other ? deviation->backward : down;
    zero_result r = zero_micro_begin(z, i, NULL);
    for (; !r && *forward >= 0; forward++) {
        r = zero_gather(z, *forward, NULL);
        r = r ? r : zero_release(z, *forward, NULL);
    }
    for (; !r && *backward >= 0; backward++) {
        r = zero_gather(z, *backward, NULL);
        r = r ? r : zero_grad_open(z, *backward, NULL);
        r = r ? r : zero_grad_done(z, *backward, NULL);
        r = r ? r : zero_release(z, *backward, NULL);
    }
    const char *metric = deviation && deviation->metric ? deviation->metric : "loss";
    return r ? r : zero_metric(z, metric, i);
}

static zero_result train(zero_ctx *z, const struct deviation *deviation)
{
    zero_hyper hyper[2] = {{1e-3, 0.9, 0.99, 1e-8, 0}, {1e-3, 0.9, 0.99, 1e-8, 0.1}};
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = 2;
    args.max_norm = 1;
    if (deviation && deviation->other_hyper)
        hyper[1] = deviation->hyper;
    if (deviation && deviation->scale != 0)
        args.scale = deviation->scale;
    if (deviation && deviation->max_norm != 0)
        args.max_norm = deviation->max_norm;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < zero_micro_count(z); i++)
        r = micro_batch(z, i, deviation);
    return r ? r : zero_step(z, &args, NULL);
}

/** A life in which the odd rank deviates. */
static zero_result live(struct team_rank *rank, const struct job *job)
{
    const bool odd = rank->rank == job->odd;
    const struct deviation *deviation = odd ? job->deviation : NULL;
    if (deviation && deviation->configure)
        deviation->configure(&rank->config);
    zero_result r = zero_open(&rank->z, &rank->config);
    r = r ? r : add_model(rank->z, deviation);
    r = r ? r : zero_commit(rank->z);
    const int steps = deviation ? 4 - deviation->steps_less : 4;
    for (int s = 0; !r && s < steps; s++)
        r = train(rank->z, s >= 2 ? deviation : NULL);
    zero_result (*call)(zero_ctx * z) = odd ? job->deviation->odd_call : job->deviation->even_call;
    if (!r && call)
        r = call(rank->z);
    return r ? r : zero_barrier(rank->z);
}

/** Keeps the context until every rank has its error: a rank that leaves saves none. */
static bool live_and_stay(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const int r = rank->rank;
    const double begin = base_clock_s();
    rank->config.stage = job->stage;
    rank->config.gather = "copy"; // a gather that moves nothing is compared with none
    rank->config.micro_batches = MICRO_BATCHES;
    rank->config.open_units = 1;
    rank->config.prefetch_units = 1;
    rank->config.timeout_s = 60;
    job->result[r] = live(rank, job);
    job->seconds[r] = base_clock_s() - begin;
    snprintf(job->message[r], sizeof job->message[r], "%s", zero_last_error(rank->z));
    atomic_fetch_add(&job->told, 1);
    for (int waited = 0; waited < 40000 && atomic_load(&job->told) < rank->world; waited++)
        usleep(1000);
    return true;
}

static void run_deviation(const struct deviation *deviation, int world, int odd, int stage)
{
    struct job job = {.deviation = deviation, .odd = odd, .stage = stage};
    assert_true(team_run("threads", world, live_and_stay, &job));
    for (int r = 0; r < world; r++) {
        if (job.result[r] != deviation->result || !strstr(job.message[r], deviation->says))
            fail_msg("%s by rank %d of %d, stage %d: rank %d has %d: %s", deviation->name, odd,
                     world, stage, r, job.result[r], job.message[r]);
        if (job.seconds[r] > 30)
            fail_msg("%s by rank %d of %d, stage %d: rank %d was told after %.1f s",
                     deviation->name, odd, world, stage, r, job.seconds[r]);
    }
}

/** Runs them at every stage from the one at which they matter, by different ranks. */
static void run_at_stages(const struct deviation *deviations, int count)
{
    for (int i = 0; i < count; i++)
        for (int stage = deviations[i].stage_from; stage <= 3; stage++) {
            const int world = 2 + (i + stage) % 2;
            run_deviation(&deviations[i], world, (i + stage / 2) % world, stage);
        }
}

/** The case itself isn't what fails. */
static void the_same_calls_are_no_divergence(void **state)
{
    (void)state;
    const struct deviation none = {.name = "nothing", .result = ZERO_OK, .says = ""};
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 2; world <= 3; world++)
            run_deviation(&none, world, 0, stage);
}

/* ------------------------------------------------------------------ settings */

static void set_micro_batches(zero_config *config)
{
    config->micro_batches = MICRO_BATCHES + 1;
}

static void set_comm_dtype(zero_config *config)
{
    config->comm_dtype = ZERO_BF16;
}

static void set_moments(zero_config *config)
{
    config->moments = "bf16";
}

static void set_stage(zero_config *config)
{
    config->stage = config->stage ? config->stage - 1 : 1;
}

static void set_prefetch(zero_config *config)
{
    config->prefetch_units = 2;
}

static void set_open(zero_config *config)
{
    config->open_units = 3;
}

static void set_persist(zero_config *config)
{
    config->persist_numel = ZERO_OFF;
}

static void set_live(zero_config *config)
{
    config->live_bytes = 1;
}

static void set_seed(zero_config *config)
{
    config->seed = 1;
}

static void set_nonfinite(zero_config *config)
{
    config->nonfinite = ZERO_NONFINITE_SKIP;
}

static void set_loss_scale(zero_config *config)
{
    config->loss_scale = "8";
}

static void set_verify_micro(zero_config *config)
{
    config->verify_micro = 1;
}

static void set_paranoid(zero_config *config)
{
    config->paranoid = 1;
}

static void set_reduction(zero_config *config)
{
    config->reduction = "local";
}

static void set_gather(zero_config *config)
{
    config->gather = "shared";
}

static void set_sum_group(zero_config *config)
{
    config->sum_group = 2;
}

static void settings_are_compared(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "micro_batches", .configure = set_micro_batches, .says = "micro_batches"},
        {.name = "stage", .configure = set_stage, .says = "stage"},
        {.name = "prefetch_units", .configure = set_prefetch, .says = "prefetch_units"},
        {.name = "open_units", .configure = set_open, .says = "open_units"},
        {.name = "persist_numel", .configure = set_persist, .says = "persist_numel"},
        {.name = "live_bytes", .configure = set_live, .says = "live_bytes"},
        {.name = "seed", .configure = set_seed, .says = "seed"},
        {.name = "comm_dtype", .configure = set_comm_dtype, .says = "bf16"},
        {.name = "moments", .configure = set_moments, .says = "moments"},
        {.name = "nonfinite", .configure = set_nonfinite, .says = "nonfinite"},
        {.name = "loss_scale", .configure = set_loss_scale, .says = "loss_scale"},
        {.name = "paranoid", .configure = set_paranoid, .says = "paranoid"},
        {.name = "verify_micro", .configure = set_verify_micro, .says = "verify_micro"},
        {.name = "reduction", .configure = set_reduction, .says = "local"},
        {.name = "gather", .configure = set_gather, .says = "shared"},
        {.name = "sum_group", .configure = set_sum_group, .says = "sum_group"},
    };
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_DIVERGED;
        run_deviation(&deviation, 2 + (int)i % 2, (int)i % 2, (int)i % 4);
    }
}

/* ------------------------------------------------------------------ models */

static void other_name(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[2].name = "other";
}

static void other_grad_dtype(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[3].grad_dtype = ZERO_BF16;
}

static void other_dtype(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[2].dtype = ZERO_BF16;
}

static void other_shape(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[2].shape[1]++;
}

static void same_size(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[2].ndim = 1;
    tensors[2].shape[0] *= tensors[2].shape[1];
    tensors[2].shape[1] = 0;
}

static void other_unit(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[4].unit = 1;
}

static void other_group(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[2].group = 1;
}

static void one_more(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)tensors;
    *count = TENSORS + 1;
}

static void one_less(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)tensors;
    *count = TENSORS - 1;
}

static void swapped(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    const zero_param_desc first = tensors[1];
    tensors[1] = tensors[2];
    tensors[2] = first;
}

static void models_are_compared(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "another name", .register_other = other_name, .says = "its name is "},
        {.name = "another grad_dtype", .register_other = other_grad_dtype, .says = "tensor 3 (d"},
        {.name = "another dtype", .register_other = other_dtype, .says = "its dtype is "},
        {.name = "another shape", .register_other = other_shape, .says = "its shape is ("},
        {.name = "another ndim", .register_other = same_size, .says = ",) on rank "},
        {.name = "another unit", .register_other = other_unit, .says = "its unit is "},
        {.name = "another group", .register_other = other_group, .says = "its group is "},
        {.name = "a tensor more", .register_other = one_more, .says = "tensors"},
        {.name = "a tensor less", .register_other = one_less, .says = "tensors"},
        {.name = "another order", .register_other = swapped, .says = "tensor 1"},
    };
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_DIVERGED;
        run_deviation(&deviation, 2 + (int)i % 2, (int)i % 2, (int)i % 4);
    }
}

static void no_tensors(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)tensors;
    *count = 0;
}

static void a_gap(zero_param_desc tensors[TENSORS + 1], int *count)
{
    (void)count;
    tensors[3].unit = 0; // unit 3 has no tensor, unit 4 has
    tensors[4].unit = 4;
}

/** A model that is wrong by itself, on one rank only: the others don't wait for it. */
static void a_model_that_is_refused_is_told(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "no tensors", .register_other = no_tensors, .says = "no tensor"},
        {.name = "a gap", .register_other = a_gap, .says = "unit 3 has no tensor"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_INVALID;
        run_deviation(&deviation, 2 + (int)i, (int)i, 3);
    }
}

/* ------------------------------------------------------------------ steps */

static void arguments_of_a_step_are_compared(void **state)
{
    (void)state;
    const zero_hyper usual = {1e-3, 0.9, 0.99, 1e-8, 0.1};
    static const char *const says[] = {
        "lr of group group1 is",  "beta1 of group group1 is 0.",     "beta2 of group group1 is",
        "eps of group group1 is", "weight_decay of group group1 is", "scale is ",
        "max_norm is ",           "metrics have other names"};
    struct deviation deviations[8];
    for (int i = 0; i < 8; i++)
        deviations[i] = (struct deviation){.name = "hyper-parameters",
                                           .hyper = usual,
                                           .other_hyper = i < 5,
                                           .result = ZERO_E_DIVERGED,
                                           .says = says[i]};
    deviations[0].hyper.lr = 1.0000001e-3;
    deviations[1].hyper.beta1 = 0.8;
    deviations[2].hyper.beta2 = 0.999;
    deviations[3].hyper.eps = 1e-7;
    deviations[4].hyper.weight_decay = 0;
    deviations[5].scale = 0.5;
    deviations[6].max_norm = 2;
    deviations[7].metric = "less";
    for (int i = 0; i < 8; i++)
        run_deviation(&deviations[i], 2 + i % 2, i % 2, i % 4);
}

static void orders_are_compared(void **state)
{
    (void)state;
#define DOWN                                                                                       \
    {                                                                                              \
        3, 2, 1, 0, -1                                                                             \
    }
    const struct deviation deviations[] = {
        {.name = "another gather", .forward = {0, 1, 1, 3, -1}, .backward = DOWN, .stage_from = 3},
        {.name = "a gather less", .forward = {0, 1, 3, -1}, .backward = DOWN, .stage_from = 3},
        {.name = "a gather more",
         .forward = {0, 1, 2, 3, 0, -1},
         .backward = DOWN,
         .stage_from = 3},
        {.name = "no gathers", .forward = {-1}, .backward = DOWN, .stage_from = 3},
        {.name = "swapped gathers", .forward = {1, 0, 2, 3, -1}, .backward = DOWN, .stage_from = 3},
        {.name = "swapped gradients", .forward = {0, 1, 2, 3, -1}, .backward = {3, 1, 2, 0, -1}},
        {.name = "other way round", .forward = {0, 1, 2, 3, -1}, .backward = {0, 1, 2, 3, -1}},
    };
#undef DOWN
    for (int i = 0; i < 7; i++) {
        struct deviation deviation = deviations[i];
        deviation.other_order = true;
        deviation.result = ZERO_E_DIVERGED;
        deviation.says = "unit";
        run_at_stages(&deviation, 1);
        deviation.stage_from = 3; // by every rank
        for (int odd = 0; odd < 3; odd++)
            run_deviation(&deviation, 3, odd, 3);
    }
}

static void a_step_less_is_told(void **state)
{
    (void)state;
    const struct deviation deviation = {
        .name = "a step less", .steps_less = 1, .result = ZERO_E_DIVERGED, .says = "barrier"};
    run_at_stages(&deviation, 1);
}

/* ------------------------------------------------------------------ between steps */

static zero_result call_barrier(zero_ctx *z)
{
    return zero_barrier(z);
}

static zero_result call_fingerprint(zero_ctx *z)
{
    uint8_t digest[16];
    return zero_fingerprint(z, digest);
}

static zero_result call_sum(zero_ctx *z)
{
    double values[2] = {1, 2};
    return zero_allreduce(z, values, 2, ZERO_SUM);
}

static zero_result call_max(zero_ctx *z)
{
    double values[2] = {1, 2};
    return zero_allreduce(z, values, 2, ZERO_MAX);
}

static zero_result call_shorter_sum(zero_ctx *z)
{
    double value = 1;
    return zero_allreduce(z, &value, 1, ZERO_SUM);
}

static zero_result call_import(zero_ctx *z)
{
    return zero_import(z, "/nowhere", NULL);
}

static zero_result call_micro_batch(zero_ctx *z)
{
    return micro_batch(z, 0, NULL);
}

static zero_result call_gather_1(zero_ctx *z)
{
    const zero_result r = zero_gather(z, 1, NULL);
    return r ? r : zero_release(z, 1, NULL);
}

static zero_result call_gather_2(zero_ctx *z)
{
    const zero_result r = zero_gather(z, 2, NULL);
    return r ? r : zero_release(z, 2, NULL);
}

static zero_result call_abort(zero_ctx *z)
{
    zero_abort(z, "the disk is on fire");
    return ZERO_OK;
}

static void calls_between_steps_are_compared(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "fingerprint, barrier", .odd_call = call_fingerprint, .even_call = call_barrier},
        {.name = "sum, maximum", .odd_call = call_sum, .even_call = call_max},
        {.name = "two values, one", .odd_call = call_sum, .even_call = call_shorter_sum},
        {.name = "import, nothing", .odd_call = call_import},
        {.name = "fingerprint, import", .odd_call = call_fingerprint, .even_call = call_import},
        {.name = "a micro-batch, nothing", .odd_call = call_micro_batch},
        {.name = "nothing, a micro-batch", .even_call = call_micro_batch},
        {.name = "a barrier more", .odd_call = call_barrier, .even_call = call_sum},
        {.name = "gathers", .odd_call = call_gather_1, .even_call = call_gather_2, .stage_from = 3},
        {.name = "a gather, nothing", .odd_call = call_gather_1, .stage_from = 3},
    };
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_DIVERGED;
        deviation.says = "called";
        run_at_stages(&deviation, 1);
    }
}

static zero_result evaluate(zero_ctx *z, int32_t count, const char *metric)
{
    zero_result r = zero_eval_begin(z, count);
    for (int i = 0; !r && i < zero_micro_count(z); i++) {
        r = zero_micro_begin(z, i, NULL);
        r = r ? r : zero_metric(z, metric, i);
    }
    return r ? r : zero_eval_end(z);
}

static zero_result call_evaluate_3(zero_ctx *z)
{
    return evaluate(z, 3, "loss");
}

static zero_result call_evaluate_4(zero_ctx *z)
{
    return evaluate(z, 4, "loss");
}

static zero_result call_evaluate_else(zero_ctx *z)
{
    return evaluate(z, 3, "less");
}

static void evaluations_are_compared(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "counts",
         .odd_call = call_evaluate_3,
         .even_call = call_evaluate_4,
         .says = "evaluations of"},
        {.name = "metrics",
         .odd_call = call_evaluate_3,
         .even_call = call_evaluate_else,
         .says = "different metrics"},
        {.name = "nothing", .odd_call = call_evaluate_3, .says = "called"},
    };
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_DIVERGED;
        run_at_stages(&deviation, 1);
    }
}

static void an_abort_is_everybody_s(void **state)
{
    (void)state;
    const struct deviation deviations[] = {
        {.name = "abort, nothing", .odd_call = call_abort},
        {.name = "abort, gradients", .odd_call = call_abort, .even_call = call_micro_batch},
        {.name = "abort, fingerprint", .odd_call = call_abort, .even_call = call_fingerprint},
    };
    for (size_t i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        struct deviation deviation = deviations[i];
        deviation.result = ZERO_E_ABORTED;
        deviation.says = "the disk is on fire";
        run_at_stages(&deviation, 1);
    }
}

/** One rank goes home early; the others come to know at the next call that needs it. */
static bool live_and_leave(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const int r = rank->rank;
    rank->config.stage = job->stage;
    rank->config.micro_batches = MICRO_BATCHES;
    TEAM_CHECK(team_open(rank));
    TEAM_OK(rank, add_model(rank->z, NULL));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, train(rank->z, NULL));
    if (r == job->odd)
        return true;
    const double begin = base_clock_s();
    zero_result result = ZERO_OK;
    for (int s = 0; !result && s < 3; s++)
        result = train(rank->z, NULL);
    TEAM_CHECK(base_clock_s() - begin < 10);
    TEAM_CHECK(result == ZERO_E_PEER);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "has closed"));
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_PEER);
    return true;
}

static void a_rank_that_leaves_is_missed(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 2; world <= 3; world++) {
            struct job job = {.odd = stage % world, .stage = stage};
            assert_true(team_run("threads", world, live_and_leave, &job));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_calls_are_no_divergence),
        cmocka_unit_test(settings_are_compared),
        cmocka_unit_test(models_are_compared),
        cmocka_unit_test(a_model_that_is_refused_is_told),
        cmocka_unit_test(arguments_of_a_step_are_compared),
        cmocka_unit_test(orders_are_compared),
        cmocka_unit_test(a_step_less_is_told),
        cmocka_unit_test(calls_between_steps_are_compared),
        cmocka_unit_test(evaluations_are_compared),
        cmocka_unit_test(an_abort_is_everybody_s),
        cmocka_unit_test(a_rank_that_leaves_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
