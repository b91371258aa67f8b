/* Groups that are not updated for some steps, tensors that never are: what they hold stays, what
 * others do is as if their gradients were zeros, and nothing of a unit travels whose every tensor
 * is frozen. */
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 4, UNITS = 5, TENSORS = 9, ELEMENTS = 5000 };

/** How a group is kept from changing. */
enum way {
    FROZEN,     /**< zero_set_frozen(), with gradients full of NaN */
    STOPPED,    /**< no learning rate, no decay, and gradients of zeros */
    REGISTERED, /**< its tensors are registered frozen */
};

struct job {
    zero_dtype dtype, grad_dtype;
    int stage, world;
    const char *gather;
    bool paranoid;
    bool together; /**< small tensors are in one bucket with large ones */
    enum way way;
    zero_group group; /**< the one that doesn't change */
    double norm[STEPS];
    uint8_t digest[MOST_RANKS][16];
    uint32_t first[TENSORS][3][ELEMENTS]; /**< working copies before training, as bits, */
    uint32_t last[TENSORS][3][ELEMENTS];  /**< and after */
};

static int slice_in(const struct toy_tensor *tensor, zero_unit unit)
{
    const int slice = unit - tensor->unit;
    return slice < tensor->slices ? slice : -1;
}

/** Rank 0 copies all weights. */
static bool copy_weights(struct team_rank *rank, const struct toy *toy,
                         uint32_t weights[TENSORS][3][ELEMENTS])
{
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        for (int p = 0; p < TENSORS && rank->rank == 0; p++) {
            const struct toy_tensor *tensor = &toy->tensors[p];
            const int slice = slice_in(tensor, unit);
            for (uint64_t k = 0; slice >= 0 && k < tensor->numel; k++) {
                const float value =
                    toy_element(toy_dtype(toy, tensor), zero_param_ptr(rank->z, p, slice), k);
                memcpy(&weights[p][slice][k], &value, sizeof value);
            }
        }
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    return true;
}

/** A value of the gradient, exact in bf16. */
static float gradient_of(const zero_micro *micro, int p, uint64_t k)
{
    const int phase = (int)((micro->index * 5 + micro->step * 3 + k * 7 + (uint64_t)p) % 13);
    return (float)(phase - 6) * 0.125f;
}

static void put(zero_dtype dtype, void *array, uint64_t k, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == ZERO_F32)
        ((float *)array)[k] = value;
    else
        ((uint16_t *)array)[k] = (uint16_t)(bits >> 16);
}

/** Whether every tensor of the unit is of the group that doesn't change. */
static bool rests(const struct job *job, zero_unit unit)
{
    for (int p = 0; p < TENSORS; p++)
        if (slice_in(&toy_odd.tensors[p], unit) >= 0 && toy_odd.tensors[p].group != job->group)
            return false;
    return true;
}

static bool micro_batch(struct team_rank *rank, const struct toy *toy, const struct job *job, int i)
{
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    for (zero_unit unit = UNITS - 1; unit >= 0; unit--) {
        const zero_result opened = zero_grad_open_raw(rank->z, unit, NULL);
        if (job->way == REGISTERED && rests(job, unit)) {
            TEAM_CHECK(opened == ZERO_E_STATE);
            TEAM_CHECK(strstr(zero_last_error(rank->z), "registered frozen"));
            TEAM_CHECK(zero_grad_none(rank->z, unit, NULL) == ZERO_E_STATE);
            continue;
        }
        TEAM_OK(rank, opened);
        for (int p = 0; p < TENSORS; p++) {
            const struct toy_tensor *tensor = &toy->tensors[p];
            const int slice = slice_in(tensor, unit);
            const bool still = tensor->group == job->group;
            if (still && job->way == REGISTERED) {
                TEAM_CHECK(!zero_grad_ptr(rank->z, p, slice));
                continue;
            }
            for (uint64_t k = 0; slice >= 0 && k < tensor->numel; k++)
                put(toy_grad_dtype(toy, tensor), zero_grad_ptr(rank->z, p, slice), k,
                    !still                ? gradient_of(&micro, p, k)
                    : job->way == STOPPED ? 0.0f
                                          : NAN);
        }
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy = toy_odd;
    toy.dtype = job->dtype;
    toy.grad_dtype = job->grad_dtype;
    for (int p = 0; p < TENSORS && job->way == REGISTERED; p++)
        toy.frozen |= (unsigned)(toy.tensors[p].group == job->group) << p;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.paranoid = job->paranoid;
    rank->config.persist_numel = job->together ? ZERO_OFF : 0;
    if (!toy_open(rank, &toy) || !copy_weights(rank, &toy, job->first))
        return false;
    if (job->way == FROZEN)
        TEAM_OK(rank, zero_set_frozen(rank->z, job->group, 1));
    zero_hyper hyper[] = {{1e-2, 0.9, 0.95, 1e-8, 0.1}, {3e-2, 0.8, 0.99, 1e-6, 0.01}};
    if (job->way == STOPPED)
        hyper[job->group].lr = hyper[job->group].weight_decay = 0;
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = 2;
    args.max_norm = 0.5;
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!micro_batch(rank, &toy, job, i))
                return false;
        zero_step_result info = {.struct_size = sizeof info};
        TEAM_OK(rank, zero_step(rank->z, &args, NULL));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(!info.skipped && info.bad_param == -1);
        if (rank->rank == 0)
            job->norm[s] = info.norm;
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return copy_weights(rank, &toy, job->last);
}

