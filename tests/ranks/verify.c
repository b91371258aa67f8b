/* verify_micro=1: a program whose gradient depends on anything but parameters, step and micro-batch
 * is told so, at every stage; one that is right trains as ever. */
#include "tests/ranks/toy.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, STEPS = 3, UNIT = 4, PARAM = 6 };

/** What the gradient of one element depends on, too. UNCOUNTED: on the rank, in micro-batches that
 * don't count, which no rank compares. */
enum fault { NOTHING, UNCOUNTED, TIME, RANK, ACCUMULATION };

struct job {
    struct toy toy;
    int stage;
    const char *gather, *reduction;
    bool verifies, paranoid;
    enum fault fault;
    uint8_t digest[MOST_RANKS][16];
};

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.reduction = job->reduction;
    rank->config.verify_micro = job->verifies;
    rank->config.paranoid = job->paranoid;
    if (!toy_open(rank, &job->toy))
        return false;
    const int rounds = (job->toy.micro_batches + rank->world - 1) / rank->world;
    TEAM_CHECK(zero_micro_count(rank->z) == rounds + job->verifies);
    TEAM_CHECK(zero_micro_total(rank->z) == job->toy.micro_batches);
    return true;
}

/* ------------------------------------------------------------------ the right program */

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    double mean = 0;
    if (!open_job(rank, job) || !toy_train(rank, &job->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_metric_mean(rank->z, "sum", &mean));
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.step_allocations == 0);
    return true;
}

static void a_right_program_has_the_same_bits(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int way = 0; way < 6; way++) {
            static struct job plain, job;
            if (!test_takes(world - 1 + way))
                continue;
            plain = (struct job){.toy = toy_odd, .stage = way < 4 ? way : way - 4};
            plain.toy.dtype = (world + way) % 2 ? ZERO_BF16 : ZERO_F32;
            plain.toy.micro_batches = way < 4 ? 3 : 2 * world;
            plain.toy.raw = way % 3 == 1;
            plain.gather = way % 2 && way < 4 ? "shared" : "copy";
            plain.reduction = way < 4 ? "canonical" : "local";
            assert_true(team_run(team_threads(world), world, train, &plain));
            job = plain;
            job.verifies = true;
            job.paranoid = world % 2;
            if (!team_run(team_threads(world), world, train, &job))
                fail_msg("%d ranks, way %d", world, way);
            assert_memory_equal(job.digest, plain.digest, (size_t)world * 16);
        }
}

/** Hands units over in one of the two micro-batches that are compared and not in the other, which a
 * program may do while they are frozen: neither the other's nor an earlier step's gradient counts.
 */
static bool freeze_after_a_skip(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!open_job(rank, job))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &job->toy, i, NULL, NULL))
            return false;
    TEAM_OK(rank, zero_skip_step(rank->z));
    for (zero_group group = 0; group < 2; group++)
        TEAM_OK(rank, zero_set_frozen(rank->z, group, 1));
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        if (i == 0 && !toy_micro(rank, &job->toy, i, NULL, NULL))
            return false;
        if (i > 0)
            TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        if (i > 0)
            TEAM_OK(rank, zero_metric(rank->z, "sum", 0));
    }
    TEAM_OK(rank, toy_update(rank, &job->toy));
    return true;
}

static void what_is_frozen_after_a_skip_is_not_compared(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        struct job job = {.toy = toy_odd, .gather = "copy", .verifies = true};
        job.toy.micro_batches = world;
        assert_true(team_run(team_threads(world), world, freeze_after_a_skip, &job));
    }
}

/* ------------------------------------------------------------------ wrong ones */

