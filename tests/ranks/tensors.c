/* Several tensors in one call: registration of stacked ones, a unit's pointers, a refresh of what
 * the caller has; and registrations that are refused, which commit remembers. */
#include "tests/ranks/team.h"

#include <zero/optimizer.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 5, LAYERS = 3, WIDE = 1300, NARROW = 64, STEPS = 3, V = 4, MOST_RANKS = 3 };

/** A trainer's own arrays: of layers one behind the other. */
struct arrays {
    float *embedding, *matrix, *bias, *frozen, *last;
};

static const struct {
    const char *name;
    uint64_t numel; /**< of all slices */
    zero_unit unit;
    int32_t slices;
} table[TENSORS] = {
    {"embedding", 2 * WIDE, 0, 1},
    {"matrix", LAYERS *WIDE, 1, LAYERS},
    {"bias", LAYERS *NARROW, 1, LAYERS},
    {"frozen", WIDE, LAYERS + 1, 1},
    {"last", NARROW, 0, 1},
};
enum { FROZEN = 3, UNITS = LAYERS + 2 };

struct job {
    int stage, paranoid;
    const char *gather;
    bool one_by_one; /**< pointers of slices instead of a unit's */
    uint8_t digest[MOST_RANKS][16];
};

static float first_value(int t, uint64_t i)
{
    return (float)((i * 37 + (uint64_t)t * 11) % 101) / 64.0f - 0.75f;
}

static bool open_model(struct team_rank *rank)
{
    rank->config.micro_batches = V;
    if (!team_open(rank))
        return false;
    float *values[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        values[t] = malloc((size_t)table[t].numel * sizeof(float));
        TEAM_CHECK(values[t] != NULL);
        for (uint64_t i = 0; i < table[t].numel; i++)
            values[t][i] = first_value(t, i);
        if (t == FROZEN) {
            zero_param_desc desc = zero_param_stacked(table[t].name, table[t].numel, table[t].unit,
                                                      table[t].slices, values[t]);
            desc.frozen = 1;
            TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
        } else {
            TEAM_OK(rank, zero_add_tensor(rank->z, table[t].name, table[t].numel, table[t].unit,
                                          table[t].slices, values[t]));
        }
    }
    TEAM_OK(rank, zero_commit(rank->z));
    for (int t = 0; t < TENSORS; t++)
        free(values[t]);
    return true;
}

/** Elements of a slice. */
static uint64_t slice_numel(int t)
{
    return table[t].numel / (uint64_t)table[t].slices;
}

/** The gradient of element `at` of a whole tensor. */
static float gradient_at(uint64_t at, float weight, const zero_micro *micro)
{
    return weight * 0.25f + (float)((at + micro->index + micro->step) % 7) / 16.0f;
}

/** A unit by the pointers of its slices. */
static bool pass_slices(struct team_rank *rank, zero_unit unit, const zero_micro *micro)
{
    TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    if (unit != LAYERS + 1)
        TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
    for (int t = 0; t < TENSORS; t++) {
        const int32_t slice = unit - table[t].unit;
        if (slice < 0 || slice >= table[t].slices)
            continue;
        const float *weight = zero_param_ptr(rank->z, t, slice);
        float *gradient = zero_grad_ptr(rank->z, t, slice);
        TEAM_CHECK(weight && !gradient == (t == FROZEN));
        for (uint64_t i = 0; gradient && i < slice_numel(t); i++)
            gradient[i] += gradient_at((uint64_t)slice * slice_numel(t) + i, weight[i], micro);
    }
    if (unit != LAYERS + 1)
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    return true;
}

/** By those of whole arrays. */
static bool pass_arrays(struct team_rank *rank, zero_unit unit, const zero_micro *micro)
{
    struct arrays weights = {0}, gradients = {0};
    float *w[TENSORS], *g[TENSORS];
    TEAM_OK(rank, zero_unit_ptrs(rank->z, unit, &weights, &gradients, NULL));
    memcpy(w, &weights, sizeof w);
    memcpy(g, &gradients, sizeof g);
    for (int t = 0; t < TENSORS; t++) {
        const int32_t slice = unit - table[t].unit;
        const uint64_t first = (uint64_t)slice * slice_numel(t);
        if (slice < 0 || slice >= table[t].slices) {
            TEAM_CHECK(!w[t] && !g[t]);
            continue;
        }
        TEAM_CHECK(w[t] == zero_param_base(rank->z, t, slice));
        TEAM_CHECK(g[t] == zero_grad_base(rank->z, t, slice));
        TEAM_CHECK(w[t] + first == zero_param_ptr(rank->z, t, slice));
        TEAM_CHECK(!g[t] == (t == FROZEN));
        for (uint64_t i = first; g[t] && i < first + slice_numel(t); i++)
            g[t][i] += gradient_at(i, w[t][i], micro);
    }
    TEAM_OK(rank, zero_unit_done(rank->z, unit, NULL));
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.paranoid = job->paranoid;
    if (!open_model(rank))
        return false;
    const zero_hyper hyper = zero_hyper_default();
    const zero_step_args args = zero_step_args_for(&hyper, 1, 1.0 / V, 1.0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            zero_micro micro = zero_micro_default();
            TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
            for (zero_unit u = 0; u < UNITS; u++)
                if (!(job->one_by_one ? pass_slices : pass_arrays)(rank, u, &micro))
                    return false;
        }
        TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

/** Pointers that take `+ l * size` give the bits of each slice's own, at every stage. */
static void a_layer_is_where_the_array_had_it(void **state)
{
    (void)state;
    static struct job plain = {.one_by_one = true};
    assert_true(team_run("self", 1, train, &plain));
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= MOST_RANKS; world++) {
            static struct job job;
            job = (struct job){.stage = stage, .paranoid = world == 2};
            job.gather = stage == 0 || world == 1 ? NULL : world == 2 ? "copy" : "shared";
            if (!team_run(team_threads(world), world, train, &job))
                fail_msg("stage %d, %d ranks", stage, world);
            for (int r = 0; r < world; r++)
                assert_memory_equal(job.digest[r], plain.digest[0], 16);
        }
}