static void run(struct job *job)
{
    if (!team_run(team_threads(job->world), job->world, train, job))
        fail_msg("%d ranks, stage %d, %s, group %d", job->world, job->stage, job->gather,
                 job->group);
}

static void others_train_as_if_it_had_no_gradient(void **state)
{
    (void)state;
    static struct job frozen, stopped;
    for (int variant = 0; variant < 4; variant++) {
        stopped = (struct job){.dtype = variant & 1 ? ZERO_BF16 : ZERO_F32,
                               .grad_dtype = variant == 3 ? ZERO_F32 : ZERO_DTYPE_DEFAULT,
                               .world = 1,
                               .gather = "copy",
                               .way = STOPPED,
                               .group = variant >> 1};
        run(&stopped);
        uint8_t digest[16];
        for (int i = 0; i < 14; i++) {
            const int turn = i % 7;
            if (turn > 0 && !test_takes(variant + i))
                continue;
            frozen = stopped;
            frozen.way = i < 7 ? FROZEN : REGISTERED;
            frozen.paranoid = i % 3 == 1;
            frozen.together = i % 2;
            frozen.stage = turn < 4 ? turn : turn - 3;
            frozen.gather = turn > 3 ? "shared" : turn == 3 && i > 7 ? "slots" : "copy";
            frozen.world = 1 + (i + variant) % MOST_RANKS;
            run(&frozen);
            assert_memory_equal(frozen.norm, stopped.norm, sizeof frozen.norm);
            assert_memory_equal(frozen.last, stopped.last, sizeof frozen.last);
            for (int p = 0; p < TENSORS; p++) {
                const bool same =
                    memcmp(frozen.first[p], frozen.last[p], sizeof frozen.first[p]) == 0;
                assert_int_equal(same, toy_odd.tensors[p].group == frozen.group);
            }
            if (turn == 0)
                memcpy(digest, frozen.digest[0], sizeof digest);
            for (int r = 0; r < frozen.world; r++)
                assert_memory_equal(frozen.digest[r], digest, sizeof digest);
        }
    }
}

/* ------------------------------------------------------------------ alone */

/** One tensor of group 1 in unit 0 and one of group 0 in unit 1, three gradients alike a step. */
static bool open_pair(struct team_rank *rank, int stage, const char *gather)
{
    rank->config.stage = stage;
    rank->config.gather = gather;
    rank->config.micro_batches = 3;
    if (!team_open(rank))
        return false;
    for (int g = 0; g < 2; g++)
        TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    for (int p = 0; p < 2; p++) {
        zero_param_desc desc = zero_param_default();
        desc.name = p ? "tail" : "head";
        desc.ndim = 1;
        desc.shape[0] = 3000;
        desc.unit = p;
        desc.group = 1 - p;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static const zero_hyper pair_hyper[] = {{1e-2, 0.9, 0.95, 1e-8, 0}, {1e-2, 0.9, 0.95, 1e-8, 0}};

static zero_result pair_update(struct team_rank *rank)
{
    zero_step_args args = zero_step_args_default();
    args.hyper = pair_hyper;
    args.group_count = 2;
    return zero_step(rank->z, &args, NULL);
}

/** A step with gradients of 1 for the units in `given`, a bit each. */
static bool pair_step(struct team_rank *rank, unsigned given)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; unit < 2; unit++) {
            if (!(given >> unit & 1))
                continue;
            TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
            for (int k = 0; k < 3000; k++)
                ((float *)zero_grad_ptr(rank->z, unit, 0))[k] += 1;
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        }
    }
    TEAM_OK(rank, pair_update(rank));
    return true;
}

