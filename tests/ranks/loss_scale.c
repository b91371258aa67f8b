// The loss scale and the limits of skipping: no bit depends on a scale that nothing overflows with;
// overflows lead to the same scales, skips and bits at every stage and number of ranks.
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 14, WINDOW = 3, LARGEST = 5000 };

// What the ranks end with.
struct outcome {
    double scale[STEPS], norm[STEPS];
    uint64_t updates;
    float large[LARGEST];
    uint8_t digest[16];
};

struct job {
    struct toy toy;
    int32_t stage;
    const char *loss_scale;
    int64_t init, least;
    int32_t window, skip_limit, odd_limit; // odd_limit: of rank 1, if not 0
    zero_nonfinite nonfinite;
    bool sparse;         // not every stage at every number of ranks
    const char *refused; // a part of the message
    struct outcome outcomes[MOST_RANKS];
};

static void configure(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.loss_scale = job->loss_scale;
    rank->config.loss_scale_init = job->init;
    rank->config.loss_scale_min = job->least;
    rank->config.loss_scale_window = job->window;
    rank->config.skip_limit = job->odd_limit && rank->rank == 1 ? job->odd_limit : job->skip_limit;
    rank->config.nonfinite = job->nonfinite;
}

static bool micro_batches(struct team_rank *rank, const struct toy *toy)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, toy, i, NULL, NULL))
            return false;
    return true;
}

// One step, and what it was like.
static bool step(struct team_rank *rank, const struct toy *toy, zero_step_result *info)
{
    *info = (zero_step_result){.struct_size = sizeof *info};
    if (!micro_batches(rank, toy))
        return false;
    TEAM_OK(rank, toy_update(rank, toy));
    TEAM_OK(rank, zero_step_info(rank->z, info));
    return true;
}

static bool end(struct team_rank *rank, struct outcome *outcome)
{
    TEAM_OK(rank, zero_param_read(rank->z, 6, 0, 0, LARGEST, outcome->large));
    TEAM_OK(rank, zero_fingerprint(rank->z, outcome->digest));
    return true;
}

/* ------------------------------------------------------------------ the scale of each step */

// What the rules make of a step: the next scale. clean counts the steps since it changed.
static double next_scale(const struct job *job, double scale, bool skipped, int *clean)
{
    if (strcmp(job->loss_scale, "dynamic") != 0)
        return scale;
    if (skipped || ++*clean == job->window) {
        *clean = 0;
        return skipped ? scale / 2 : scale * 2;
    }
    return scale;
}

static bool trains(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct outcome *outcome = &job->outcomes[rank->rank];
    int clean = 0;
    uint64_t row = 0;
    TEAM_CHECK(zero_loss_scale(NULL) == 1.0);
    configure(rank, job);
    if (!toy_open(rank, &job->toy))
        return false;
    for (int s = 0; s < STEPS; s++) {
        zero_step_result info;
        outcome->scale[s] = zero_loss_scale(rank->z);
        if (!step(rank, &job->toy, &info))
            return false;
        outcome->norm[s] = info.skipped ? 0.0 : info.norm;
        row = info.skipped ? row + 1 : 0;
        TEAM_CHECK(info.loss_scale == outcome->scale[s] && info.skips == row);
        TEAM_CHECK(isfinite(info.norm) == !info.skipped);
        TEAM_CHECK(zero_loss_scale(rank->z) ==
                   next_scale(job, info.loss_scale, info.skipped, &clean));
        outcome->updates = info.updates;
    }
    return end(rank, outcome);
}

static struct job job_of(zero_dtype dtype, const char *loss_scale)
{
    struct job job = {.toy = toy_odd, .loss_scale = loss_scale};
    job.toy.dtype = dtype;
    job.toy.micro_batches = 5;
    return job;
}

// One rank at stage 0 first; every stage and number of ranks must end as it does.
static struct outcome same_everywhere(struct job *job)
{
    assert_true(team_run("self", 1, trains, job));
    const struct outcome first = job->outcomes[0];
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job->stage = 0; job->stage <= 3; job->stage++) {
            if (!test_takes(world - 1 + job->stage))
                continue;
            if (TEST_STRIDE == 1 && job->sparse && (world + job->stage) % 2 == 0)
                continue;
            if (!team_run(team_threads(world), world, trains, job))
                fail_msg("world %d, stage %d", world, job->stage);
            for (int r = 0; r < world; r++)
                assert_memory_equal(&job->outcomes[r], &first, sizeof first);
        }
    job->stage = 0;
    return first;
}

