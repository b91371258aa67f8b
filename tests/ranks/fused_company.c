/* zero_step_in_backward() in company: with every dtype, precision, optimizer and loss scale, units
 * without a gradient and frozen parts, in memory or in files. A fused step ends in the bits of a
 * plain one. A call that is refused leaves the step as it was. */
#include "tests/ranks/toy.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <zero/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, STEPS = 6, PAUSE = 2, RESUME = 4 };

/** What is part of the numerics. */
struct model {
    const char *name;
    zero_dtype dtype, grad_dtype, comm_dtype;
    const char *master, *moments, *loss_scale;
    const char *optimizers[2]; /**< of the groups; NULL: the default */
    int32_t nesterov;          /**< of the first group */
    int32_t micro_batches, sum_group;
    unsigned frozen; /**< a bit a tensor: registered so */
    int paused;      /**< so many groups, the last ones, are frozen for some steps */
    bool absent;
};

/** Tensors of toy_odd: all of unit 3, and parts of units 0 and 1 to 3. */
enum { SMALL = 1 << 5, TIED = 1 << 7, STACKED = 1 << 8 };

static const struct model models[] = {
    {"f16", .dtype = ZERO_F16, .loss_scale = "off", .micro_batches = 7},
    {"f16, scaled", .dtype = ZERO_F16, .loss_scale = "1024", .micro_batches = 5, .absent = true},
    {"no masters", .dtype = ZERO_BF16, .master = "none", .micro_batches = 7, .paused = 1},
    {"bf16 moments", .dtype = ZERO_F32, .moments = "bf16", .micro_batches = 3, .frozen = TIED},
    {"only 16 bits", ZERO_F16, ZERO_BF16, ZERO_BF16, "none", "bf16", "64", .micro_batches = 7},
    {"wide gradients", ZERO_BF16, ZERO_F32, ZERO_BF16, .micro_batches = 4, .absent = true},
    {"f16 on the way", ZERO_F32, ZERO_F32, ZERO_F16, .loss_scale = "off", .micro_batches = 5},
    {"adam, sgd", .optimizers = {"adam", "sgd"}, .micro_batches = 7, .absent = true},
    {"nesterov, lion", ZERO_BF16, .optimizers = {"sgd", "lion"}, .nesterov = 1, .micro_batches = 6},
    {"adagrad, no masters", .dtype = ZERO_BF16, .master = "none",
     .optimizers = {"adagrad", "adamw"}, .micro_batches = 5, .sum_group = 2},
    {"mine", .optimizers = {"mine", "adamw"}, .micro_batches = 7, .paused = 2},
    {"mine, 16 bits", .dtype = ZERO_BF16, .master = "none", .moments = "bf16",
     .optimizers = {"mine", "mine"}, .micro_batches = 3},
    {"frozen parts", .dtype = ZERO_BF16, .micro_batches = 5, .frozen = SMALL | STACKED, .paused = 1,
     .absent = true},
};

static struct temporary directory;

struct job {
    struct model model;
    bool fused;   /**< fuses two steps of three */
    bool refused; /**< tries what is refused on its way */
    int stage;
    const char *gather;
    int32_t threads;
    bool nvme, params; /**< state is in files, and working copies are */
    double norm[STEPS];
    uint8_t digest[MOST_RANKS][16];
};

/* ------------------------------------------------------------------ an optimizer of our own */

static void own_prepare(void *user, const zero_hyper *hyper, uint64_t updates,
                        double gradient_scale, void *scalars)
{
    (void)user;
    const float values[] = {(float)(hyper->lr / (double)updates), (float)gradient_scale};
    memcpy(scalars, values, sizeof values);
}

static void own_update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    const float *s = scalars;
    for (uint64_t i = 0; i < run->count; i++) {
        run->moment[0][i] = 0.5f * run->moment[0][i] + s[1] * run->gradient[i];
        run->weight[i] -= s[0] * run->moment[0][i];
    }
}

static bool add_own(struct team_rank *rank)
{
    zero_optimizer_desc own = zero_optimizer_default();
    own.name = "mine";
    own.moments = 1;
    own.prepare = own_prepare;
    own.update = own_update;
    TEAM_OK(rank, zero_add_optimizer(rank->z, &own));
    return true;
}

/* ------------------------------------------------------------------ training */

static void configure(const struct job *job, zero_config *config)
{
    const struct model *model = &job->model;
    config->stage = job->stage;
    config->gather = job->gather;
    config->cpu_threads = job->threads;
    config->micro_batches = model->micro_batches;
    config->sum_group = model->sum_group;
    config->comm_dtype = model->comm_dtype;
    config->master = model->master;
    config->moments = model->moments;
    config->loss_scale = model->loss_scale;
    config->nonfinite = ZERO_NONFINITE_ERROR;
    if (!job->nvme)
        return;
    config->offload_optimizer = "nvme";
    config->offload_params = job->params ? "nvme" : "host";
    config->nvme_dir = directory.directory;
    config->tile_bytes = 65536;
    config->persist_numel = ZERO_OFF; // what is kept waits for zero_step()
}

