/* Evaluations between steps: their means are those of one rank, they cost training no bit, and
 * neither spoils the other's order of gathers. */
#include "base/arena.h"
#include "tests/numerics/synthetic.h"
#include "tests/ranks/team.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, STEPS = 5, MOST_COUNT = 12 };

/** Micro-batches of the evaluation before each step, and after the last one; 0: none. */
static const int32_t counts[STEPS + 1] = {1, 5, 12, 0, 7, 12};

struct outcome {
    uint8_t digest[16];
    double loss[STEPS];
    double evaluated[STEPS + 1];
};

struct job {
    struct synthetic model;
    const char *gather;
    int stage;
    int32_t prefetch;
    int64_t live_bytes;
    bool evaluates;
    struct outcome outcome[MOST_RANKS];
};

static double mean_of(const struct team_rank *rank, const char *name)
{
    double mean = -1;
    return zero_metric_mean(rank->z, name, &mean) == ZERO_OK ? mean : -1;
}

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.prefetch_units = job->prefetch;
    rank->config.live_bytes = job->live_bytes;
    rank->config.persist_numel = ZERO_OFF;
    rank->config.micro_batches = job->model.micro_batches;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, synthetic_commit(rank->z, &job->model));
    return true;
}

static bool evaluate(struct team_rank *rank, const struct job *job, int32_t count, double *loss)
{
    if (!job->evaluates || count == 0)
        return true;
    TEAM_OK(rank, synthetic_evaluate(rank->z, &job->model, count));
    TEAM_CHECK(zero_micro_total(rank->z) == job->model.micro_batches);
    TEAM_CHECK(mean_of(rank, "index") == 0.5 * (count - 1));
    *loss = mean_of(rank, "loss");
    return true;
}

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct outcome *outcome = &job->outcome[rank->rank];
    if (!open_job(rank, job))
        return false;
    for (int s = 0; s < STEPS; s++) {
        if (!evaluate(rank, job, counts[s], &outcome->evaluated[s]))
            return false;
        TEAM_OK(rank, synthetic_step(rank->z, &job->model, (uint64_t)s));
        outcome->loss[s] = mean_of(rank, "loss");
    }
    if (!evaluate(rank, job, counts[STEPS], &outcome->evaluated[STEPS]))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, outcome->digest));
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    return true;
}

static void run(struct job *job, const char *transport, int world)
{
    if (!team_run(transport, world, train, job))
        fail_msg("%s, %d ranks, stage %d, %s, prefetch %d", transport, world, job->stage,
                 job->gather, job->prefetch);
}

static void compare(const struct job *job, int world, const struct outcome *expected)
{
    for (int r = 0; r < world; r++)
        if (memcmp(&job->outcome[r], expected, sizeof *expected) != 0)
            fail_msg("rank %d of %d, stage %d, %s, prefetch %d, live %lld: losses or fingerprint "
                     "differ",
                     r, world, job->stage, job->gather, job->prefetch, (long long)job->live_bytes);
}

/** Every way at one number of ranks. */
static void sweep(const struct synthetic *model, int world, const struct outcome *expected)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int way = 0; way < 3; way++) {
            static struct job job;
            job = (struct job){.model = *model, .stage = stage, .evaluates = true};
            job.gather = way == 2 ? "shared" : stage == 3 && world % 2 ? "slots" : "copy";
            job.prefetch = way == 0 ? ZERO_OFF : 1 + world % 2;
            job.live_bytes = world % 3 == 2 ? 6000 : 0;
            job.model.tied = (stage + world) % 2;
            if ((stage == 0 && way == 2) || !test_takes(world + stage + way))
                continue;
            run(&job, team_threads(world), world);
            compare(&job, world, expected);
        }
}

static void means_and_training_do_not_depend_on_ranks(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_DTYPE_DEFAULT};
    for (int d = 0; d < 2; d++) {
        const struct synthetic model = {.dtype = dtypes[d], .micro_batches = 5};
        static struct job plain, job;
        plain = (struct job){.model = model, .gather = "copy", .prefetch = ZERO_OFF};
        run(&plain, "self", 1);
        job = plain;
        job.evaluates = true;
        run(&job, "self", 1);
        assert_memory_equal(job.outcome[0].digest, plain.outcome[0].digest, 16);
        assert_memory_equal(job.outcome[0].loss, plain.outcome[0].loss, sizeof plain.outcome->loss);
        for (int world = 1 + d; world <= MOST_RANKS; world += 1 + d)
            sweep(&model, world, &job.outcome[0]);
    }
}

/* ------------------------------------------------------------------ the mean */

/** Values whose sum depends on the order in which they are added. */
static double value_of(uint64_t index)
{
    return index % 3 == 1 ? 1e16 : index % 3 == 2 ? -1e16 : 1.0 + (double)index;
}