// A power of two that nothing overflows with leaves every bit as it is, but for the fingerprint.
static void no_bit_depends_on_it(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
    for (int d = 0; d < 2; d++) {
        struct job off = job_of(dtypes[d], "off"), fixed = job_of(dtypes[d], "1024");
        struct job dynamic = job_of(dtypes[d], "dynamic");
        dynamic.window = WINDOW;
        fixed.sparse = dynamic.sparse = true;
        assert_true(team_run("self", 1, trains, &off));
        const struct outcome plain = off.outcomes[0];
        assert_true(plain.scale[STEPS - 1] == 1.0 && plain.updates == STEPS);
        const struct outcome ways[] = {same_everywhere(&fixed), same_everywhere(&dynamic)};
        assert_true(ways[0].scale[STEPS - 1] == 1024.0);
        assert_true(ways[1].scale[0] == 65536.0);
        assert_true(ways[1].scale[STEPS - 1] == 65536.0 * 16);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ways[i].updates, STEPS);
            assert_memory_equal(ways[i].norm, plain.norm, sizeof plain.norm);
            assert_memory_equal(ways[i].large, plain.large, sizeof plain.large);
            assert_memory_not_equal(ways[i].digest, plain.digest, sizeof plain.digest);
        }
    }
}

// A fixed scale goes with fused steps, whose policy is error.
static void fused_steps_divide_it_away(void **state)
{
    (void)state;
    struct job off = job_of(ZERO_BF16, "off"), fixed = job_of(ZERO_BF16, "1024");
    off.toy.unclipped = fixed.toy.unclipped = true;
    fixed.toy.fused = true;
    fixed.nonfinite = ZERO_NONFINITE_ERROR;
    fixed.sparse = true;
    assert_true(team_run("self", 1, trains, &off));
    const struct outcome fused = same_everywhere(&fixed);
    assert_memory_equal(fused.norm, off.outcomes[0].norm, sizeof fused.norm);
    assert_memory_equal(fused.large, off.outcomes[0].large, sizeof fused.large);
}

// Gradients so large that the program's own arithmetic overflows with the first scale.
static void overflows_lower_it(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
    for (int d = 0; d < 2; d++) {
        struct job job = job_of(dtypes[d], "dynamic");
        job.toy.boost = 0x1p116f;
        job.window = WINDOW;
        job.sparse = d > 0;
        const struct outcome outcome = same_everywhere(&job);
        assert_true(outcome.scale[1] == 32768.0); // the first step overflowed,
        assert_true(outcome.updates > WINDOW);    // some did not,
        int grown = 0;
        for (int s = 1; s < STEPS; s++)
            grown += outcome.scale[s] > outcome.scale[s - 1];
        assert_true(grown >= 1 && outcome.updates < STEPS - 2); // and then one did again
    }
}

/* ------------------------------------------------------------------ the floor and the limit */

// Every step overflows; the scale is at its floor after two.
static bool falls(struct team_rank *rank, void *user)
{
    struct job *job = user;
    zero_step_result info;
    float before[7], after[7];
    configure(rank, job);
    if (!toy_open(rank, &job->toy))
        return false;
    TEAM_OK(rank, zero_param_read(rank->z, 1, 0, 0, 7, before));
    for (int s = 0; s < 2; s++)
        if (!step(rank, &job->toy, &info))
            return false;
    TEAM_CHECK(info.skips == 2 && zero_loss_scale(rank->z) == 1024.0);
    TEAM_OK(rank, zero_param_read(rank->z, 1, 0, 0, 7, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) == 0);
    TEAM_CHECK(micro_batches(rank, &job->toy));
    TEAM_CHECK(toy_update(rank, &job->toy) == ZERO_E_NONFINITE);
    TEAM_CHECK(
        strstr(zero_last_error(rank->z), "step 3, with the loss scale at loss_scale_min=1024"));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "in micro-batch 0, computed by rank 0"));
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.bad_micro == 0 && info.bad_rank == 0 && info.bad_param >= 0);
    TEAM_CHECK(info.loss_scale == 1024.0 && info.updates == 0 && info.skips == 3);
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_NONFINITE);
    return true;
}

static void a_scale_may_begin_at_its_floor(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "dynamic");
    job.init = job.least = job.window = 64;
    assert_true(team_run("self", 1, trains, &job));
    assert_true(job.outcomes[0].scale[STEPS - 1] == 64.0);
}

static void the_floor_is_an_error(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "dynamic");
    job.toy.boost = INFINITY;
    job.init = 4096;
    job.least = 1024;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++)
            if (test_takes(world - 1 + job.stage))
                assert_true(team_run(team_threads(world), world, falls, &job));
}