/** `groups` and `toy` must outlive the commit. */
static bool open_job(struct team_rank *rank, const struct job *job, zero_group_desc groups[2],
                     struct toy *toy)
{
    const struct model *model = &job->model;
    *toy = toy_odd;
    toy->dtype = model->dtype;
    toy->grad_dtype = model->grad_dtype;
    toy->micro_batches = model->micro_batches;
    toy->frozen = model->frozen;
    toy->absent = model->absent;
    toy->unclipped = true;
    toy->groups = groups;
    for (int g = 0; g < 2; g++) {
        groups[g] = zero_group_default();
        groups[g].optimizer = model->optimizers[g];
        groups[g].nesterov = g == 0 && model->nesterov;
    }
    configure(job, &rank->config);
    if (!team_open(rank) || !add_own(rank) || !toy_register(rank, toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

/** Before a step. */
static bool pause_groups(struct team_rank *rank, const struct job *job, int step)
{
    if (step != PAUSE && step != RESUME)
        return true;
    for (zero_group g = 2 - job->model.paused; g < 2; g++)
        TEAM_OK(rank, zero_set_frozen(rank->z, g, step == PAUSE));
    return true;
}

/** What no step takes at this moment. */
static bool refuses(struct team_rank *rank, const struct toy *toy, const char *words)
{
    TEAM_CHECK(toy_fuse(rank, toy) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), words));
    return true;
}

/** Arguments that no fused step takes. */
static bool refuses_arguments(struct team_rank *rank, const struct toy *toy)
{
    struct toy clipped = *toy;
    clipped.unclipped = false;
    TEAM_CHECK(toy_fuse(rank, &clipped) == ZERO_E_INVALID);
    const zero_hyper hyper[] = {{1, 0.9, 0.95, 1e-8, 0.1}, {1, 0.8, 0.99, 1e-6, 0}};
    const zero_step_args args = zero_step_args_for(hyper, 2, INFINITY, 0);
    TEAM_CHECK(zero_step_in_backward(rank->z, &args) == ZERO_E_INVALID);
    return true;
}

/** After the last micro-batch of a fused step: it can neither be left out nor changed. */
static bool refuses_at_the_end(struct team_rank *rank, const struct toy *toy)
{
    struct toy other = *toy;
    other.micro_batches++; // another scale
    TEAM_CHECK(zero_skip_step(rank->z) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "is a fused step"));
    TEAM_CHECK(toy_update(rank, &other) == ZERO_E_INVALID);
    TEAM_CHECK(zero_set_frozen(rank->z, 0, 1) == ZERO_E_STATE);
    TEAM_CHECK(zero_set_micro_batches(rank->z, 3) == ZERO_E_STATE);
    TEAM_CHECK(zero_eval_begin(rank->z, 3) == ZERO_E_STATE);
    return refuses_arguments(rank, toy) && refuses(rank, toy, "a fused step already");
}