/* ------------------------------------------------------------------ wrong calls */

static bool call_wrongly(struct team_rank *rank, void *user)
{
    (void)user;
    struct arrays w = {0}, g = {0};
    TEAM_CHECK(zero_unit_ptrs(NULL, 0, &w, NULL, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_unit_done(NULL, 0, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_refresh(NULL) == ZERO_E_INVALID);
    rank->config.stage = 3;
    if (!team_open(rank))
        return false;
    TEAM_CHECK(zero_unit_ptrs(rank->z, 0, &w, NULL, NULL) == ZERO_E_STATE);
    TEAM_CHECK(zero_unit_ptrs(rank->z, 0, NULL, NULL, NULL) == ZERO_E_STATE);
    TEAM_CHECK(zero_unit_done(rank->z, 0, NULL) == ZERO_E_STATE);
    TEAM_CHECK(zero_refresh(rank->z) == ZERO_E_STATE);
    TEAM_CHECK(zero_param_base(rank->z, 0, 0) == NULL && zero_grad_base(rank->z, 0, 0) == NULL);
    team_close(rank);
    if (!open_model(rank))
        return false;
    TEAM_CHECK(zero_unit_ptrs(rank->z, 0, NULL, NULL, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "zero_unit_ptrs without an array"));
    TEAM_CHECK(zero_unit_ptrs(rank->z, UNITS, &w, &g, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_unit_ptrs(rank->z, -1, &w, &g, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_unit_done(rank->z, UNITS, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(!w.embedding && !w.matrix);
    // Outside of a micro-batch there is no gradient, and then the unit is not gathered either.
    TEAM_CHECK(zero_unit_ptrs(rank->z, 1, &w, &g, NULL) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "outside a micro-batch"));
    TEAM_CHECK(!w.matrix && !g.matrix);
    TEAM_CHECK(zero_unit_done(rank->z, 1, NULL) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "which is not gathered"));
    // Gradients may be opened alone.
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_CHECK(zero_refresh(rank->z) == ZERO_E_STATE);
    TEAM_OK(rank, zero_unit_ptrs(rank->z, 1, NULL, &g, NULL));
    TEAM_CHECK(g.matrix && zero_param_ptr(rank->z, 1, 0) == NULL);
    TEAM_OK(rank, zero_unit_done(rank->z, 1, NULL));
    TEAM_CHECK(zero_grad_base(rank->z, 1, 0) == NULL);
    return true;
}

static void wrong_calls_change_nothing(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, call_wrongly, NULL));
}

/* ------------------------------------------------------------------ refused registrations */

enum refusal { A_TENSOR, AN_UNEVEN_TENSOR, A_GROUP, AN_OPTIMIZER, A_BLOB, REFUSALS };

static zero_result refuse(zero_ctx *z, enum refusal which)
{
    zero_group_desc group = zero_group_default();
    zero_optimizer_desc optimizer = zero_optimizer_default();
    switch (which) {
    case A_TENSOR:
        return zero_add_tensor(z, "two words", 5, 0, 1, NULL);
    case AN_UNEVEN_TENSOR:
        return zero_add_tensor(z, "uneven", 3 * 1000 + 1, 0, 3, NULL);
    case A_GROUP:
        group.optimizer = "none";
        return zero_add_group(z, NULL, &group);
    case AN_OPTIMIZER:
        optimizer.name = "unfinished";
        return zero_add_optimizer(z, &optimizer);
    default:
        return zero_attach(z, "two words", &group, sizeof group, ZERO_GLOBAL);
    }
}

static bool refuse_and_commit(struct team_rank *rank, void *user)
{
    static const char *const says[REFUSALS] = {"without blanks", "stacked over 3 units", "\"none\"",
                                               "unfinished has no prepare", "zero_attach: a name"};
    const enum refusal which = *(const enum refusal *)user;
    if (!team_open(rank))
        return false;
    // On one rank only: the others learn it at commit.
    if (rank->rank == rank->world - 1) {
        TEAM_CHECK(refuse(rank->z, which) == ZERO_E_INVALID);
        TEAM_CHECK(refuse(rank->z, A_TENSOR) == ZERO_E_INVALID); // the first one counts
    }
    zero_add_tensor(rank->z, "right", 5000, 0, 1, NULL); // which may meet the other rank's failure
    TEAM_CHECK(zero_commit(rank->z) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), says[which]));
    return true;
}