// Two skips, a clean step, three skips with one of the program's own between, one too many.
static bool skips_in_rows(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy bad = job->toy;
    zero_step_result info;
    bad.boost = INFINITY;
    configure(rank, job);
    if (!toy_open(rank, &job->toy))
        return false;
    for (int s = 0; s < 3; s++) {
        TEAM_CHECK(step(rank, s < 2 ? &bad : &job->toy, &info));
        TEAM_CHECK(info.skips == (s < 2 ? (uint64_t)s + 1 : 0));
    }
    for (uint64_t row = 1; row <= 3; row++) {
        TEAM_CHECK(step(rank, &bad, &info) && info.skips == row && info.skipped == 1);
        TEAM_CHECK(micro_batches(rank, row == 2 ? &bad : &job->toy));
        TEAM_OK(rank, zero_skip_step(rank->z));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(info.skips == row && info.skipped == 1);
    }
    TEAM_CHECK(micro_batches(rank, &bad));
    TEAM_CHECK(toy_update(rank, &bad) == ZERO_E_NONFINITE);
    TEAM_CHECK(
        strstr(zero_last_error(rank->z), "step 10, after skip_limit=3 skips in a row: the "));
    return true;
}

static void too_many_skips_are_an_error(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_BF16, "off");
    job.nonfinite = ZERO_NONFINITE_SKIP;
    job.skip_limit = 3;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++)
            if (test_takes(world - 1 + job.stage))
                assert_true(team_run(team_threads(world), world, skips_in_rows, &job));
}

// How many steps are skipped before the error.
static bool skips_many(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const int limit = job->nonfinite == ZERO_NONFINITE_ERROR ? 0 : job->skip_limit ? 150 : 100;
    configure(rank, job);
    if (!toy_open(rank, &job->toy))
        return false;
    for (int s = 0; s < 150; s++) {
        TEAM_CHECK(micro_batches(rank, &job->toy));
        const zero_result expected = s < limit ? ZERO_OK : ZERO_E_NONFINITE;
        TEAM_CHECK(toy_update(rank, &job->toy) == expected);
        if (expected)
            return true;
    }
    return job->skip_limit == ZERO_OFF;
}

static void the_limit_is_100_or_none(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "8");
    job.toy.micro_batches = 1;
    job.toy.boost = INFINITY;
    assert_true(team_run("self", 1, skips_many, &job));
    job.skip_limit = ZERO_OFF;
    assert_true(team_run("self", 1, skips_many, &job));
    job.skip_limit = 0;
    job.nonfinite = ZERO_NONFINITE_ERROR; // whatever the scale
    assert_true(team_run("self", 1, skips_many, &job));
}

/* ------------------------------------------------------------------ the program's own skip */

static bool skips_itself(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy bad = job->toy;
    struct outcome *outcome = &job->outcomes[rank->rank];
    zero_step_result info;
    double norm = 0.0, sum = 0.0, again = 0.0;
    float before[LARGEST];
    bad.boost = INFINITY;
    configure(rank, job);
    if (!toy_open(rank, &job->toy))
        return false;
    TEAM_CHECK(zero_skip_step(rank->z) == ZERO_E_STATE);
    TEAM_CHECK(step(rank, &job->toy, &info));
    TEAM_OK(rank, zero_param_read(rank->z, 6, 0, 0, LARGEST, before));
    for (int s = 1; s <= 3; s++) {
        const bool finite = s != 2;
        TEAM_CHECK(micro_batches(rank, finite ? &job->toy : &bad));
        TEAM_OK(rank, zero_grad_norm(rank->z, 1.0, &norm));
        TEAM_OK(rank, zero_skip_step(rank->z));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        TEAM_CHECK(info.step == (uint64_t)s + 1 && info.updates == 1 && info.skipped == 1);
        TEAM_CHECK(info.skips == 0 && info.clip == 1.0 && info.loss_scale == 8.0);
        TEAM_CHECK(finite ? info.norm == norm && norm > 0.0 : !isfinite(norm) && isnan(info.norm));
        TEAM_CHECK(finite ? info.bad_param == -1 : info.bad_micro == 0 && info.bad_param >= 0);
        TEAM_OK(rank, zero_metric_mean(rank->z, "sum", s == 1 ? &sum : &again));
        TEAM_CHECK(s == 1 || again == sum); // the weights are the same
    }
    TEAM_OK(rank, zero_param_read(rank->z, 6, 0, 0, LARGEST, outcome->large));
    TEAM_CHECK(memcmp(before, outcome->large, sizeof before) == 0);
    TEAM_CHECK(step(rank, &job->toy, &info) && info.updates == 2 && info.step == 5);
    return end(rank, outcome);
}