/** AdamW's step with a gradient of 3 that came `seen` times, in update `updates` of the context. */
static double closed_form(int seen, int updates)
{
    const double m = 3 * (1 - pow(0.9, seen)), v = 9 * (1 - pow(0.95, seen));
    return 1e-2 * m / (1 - pow(0.9, updates)) / (sqrt(v / (1 - pow(0.95, updates))) + 1e-8);
}

/** The weight that unit 0 has everywhere. */
static bool pair_weight(struct team_rank *rank, double expected)
{
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    const float *weight = zero_param_ptr(rank->z, 0, 0);
    for (int k = 0; k < 3000; k++)
        TEAM_CHECK(fabs((double)weight[k] - expected) < 1e-6 * fabs(expected));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    return true;
}

/** Moments wait; the powers of beta in the bias correction go on with the context's updates. */
static bool go_on(struct team_rank *rank, void *user)
{
    const int *stage = user;
    double weight = 0;
    if (!open_pair(rank, *stage, "auto"))
        return false;
    for (int n = 1; n <= 3; n++) {
        if (!pair_step(rank, 3))
            return false;
        weight -= closed_form(n, n);
    }
    if (!pair_weight(rank, weight))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
    // Handed over and ignored, or not even that.
    if (!pair_step(rank, 3) || !pair_step(rank, 2) || !pair_weight(rank, weight))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    for (int n = 4; n <= 6; n++) {
        if (!pair_step(rank, 3))
            return false;
        weight -= closed_form(n, n + 2);
    }
    return pair_weight(rank, weight);
}

static void training_goes_on_with_its_state(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= 3; world++)
            if (!team_run(team_threads(world), world, go_on, &stage))
                fail_msg("%d ranks, stage %d", world, stage);
}

static uint64_t travelled(const struct team_rank *rank)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    zero_stats(rank->z, &stats);
    return stats.reduced_bytes + stats.gathered_bytes;
}

/** A unit that rests moves no bytes; one that does not, does. */
static bool count_bytes(struct team_rank *rank, void *user)
{
    const int *stage = user;
    if (!open_pair(rank, *stage, "copy") || !pair_step(rank, 3))
        return false;
    for (zero_group g = 0; g < 2; g++)
        TEAM_OK(rank, zero_set_frozen(rank->z, g, 1));
    if (!pair_step(rank, 3) || !pair_step(rank, 0)) // gathers what the first step has changed
        return false;
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    const uint64_t before = travelled(rank);
    if (!pair_step(rank, 3) || !pair_step(rank, 0))
        return false;
    // Nothing has changed: at stage 3 it is still in its slot.
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    TEAM_CHECK(travelled(rank) == before);
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    if (!pair_step(rank, 3))
        return false;
    TEAM_OK(rank, zero_gather(rank->z, 0, NULL));
    TEAM_OK(rank, zero_release(rank->z, 0, NULL));
    TEAM_CHECK(travelled(rank) > before);
    return true;
}

static void what_rests_does_not_travel(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        if (!team_run("threads", 3, count_bytes, &stage))
            fail_msg("stage %d", stage);
}

/* ------------------------------------------------------------------ all of a model */

/** Bytes of the plan's row. */
static size_t planned(const zero_ctx *z, const char *purpose)
{
    const char *row = strstr(zero_plan_text(z), purpose);
    const char *host = row ? strstr(row, " host ") : NULL;
    return host ? (size_t)strtoull(host + 6, NULL, 10) : SIZE_MAX;
}

struct whole {
    int stage;
    const char *gather;
    char path[32];
};