/** One micro-batch whose gradient in one element depends on what it must not. */
static bool micro_batch(struct team_rank *rank, const struct job *job, int i, float *state)
{
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    const int rounds = (job->toy.micro_batches + rank->world - 1) / rank->world;
    if (i == rounds) {
        const int again = (rank->rank + 1) % rank->world;
        TEAM_CHECK(micro.index == (uint64_t)(again % job->toy.micro_batches));
        TEAM_CHECK(micro.counts == (again < job->toy.micro_batches));
    }
    for (zero_unit unit = 0; unit < job->toy.unit_count; unit++) {
        TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
        if (unit == UNIT) {
            float *gradient = zero_grad_ptr(rank->z, PARAM, 0);
            for (int k = 0; k < 5000; k++)
                gradient[k] += (float)(micro.index + 1) * 0x1p-8f;
            const bool by_rank = job->fault == RANK || (job->fault == UNCOUNTED && !micro.counts);
            gradient[4999] += by_rank ? (float)rank->rank : *state;
        }
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    if (job->fault == TIME)
        *state += 0x1p-10f;
    if (job->fault == ACCUMULATION)
        *state += (float)(micro.index + 1);
    return true;
}

static bool train_wrong(struct team_rank *rank, void *user)
{
    struct job *job = user;
    float state = 0;
    if (!open_job(rank, job))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!micro_batch(rank, job, i, &state))
            return false;
    const zero_result result = toy_update(rank, &job->toy);
    if (!job->verifies || job->fault <= UNCOUNTED)
        return team_ok(rank, result, "zero_step");
    TEAM_CHECK(result == ZERO_E_DIVERGED);
    const char *message = zero_last_error(rank->z);
    TEAM_CHECK(strstr(message, "gradient of micro-batch 0 is not a function"));
    TEAM_CHECK(strstr(message, "step 1: ") && strstr(message, "large, slice 0"));
    TEAM_CHECK(strstr(message, "between rank 0"));
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_DIVERGED);
    return true;
}

static void what_a_gradient_depends_on_is_found(void **state)
{
    (void)state;
    for (enum fault fault = NOTHING; fault <= ACCUMULATION; fault++)
        for (int world = fault == RANK ? 2 : 1; world <= 3; world++)
            for (int way = 0; way < 8; way++) {
                const bool local = way >= 6;
                if (!test_takes((int)fault + world - 1 + way))
                    continue;
                struct job job = {.toy = toy_odd, .fault = fault};
                job.stage = local ? way - 6 : way % 4;
                job.reduction = local ? "local" : "canonical";
                job.toy.micro_batches = local ? world : 1 + way;
                job.gather = job.stage > 0 && way % 2 ? "shared" : "copy";
                job.verifies = true;
                if (!team_run(team_threads(world), world, train_wrong, &job))
                    fail_msg("fault %d, %d ranks, stage %d, %s", fault, world, job.stage,
                             job.reduction);
                job.verifies = false;
                assert_true(team_run(team_threads(world), world, train_wrong, &job));
            }
}

static bool fuse(struct team_rank *rank, void *user)
{
    if (!open_job(rank, user))
        return false;
    const zero_hyper hyper[2] = {{1e-2, 0.9, 0.95, 1e-8, 0.1}, {3e-2, 0.8, 0.99, 1e-6, 0}};
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = 2;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_CHECK(zero_step_in_backward(rank->z, &args) == ZERO_E_STATE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "verify_micro"));
    return true;
}

static void steps_are_not_fused(void **state)
{
    (void)state;
    struct job job = {.toy = toy_odd, .verifies = true};
    job.toy.micro_batches = 1;
    assert_true(team_run("self", 1, fuse, &job));
}

/* ------------------------------------------------------------------ between steps */

enum { LEARNS = 1 /* the group of parts of units 0 and 3 */ };

/** How a step ends. */
enum end { UPDATED, NOT_FINITE, LEFT_OUT };

/** Whatever ends a step is followed by whatever a step may be. */
static const struct event {
    enum { AS_IT_IS, FROZEN, SET_FREE } group;
    int32_t micro_batches; /**< from now on; 0: as many as before */
    bool evaluates;
    enum end end;
} events[] = {
    {AS_IT_IS, 0, false, UPDATED},   {AS_IT_IS, 0, false, LEFT_OUT},  {FROZEN, 0, false, UPDATED},
    {AS_IT_IS, 0, true, NOT_FINITE}, {SET_FREE, 0, false, UPDATED},   {AS_IT_IS, 9, false, UPDATED},
    {AS_IT_IS, 0, true, NOT_FINITE}, {FROZEN, 0, false, LEFT_OUT},    {AS_IT_IS, 1, false, UPDATED},
    {AS_IT_IS, 0, true, LEFT_OUT},   {SET_FREE, 4, true, NOT_FINITE}, {FROZEN, 2, false, UPDATED},
    {SET_FREE, 5, false, UPDATED},
};