static bool micro_batches(struct team_rank *rank, const struct job *job, const struct toy *toy)
{
    const int last = zero_micro_count(rank->z) - 1;
    for (int i = 0; i <= last; i++) {
        if (job->refused && !refuses(rank, toy, i ? "begun" : "after 0 of"))
            return false;
        // Fused by toy_micro(), where it is not too late.
        if (!toy_micro(rank, toy, i, NULL, NULL))
            return false;
        const char *why = i < last ? "begun" : toy->fused ? "a fused step already" : "handed over";
        if (job->refused && !refuses(rank, toy, why))
            return false;
    }
    return !job->refused || !toy->fused || refuses_at_the_end(rank, toy);
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    zero_group_desc groups[2];
    struct toy toy;
    if (!open_job(rank, job, groups, &toy))
        return false;
    for (int step = 0; step < STEPS; step++) {
        toy.fused = job->fused && step % 3 != 1;
        if (!pause_groups(rank, job, step) || (job->refused && !refuses_arguments(rank, &toy)) ||
            !micro_batches(rank, job, &toy))
            return false;
        TEAM_OK(rank,
                toy.fused && step > 2 ? zero_step(rank->z, NULL, NULL) : toy_update(rank, &toy));
        zero_step_result info = {.struct_size = sizeof info};
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(info.step == (uint64_t)step + 1 && info.updates == info.step && !info.skipped);
        if (rank->rank == 0)
            job->norm[step] = info.norm;
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

static void run(struct job *job, const char *transport, int world)
{
    struct job *shared = team_shared(sizeof *shared);
    assert_non_null(shared);
    *shared = *job;
    if (!team_run(transport, world, train, shared))
        fail_msg("%s: %s, %d ranks, stage %d, %s%s", job->model.name, transport, world, job->stage,
                 job->gather, job->nvme ? ", in files" : "");
    *job = *shared;
    team_shared_free(shared, sizeof *shared);
}

static void compare(const struct job *job, const struct job *plain, int world)
{
    for (int r = 0; r < world; r++)
        if (memcmp(job->digest[r], plain->digest[0], 16) != 0)
            fail_msg("%s: rank %d of %d, stage %d, %s%s: other bits", job->model.name, r, world,
                     job->stage, job->gather, job->nvme ? ", in files" : "");
    assert_memory_equal(job->norm, plain->norm, sizeof plain->norm);
}

/** A stage, and a way of gathering. */
static void place(struct job *job, int turn)
{
    job->stage = turn % 7 < 4 ? turn % 7 : turn % 7 - 3;
    job->gather = turn % 7 < 4 ? "copy" : "shared";
}

/** At one rank everywhere, at every other number in two places of the seven in turn. */
static void sweep(const struct model *model, int *turn)
{
    struct job plain = {.model = *model, .gather = "copy"};
    run(&plain, "self", 1);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int i = 0; i < (world == 1 ? 7 : 2); i++) {
            struct job job = {.model = *model, .fused = true, .threads = 1 + i % 2};
            place(&job, (*turn)++);
            job.nvme = *turn / 2 % 2;
            job.params = job.nvme && *turn % 3 == 0 && strcmp(job.gather, "copy") == 0;
            if (!test_takes(*turn))
                continue;
            run(&job, world > 1 && i == 1 ? "shm" : team_threads(world), world);
            compare(&job, &plain, world);
        }
}

static void the_bits_are_those_of_plain_steps(void **state)
{
    (void)state;
    int turn = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        sweep(&models[m], &turn);
}

static void refusals_leave_the_step(void **state)
{
    (void)state;
    for (int turn = 0; turn < 14; turn++) {
        const int world = 1 + turn % MOST_RANKS;
        struct job plain = {.model = models[turn % 13], .gather = "copy"};
        struct job job = {.model = plain.model, .fused = turn % 3 > 0, .refused = true};
        place(&job, turn);
        run(&plain, "self", 1);
        run(&job, team_threads(world), world);
        compare(&job, &plain, world);
    }
}

/* ------------------------------------------------------------------ what has no such step */

struct refusal {
    const char *loss_scale;
    zero_nonfinite nonfinite;
    zero_dtype dtype;
    int32_t verify;
    zero_result result;
    const char *words;
    bool fused; /**< filled in: tries */
    uint8_t digest[16];
};

/** Tries in every step, and trains on without. */
static bool train_all_the_same(struct team_rank *rank, void *user)
{
    struct refusal *job = user;
    struct toy toy = toy_odd;
    toy.dtype = job->dtype;
    toy.unclipped = true;
    rank->config.loss_scale = job->loss_scale;
    rank->config.nonfinite = job->nonfinite;
    rank->config.verify_micro = job->verify;
    if (!toy_open(rank, &toy))
        return false;
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            if (!toy_micro(rank, &toy, i, NULL, NULL))
                return false;
            if (job->fused && i == zero_micro_count(rank->z) - 1) {
                TEAM_CHECK(toy_fuse(rank, &toy) == job->result);
                TEAM_CHECK(strstr(zero_last_error(rank->z), job->words));
            }
        }
        TEAM_OK(rank, toy_update(rank, &toy));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, rank->rank ? (uint8_t[16]){0} : job->digest));
    return true;
}

static void policies_that_skip_do_not_fuse(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {.dtype = ZERO_F16, .result = ZERO_E_INVALID, .words = "nonfinite=skip"},
        {"1024", .dtype = ZERO_F32, .result = ZERO_E_INVALID, .words = "nonfinite=skip"},
        {"dynamic", .dtype = ZERO_BF16, .result = ZERO_E_INVALID, .words = "nonfinite=skip"},
        {"off", ZERO_NONFINITE_SKIP, ZERO_F32, 0, ZERO_E_INVALID, .words = "nonfinite=skip"},
        {"off", ZERO_NONFINITE_ERROR, ZERO_F16, 1, ZERO_E_STATE, .words = "verify_micro"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct refusal plain = refusals[i], tries = refusals[i];
        tries.fused = true;
        assert_true(team_run("self", 1, train_all_the_same, &plain));
        assert_true(team_run("threads", 2, train_all_the_same, &tries));
        assert_memory_equal(tries.digest, plain.digest, sizeof plain.digest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_plain_steps),
        cmocka_unit_test(refusals_leave_the_step),
        cmocka_unit_test(policies_that_skip_do_not_fuse),
    };
    if (!temporary_make(&directory))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temporary_remove(&directory);
    return failed;
}