static bool give_values(struct team_rank *rank, int32_t count)
{
    zero_micro micro = {.struct_size = sizeof micro};
    const double before = mean_of(rank, "value");
    TEAM_OK(rank, zero_eval_begin(rank->z, count));
    TEAM_CHECK(zero_micro_total(rank->z) == count);
    TEAM_CHECK(zero_micro_count(rank->z) == (count + rank->world - 1) / rank->world);
    for (int32_t i = 0; i < zero_micro_count(rank->z); i++) {
        const int32_t own = i * rank->world + rank->rank;
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        TEAM_CHECK(micro.counts == (own < count));
        TEAM_CHECK(micro.index == (uint64_t)(own % count));
        TEAM_OK(rank, zero_metric(rank->z, "value", micro.counts ? value_of(micro.index) : 5e300));
        TEAM_CHECK(mean_of(rank, "value") == before); // what ended last can be asked for
    }
    TEAM_OK(rank, zero_eval_end(rank->z));
    return true;
}

static bool check_means(struct team_rank *rank, void *user)
{
    if (!open_job(rank, user))
        return false;
    for (int32_t count = 1; count <= MOST_COUNT; count++) {
        double sum = 0;
        for (int32_t l = 0; l < count; l++)
            sum += value_of((uint64_t)l);
        if (!give_values(rank, count))
            return false;
        TEAM_CHECK(mean_of(rank, "value") == sum / count);
    }
    // An evaluation without metrics has no means.
    TEAM_OK(rank, zero_eval_begin(rank->z, 1));
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_OK(rank, zero_eval_end(rank->z));
    TEAM_CHECK(mean_of(rank, "value") == -1);
    return true;
}

/** A line of metrics for each, with its micro-batches of all ranks. */
static void check_lines(FILE *metrics)
{
    char line[512], expected[32];
    rewind(metrics);
    for (int count = 1; count <= MOST_COUNT; count++) {
        snprintf(expected, sizeof expected, ",\"eval\":%d,", count);
        assert_non_null(fgets(line, sizeof line, metrics));
        assert_non_null(strstr(line, expected));
    }
}

static void means_are_added_in_order(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++) {
        struct job job = {.model = {.dtype = ZERO_F32, .micro_batches = 2}, .gather = "copy"};
        char number[16];
        FILE *metrics = tmpfile();
        assert_non_null(metrics);
        snprintf(number, sizeof number, "%d", fileno(metrics));
        setenv("ZERO_METRICS_FD", number, 1);
        const bool good = team_run(team_threads(world), world, check_means, &job);
        unsetenv("ZERO_METRICS_FD");
        assert_true(good);
        check_lines(metrics);
        fclose(metrics);
    }
}

/* ------------------------------------------------------------------ traces, memory */

static zero_statistics stats_of(const struct team_rank *rank)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    zero_stats(rank->z, &stats);
    return stats;
}

/** Calls of zero_gather() that found their unit resident or on its way. */
static uint64_t found(const struct team_rank *rank)
{
    const zero_statistics stats = stats_of(rank);
    return stats.gather_hits + stats.prefetch_hits;
}

/** Forward in another order than that of training, one gather at a time. */
static bool evaluate_backwards(struct team_rank *rank, int32_t count)
{
    TEAM_OK(rank, zero_eval_begin(rank->z, count));
    for (int32_t i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (int turn = 0; turn < 2; turn++)
            for (zero_unit unit = SYNTHETIC_UNITS - 1; unit >= 0; unit--) {
                TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
                TEAM_OK(rank, zero_release(rank->z, unit, NULL));
            }
    }
    TEAM_OK(rank, zero_eval_end(rank->z));
    return true;
}

/** From the second micro-batch of a kind on nothing is on demand, whatever came between. */
static bool count_found(struct team_rank *rank, void *user)
{
    struct job *job = user;
    rank->config.open_units = 1;
    if (!open_job(rank, job))
        return false;
    TEAM_OK(rank, synthetic_step(rank->z, &job->model, 0));
    if (!evaluate_backwards(rank, rank->world))
        return false;
    TEAM_OK(rank, synthetic_step(rank->z, &job->model, 1));
    for (uint64_t s = 2; s < STEPS; s++) {
        const uint64_t before = found(rank), allocations = base_allocation_count();
        if (!evaluate_backwards(rank, rank->world))
            return false;
        TEAM_CHECK(base_allocation_count() == allocations);
        TEAM_OK(rank, synthetic_step(rank->z, &job->model, s));
        const int micro_batches = 1 + zero_micro_count(rank->z);
        TEAM_CHECK(found(rank) - before == (uint64_t)(2 * SYNTHETIC_UNITS * micro_batches));
    }
    return true;
}

static void each_kind_replays_its_own_order(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        struct job job = {.model = {.dtype = ZERO_F32, .micro_batches = 2},
                          .gather = "copy",
                          .stage = 3,
                          .prefetch = 1 + world % 2};
        assert_true(team_run(world == 1 ? "self" : "shm", world, count_found, &job));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_training_do_not_depend_on_ranks),
        cmocka_unit_test(means_are_added_in_order),
        cmocka_unit_test(each_kind_replays_its_own_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