enum { EVENTS = sizeof events / sizeof *events };

/** What is seen after each event of a life: the same with and without. */
struct seen {
    uint8_t digest[16];
    double mean, norm;
    uint64_t updates, skipped;
};

struct life {
    int stage, world;
    zero_dtype dtype;
    const char *gather;
    bool verifies;
    struct seen seen[EVENTS];
};

static bool live_step(struct team_rank *rank, const struct toy *like, enum end end)
{
    struct toy toy = *like;
    toy.boost = end == NOT_FINITE ? INFINITY : 0;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
        TEAM_CHECK(zero_eval_begin(rank->z, 1) == ZERO_E_STATE);
        TEAM_CHECK(zero_set_micro_batches(rank->z, 2) == ZERO_E_STATE);
    }
    TEAM_OK(rank, end == LEFT_OUT ? zero_skip_step(rank->z) : toy_update(rank, &toy));
    return true;
}

/** More micro-batches a rank than a step has. */
static bool live_evaluation(struct team_rank *rank, const struct toy *toy)
{
    const int32_t count = 3 * zero_micro_total(rank->z) + 1;
    double mean = 0, sum = 0;
    TEAM_OK(rank, zero_eval_begin(rank->z, count));
    TEAM_CHECK(zero_micro_count(rank->z) == (count + rank->world - 1) / rank->world);
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        zero_micro micro = {.struct_size = sizeof micro};
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        TEAM_CHECK(micro.index == (uint64_t)((i * rank->world + rank->rank) % count));
        for (zero_unit unit = 0; unit < toy->unit_count; unit++) {
            TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
            sum += toy_unit_sum(rank, toy, unit);
            TEAM_OK(rank, zero_release(rank->z, unit, NULL));
        }
        TEAM_OK(rank, zero_metric(rank->z, "index", (double)micro.index));
    }
    TEAM_OK(rank, zero_eval_end(rank->z));
    TEAM_OK(rank, zero_metric_mean(rank->z, "index", &mean));
    TEAM_CHECK(mean == 0.5 * (count - 1) && isfinite(sum));
    return true;
}

static bool live_event(struct team_rank *rank, struct toy *toy, const struct event *event)
{
    if (event->group != AS_IT_IS)
        TEAM_OK(rank, zero_set_frozen(rank->z, LEARNS, event->group == FROZEN));
    if (event->micro_batches) {
        toy->micro_batches = event->micro_batches;
        TEAM_OK(rank, zero_set_micro_batches(rank->z, event->micro_batches));
    }
    return (!event->evaluates || live_evaluation(rank, toy)) && live_step(rank, toy, event->end);
}

static bool live(struct team_rank *rank, void *user)
{
    struct life *life = user;
    struct toy toy = toy_odd;
    toy.dtype = life->dtype;
    toy.micro_batches = 3;
    rank->config.stage = life->stage;
    rank->config.gather = life->gather;
    rank->config.verify_micro = life->verifies;
    rank->config.nonfinite = ZERO_NONFINITE_SKIP;
    rank->config.loss_scale = life->dtype == ZERO_F16 ? "dynamic" : NULL;
    rank->config.loss_scale_init = life->dtype == ZERO_F16 ? 1024 : 0;
    if (!toy_open(rank, &toy))
        return false;
    for (int event = 0; event < EVENTS; event++) {
        struct seen seen = {.mean = -1};
        zero_step_result info = {.struct_size = sizeof info};
        TEAM_CHECK(live_event(rank, &toy, &events[event]));
        TEAM_OK(rank, zero_fingerprint(rank->z, seen.digest));
        TEAM_OK(rank, zero_metric_mean(rank->z, "sum", &seen.mean));
        TEAM_OK(rank, zero_step_info(rank->z, &info));
        seen.norm = info.skipped ? 0 : info.norm;
        seen.updates = info.updates;
        seen.skipped = (uint64_t)info.skipped;
        if (rank->rank == rank->world - 1)
            life->seen[event] = seen;
    }
    return true;
}