static void commit_remembers_what_was_refused(void **state)
{
    (void)state;
    for (enum refusal which = 0; which < REFUSALS; which++)
        for (int world = 1; world <= 2; world++)
            if (!team_run(team_threads(world), world, refuse_and_commit, &which))
                fail_msg("refusal %d, %d ranks", (int)which, world);
}

/* ------------------------------------------------------------------ a fill that says 1 */

static zero_result fill_and_say_one(void *user, const char *name, int32_t slice, uint64_t first,
                                    uint64_t count, float *out)
{
    (void)user, (void)name, (void)slice, (void)first;
    memset(out, 0, count * sizeof *out);
    return (zero_result)1;
}

static bool fill_wrongly(struct team_rank *rank, void *user)
{
    zero_param_desc desc = zero_param_vector("w", WIDE, NULL);
    (void)user;
    desc.fill = fill_and_say_one;
    TEAM_CHECK(team_open(rank));
    TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_CHECK(zero_commit(rank->z) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "the fill callback of w returned 1"));
    return true;
}

static void a_fill_that_says_one_is_refused(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        assert_true(team_run(team_threads(world), world, fill_wrongly, NULL));
}

/* ------------------------------------------------------------------ refresh */

/** The caller's own arrays, and what the library says that they should hold. */
struct own {
    float matrix[LAYERS * WIDE], small[NARROW], now[WIDE];
};

static bool open_borrowed(struct team_rank *rank, struct own *own)
{
    if (!team_open(rank))
        return false;
    zero_param_desc desc = zero_param_stacked("matrix", LAYERS * WIDE, 0, LAYERS, NULL);
    desc.borrow = own->matrix;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    desc = zero_param_stacked("small", NARROW, 0, 1, NULL);
    desc.borrow = own->small;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_add_tensor(rank->z, "plain", WIDE, 0, 1, NULL));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_refresh(rank->z));
    return true;
}

/** A step that makes every element of the matrix larger, and gathers nothing. */
static bool step_up(struct team_rank *rank)
{
    const zero_hyper hyper = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8};
    const zero_step_args args = zero_step_args_for(&hyper, 1, 1.0, 0);
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit u = 0; u < LAYERS; u++) {
        TEAM_OK(rank, zero_grad_open(rank->z, u, NULL));
        float *g = zero_grad_ptr(rank->z, 0, u);
        for (int i = 0; i < WIDE; i++)
            g[i] -= 1;
        TEAM_OK(rank, zero_grad_done(rank->z, u, NULL));
    }
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

static bool refresh(struct team_rank *rank, void *user)
{
    static _Thread_local struct own own;
    struct job *job = user;
    memset(&own, 0, sizeof own);
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.paranoid = job->paranoid;
    rank->config.micro_batches = rank->world;
    if (!open_borrowed(rank, &own))
        return false;
    for (int step = 1; step <= 2; step++) {
        if (!step_up(rank))
            return false;
        const float before = own.matrix[2 * WIDE + 7];
        TEAM_OK(rank, zero_refresh(rank->z));
        for (int32_t slice = 0; slice < LAYERS; slice++) {
            TEAM_OK(rank, zero_param_read(rank->z, 0, slice, 0, WIDE, own.now));
            TEAM_CHECK(memcmp(own.matrix + slice * WIDE, own.now, sizeof own.now) == 0);
        }
        // Until then it was one update old.
        TEAM_CHECK(before < own.matrix[2 * WIDE + 7]);
    }
    return true;
}

static void a_refresh_brings_all_buffers_up_to_date(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++)
        for (int world = 1; world <= MOST_RANKS; world++) {
            static struct job job;
            job = (struct job){.stage = stage, .paranoid = world == 1};
            job.gather = stage == 0 || world == 1 ? NULL : world == 2 ? "copy" : "shared";
            if (!team_run(team_threads(world), world, refresh, &job))
                fail_msg("stage %d, %d ranks", stage, world);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_is_where_the_array_had_it),
        cmocka_unit_test(wrong_calls_change_nothing),
        cmocka_unit_test(commit_remembers_what_was_refused),
        cmocka_unit_test(a_fill_that_says_one_is_refused),
        cmocka_unit_test(a_refresh_brings_all_buffers_up_to_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