static void a_program_may_skip(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_BF16, "8");
    assert_true(team_run("self", 1, skips_itself, &job));
    const struct outcome first = job.outcomes[0];
    for (int world = 1; world <= MOST_RANKS; world++)
        for (job.stage = 0; job.stage <= 3; job.stage++) {
            if (!test_takes(world - 1 + job.stage))
                continue;
            assert_true(team_run(team_threads(world), world, skips_itself, &job));
            for (int r = 0; r < world; r++)
                assert_memory_equal(&job.outcomes[r], &first, sizeof first);
        }
}

static bool skips_what_is_fused(struct team_rank *rank, void *user)
{
    struct job *job = user;
    configure(rank, job);
    if (!toy_open(rank, &job->toy) || !micro_batches(rank, &job->toy))
        return false;
    TEAM_CHECK(zero_skip_step(rank->z) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "zero_skip_step: step 1 is a fused step"));
    TEAM_OK(rank, toy_update(rank, &job->toy));
    return true;
}

static void a_fused_step_is_not_skipped(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "off");
    job.toy.unclipped = job.toy.fused = true;
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("threads", 2, skips_what_is_fused, &job));
}

static bool skips_alone(struct team_rank *rank, void *user)
{
    struct job *job = user;
    configure(rank, job);
    if (!toy_open(rank, &job->toy) || !micro_batches(rank, &job->toy))
        return false;
    const zero_result r = rank->rank == 1 ? zero_skip_step(rank->z) : toy_update(rank, &job->toy);
    TEAM_CHECK(r == ZERO_E_DIVERGED);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "zero_step and zero_skip_step"));
    return true;
}

static void a_rank_may_not_skip_alone(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "off");
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("threads", 3, skips_alone, &job));
}

/* ------------------------------------------------------------------ what is said */

struct lines {
    char text[8][512];
    int count;
};

static void keep_line(void *user, zero_log_level level, const char *component, const char *message)
{
    struct lines *lines = user;
    (void)component;
    if (lines->count < 8 && strstr(message, "step "))
        snprintf(lines->text[lines->count++], sizeof lines->text[0], "%d %s", (int)level, message);
}

// A clean step that doubles the scale, if it is dynamic, one that is skipped, one the program
// skips.
static bool speaks(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy bad = job->toy;
    struct lines lines = {.count = 0};
    zero_step_result info;
    bad.boost = INFINITY;
    configure(rank, job);
    rank->config.log = keep_line;
    rank->config.log_user = &lines;
    rank->config.log_level = ZERO_LOG_INFO;
    if (!toy_open(rank, &job->toy))
        return false;
    TEAM_CHECK(step(rank, &job->toy, &info) && step(rank, &bad, &info));
    TEAM_CHECK(micro_batches(rank, &job->toy));
    TEAM_OK(rank, zero_skip_step(rank->z));
    team_close(rank);
    const bool dynamic = strcmp(job->loss_scale, "dynamic") == 0;
    const char *const expected[] = {
        "3 step 1: the loss scale goes from 65536 to 131072",
        dynamic ? "2 step 2 is skipped, the loss scale goes from 131072 to 65536: the gradient of "
                : "2 step 2 is skipped: the gradient of ",
        "3 step 3 is skipped by the program",
    };
    // Rank 0 has all of it, the others the warning.
    const int first = rank->rank == 0 && dynamic ? 0 : 1, end = rank->rank == 0 ? 3 : 2;
    TEAM_CHECK(lines.count == end - first);
    for (int i = 0; i < lines.count; i++)
        TEAM_CHECK(strncmp(lines.text[i], expected[first + i], strlen(expected[first + i])) == 0);
    return true;
}

static void every_change_is_logged(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, "dynamic");
    job.window = 1;
    for (job.stage = 0; job.stage <= 3; job.stage++)
        assert_true(team_run("threads", 2, speaks, &job));
    job = job_of(ZERO_F32, "64");
    assert_true(team_run("threads", 2, speaks, &job));
}

static void the_metrics_have_it(void **state)
{
    (void)state;
    static const char *const scales[] = {"off", "64"};
    for (int i = 0; i < 2; i++) {
        char number[16], line[2048] = "";
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        snprintf(number, sizeof number, "%d", ends[1]);
        setenv("ZERO_METRICS_FD", number, 1);
        struct job job = job_of(ZERO_F32, scales[i]);
        assert_true(team_run("self", 1, trains, &job));
        unsetenv("ZERO_METRICS_FD");
        assert_true(read(ends[0], line, sizeof line - 1) > 0);
        assert_int_equal(strstr(line, ",\"loss_scale\":64,") != NULL, i);
        close(ends[0]);
        close(ends[1]);
    }
}