/** A model that is only read: a teacher, a reference. */
static bool only_read(struct team_rank *rank, void *user)
{
    const struct whole *job = user;
    struct toy toy = toy_odd;
    toy.dtype = ZERO_BF16;
    toy.frozen = (1u << TENSORS) - 1;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    if (!toy_open(rank, &toy))
        return false;
    zero_ctx *z = rank->z;
    TEAM_CHECK(planned(z, "  gradients ") == 0 && planned(z, "  gradient sums") == 0);
    TEAM_CHECK(planned(z, "  moments") == 0 && planned(z, "  master weights") == 0);
    uint8_t first[16], written[16], last[16];
    TEAM_OK(rank, zero_fingerprint(z, first));
    for (int i = 0; i < zero_micro_count(z); i++)
        TEAM_OK(rank, zero_micro_begin(z, i, NULL));
    TEAM_OK(rank, toy_update(rank, &toy));
    TEAM_OK(rank, zero_export(z, job->path));
    TEAM_OK(rank, zero_fingerprint(z, last));
    TEAM_CHECK(memcmp(first, last, sizeof first) != 0); // a step later
    const float values[] = {0.5f, 0.25f};
    float back[2];
    TEAM_OK(rank, zero_param_write(z, 6, 0, 1023, 2, values));
    TEAM_OK(rank, zero_param_read(z, 6, 0, 1023, 2, back));
    TEAM_CHECK(memcmp(values, back, sizeof values) == 0);
    TEAM_OK(rank, zero_fingerprint(z, written));
    TEAM_CHECK(memcmp(written, last, sizeof last) != 0);
    TEAM_CHECK(zero_import(z, job->path, NULL) == ZERO_OK);
    TEAM_OK(rank, zero_fingerprint(z, first));
    TEAM_CHECK(memcmp(first, last, sizeof last) == 0);
    return true;
}

static void a_model_can_be_read_only(void **state)
{
    (void)state;
    struct whole job = {.path = "/tmp/frozen.XXXXXX"};
    const int file = mkstemp(job.path);
    assert_true(file >= 0);
    close(file);
    for (int turn = 0; turn < 7; turn++) {
        job.stage = turn < 4 ? turn : turn - 3;
        job.gather = turn < 4 ? "copy" : "shared";
        const int world = 1 + turn % 3;
        if (!team_run(team_threads(world), world, only_read, &job))
            fail_msg("%d ranks, stage %d, %s", world, job.stage, job.gather);
    }
    unlink(job.path);
}

/* ------------------------------------------------------------------ misuse */

static bool misuse(struct team_rank *rank, void *user)
{
    (void)user;
    if (!open_pair(rank, 2, "copy"))
        return false;
    zero_ctx *z = rank->z;
    uint8_t before[16], frozen[16], after[16];
    TEAM_OK(rank, zero_fingerprint(z, before));
    TEAM_CHECK(zero_set_frozen(z, 2, 1) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(z), "group 2") && strstr(zero_last_error(z), "there are 2"));
    TEAM_CHECK(zero_set_frozen(z, -1, 1) == ZERO_E_INVALID);
    TEAM_CHECK(zero_set_frozen(NULL, 0, 1) == ZERO_E_INVALID);
    TEAM_OK(rank, zero_set_frozen(z, 1, 7));
    TEAM_OK(rank, zero_fingerprint(z, frozen));
    TEAM_CHECK(memcmp(before, frozen, sizeof before) != 0);
    TEAM_OK(rank, zero_micro_begin(z, 0, NULL));
    TEAM_CHECK(zero_set_frozen(z, 1, 0) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(z), "inside a step"));
    // The unit that trains is asked for, the other one is not.
    TEAM_CHECK(zero_micro_begin(z, 1, NULL) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(z), "unit 1"));
    for (int i = 0; i < zero_micro_count(z); i++) {
        if (i > 0)
            TEAM_OK(rank, zero_micro_begin(z, i, NULL));
        TEAM_OK(rank, zero_grad_none(z, 1, NULL));
    }
    TEAM_OK(rank, pair_update(rank));
    TEAM_OK(rank, zero_set_frozen(z, 1, 0));
    TEAM_OK(rank, zero_fingerprint(z, after));
    TEAM_CHECK(memcmp(after, frozen, sizeof after) != 0);
    TEAM_OK(rank, zero_barrier(z));
    TEAM_CHECK(zero_set_frozen(z, 1, rank->rank) == ZERO_E_DIVERGED);
    TEAM_CHECK(strstr(zero_last_error(z), "ranks 0 and 1"));
    TEAM_CHECK(zero_barrier(z) == ZERO_E_DIVERGED);
    return true;
}

static void misuse_is_named(void **state)
{
    (void)state;
    assert_true(team_run("threads", 2, misuse, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_train_as_if_it_had_no_gradient),
        cmocka_unit_test(training_goes_on_with_its_state),
        cmocka_unit_test(what_rests_does_not_travel),
        cmocka_unit_test(a_model_can_be_read_only),
        cmocka_unit_test(misuse_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