static void run_life(struct life *life)
{
    if (!team_run(team_threads(life->world), life->world, live, life))
        fail_msg("%d ranks, stage %d, %s, dtype %d%s", life->world, life->stage, life->gather,
                 (int)life->dtype, life->verifies ? ", verified" : "");
}

static void steps_end_in_every_way(void **state)
{
    (void)state;
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    static struct life plain, life;
    for (int d = 0; d < 3; d++) {
        plain = (struct life){.world = 1, .dtype = dtypes[d], .gather = "copy"};
        run_life(&plain);
        for (int turn = 0; turn < 10; turn++) {
            if (!test_takes(turn + d))
                continue;
            const int place = (turn + d) % 7;
            life = plain;
            life.world = 1 + turn % 5;
            life.stage = place < 4 ? place : place - 3;
            life.gather = place < 4 ? "copy" : "shared";
            life.verifies = turn % 5 != 4 || d;
            memset(life.seen, 0, sizeof life.seen);
            run_life(&life);
            for (int event = 0; event < EVENTS; event++)
                if (memcmp(&life.seen[event], &plain.seen[event], sizeof(struct seen)) != 0)
                    fail_msg("%d ranks, stage %d, dtype %d: event %d is another one", life.world,
                             life.stage, (int)life.dtype, event);
        }
    }
}

/* ------------------------------------------------------------------ what is not compared */

/** Micro-batches in which two elements of the group are never the same; or none has a gradient. */
static bool noisy_step(struct team_rank *rank, float *noise, bool rests)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; unit < toy_odd.unit_count && !rests; unit++) {
            TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
            float *gradient = zero_grad_ptr(rank->z, unit == 3 ? 5 : 1, 0);
            if (gradient && (unit == 0 || unit == 3))
                gradient[6] = *noise += 1 + (float)rank->rank;
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        }
    }
    return true;
}

/** What a step compares is its own, and of what trains. */
static bool ignore_noise(struct team_rank *rank, void *user)
{
    struct toy toy = toy_odd;
    float noise = 0;
    rank->config.stage = *(const int *)user;
    rank->config.verify_micro = 1;
    if (!toy_open(rank, &toy))
        return false;
    // Left out: no rank compares it, and the next step, in which nothing trains, neither.
    TEAM_CHECK(noisy_step(rank, &noise, false));
    TEAM_OK(rank, zero_skip_step(rank->z));
    for (zero_group g = 0; g < 2; g++)
        TEAM_OK(rank, zero_set_frozen(rank->z, g, 1));
    TEAM_CHECK(noisy_step(rank, &noise, true));
    TEAM_OK(rank, toy_update(rank, &toy));
    TEAM_OK(rank, zero_set_frozen(rank->z, 1 - LEARNS, 0));
    // Frozen: it is handed over and may hold anything.
    TEAM_CHECK(noisy_step(rank, &noise, false));
    TEAM_OK(rank, toy_update(rank, &toy));
    // It trains again, and is looked at again.
    TEAM_OK(rank, zero_set_frozen(rank->z, LEARNS, 0));
    TEAM_CHECK(noisy_step(rank, &noise, false));
    TEAM_CHECK(toy_update(rank, &toy) == ZERO_E_DIVERGED);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "seven, slice 0, differs"));
    return true;
}

static void what_is_not_compared(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= 3; world++)
            if (!team_run(team_threads(world), world, ignore_noise, &stage))
                fail_msg("%d ranks, stage %d", world, stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_program_has_the_same_bits),
        cmocka_unit_test(what_is_frozen_after_a_skip_is_not_compared),
        cmocka_unit_test(what_a_gradient_depends_on_is_found),
        cmocka_unit_test(steps_are_not_fused),
        cmocka_unit_test(steps_end_in_every_way),
        cmocka_unit_test(what_is_not_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