/* ------------------------------------------------------------------ what does not go together */

static bool refuses(struct team_rank *rank, void *user)
{
    struct job *job = user;
    configure(rank, job);
    if (!team_open(rank) || !toy_register(rank, &job->toy))
        return false;
    const zero_result expected = job->odd_limit ? ZERO_E_DIVERGED : ZERO_E_INVALID;
    TEAM_CHECK(zero_loss_scale(rank->z) == 1.0);
    TEAM_CHECK(zero_commit(rank->z) == expected);
    TEAM_CHECK(strstr(zero_last_error(rank->z), job->refused));
    return true;
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    const struct job jobs[] = {
        {.init = 8, .refused = "loss_scale_init has no effect"},
        {.least = 8, .loss_scale = "off", .refused = "loss_scale_min has no effect"},
        {.window = 8, .loss_scale = "64", .refused = "loss_scale_window has no effect"},
        {.skip_limit = 5, .refused = "skip_limit has no effect with nonfinite=error"},
        {.skip_limit = ZERO_OFF, .refused = "skip_limit has no effect with nonfinite=error"},
        {.loss_scale = "dynamic",
         .nonfinite = ZERO_NONFINITE_ERROR,
         .refused = "nonfinite=error with loss_scale=dynamic"},
        {.loss_scale = "dynamic",
         .init = 8,
         .least = 16,
         .refused = "loss_scale_init=8 is below loss_scale_min=16"},
        {.loss_scale = "8", .odd_limit = 5, .refused = "ranks 0 and 1 differ in skip_limit"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct job job = jobs[i];
        job.toy = toy_odd;
        const int world = job.odd_limit ? 2 : 1;
        assert_true(team_run(team_threads(world), world, refuses, &job));
    }
}

// Whether the plan has the key with this value, by default; `types` are those of the gradients,
// which are f32 but for f16 somewhere.
enum types { ALL_F32, GRADIENTS_F16, SENT_AS_F16 };

static bool decides(enum types types, const char *loss_scale, const char *key, const char *value)
{
    struct toy toy = toy_odd;
    char wanted[80];
    struct team_rank rank = {.config = zero_config_default()};
    rank.config.world = 1;
    rank.config.log_level = ZERO_OFF;
    rank.config.loss_scale = loss_scale;
    rank.config.comm_dtype = types == SENT_AS_F16 ? ZERO_F16 : ZERO_DTYPE_DEFAULT;
    toy.grad_dtype = types == GRADIENTS_F16 ? ZERO_F16 : ZERO_DTYPE_DEFAULT;
    snprintf(wanted, sizeof wanted, "  %-18s %-16s (default)\n", key, value);
    const bool good = toy_open(&rank, &toy) && strstr(zero_plan_text(rank.z), wanted);
    team_close(&rank);
    return good;
}

static void defaults_are_decided_at_commit(void **state)
{
    (void)state;
    assert_true(decides(ALL_F32, NULL, "nonfinite", "error"));
    assert_true(decides(ALL_F32, NULL, "loss_scale", "off"));
    assert_true(decides(ALL_F32, "off", "nonfinite", "error"));
    assert_true(decides(ALL_F32, "64", "nonfinite", "skip"));
    assert_true(decides(ALL_F32, "dynamic", "nonfinite", "skip"));
    for (enum types types = GRADIENTS_F16; types <= SENT_AS_F16; types++) {
        assert_true(decides(types, NULL, "nonfinite", "skip"));
        assert_true(decides(types, NULL, "loss_scale", "dynamic"));
        assert_true(decides(types, "off", "nonfinite", "skip"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_it),
        cmocka_unit_test(fused_steps_divide_it_away),
        cmocka_unit_test(overflows_lower_it),
        cmocka_unit_test(a_scale_may_begin_at_its_floor),
        cmocka_unit_test(the_floor_is_an_error),
        cmocka_unit_test(too_many_skips_are_an_error),
        cmocka_unit_test(the_limit_is_100_or_none),
        cmocka_unit_test(a_program_may_skip),
        cmocka_unit_test(a_fused_step_is_not_skipped),
        cmocka_unit_test(a_rank_may_not_skip_alone),
        cmocka_unit_test(every_change_is_logged),
        cmocka_unit_test(the_metrics_have_it),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(defaults_are_decided_at_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
