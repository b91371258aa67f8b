/* zero_step_in_backward(): a fused step ends in the bits of any other, refuses what
 * would read weights that may be changing, and writes none that a rank reads. */
#include "tests/ranks/toy.h"
#include "zero/core/addresses.h"
#include "zero/core/context.h"

#include "base/fault.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, STEPS = 4, UNIT = 2, BESIDE = 3 };

struct job {
    struct toy toy;
    int stage;
    const char *gather, *reduction;
    uint8_t digest[MOST_RANKS][16];
};

static struct job job_of(zero_dtype dtype, int micro_batches, bool fused)
{
    struct job job = {.toy = toy_odd};
    job.toy.dtype = dtype;
    job.toy.micro_batches = micro_batches;
    job.toy.unclipped = true;
    job.toy.fused = fused;
    return job;
}

static bool open_job(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.reduction = job->reduction;
    return toy_open(rank, &job->toy);
}

/** Runs it; every rank must have the same fingerprint. */
static void run(struct job *job, const char *transport, int world, team_fn fn)
{
    struct job *shared = team_shared(sizeof *shared);
    *shared = *job;
    if (!team_run(transport, world, fn, shared))
        fail_msg("%s, %d ranks, stage %d, %s, V %d", transport, world, job->stage,
                 job->gather ? job->gather : "auto", job->toy.micro_batches);
    for (int r = 1; r < world; r++)
        assert_memory_equal(shared->digest[r], shared->digest[0], 16);
    *job = *shared;
    team_shared_free(shared, sizeof *shared);
}

/** Calls fn at every stage, where gathers copy and where they don't. */
static void everywhere(void (*fn)(int stage, const char *gather))
{
    for (int stage = 0; stage <= 3; stage++) {
        fn(stage, "copy");
        if (stage > 0)
            fn(stage, "shared");
        if (stage == 3)
            fn(stage, "slots");
    }
}

/* ------------------------------------------------------------------ the same bits */

static bool train(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_job(rank, job) || !toy_train(rank, &job->toy, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == STEPS && info.updates == STEPS && info.norm > 0 && info.clip == 1);
    return true;
}

static void local_sums(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage <= 1; stage++) {
            const zero_dtype dtype = world % 2 ? ZERO_F32 : ZERO_BF16;
            struct job plain = job_of(dtype, 2 * world, false),
                       fused = job_of(dtype, 2 * world, true);
            plain.reduction = fused.reduction = "local";
            plain.stage = fused.stage = stage;
            run(&plain, team_threads(world), world, train);
            run(&fused, team_threads(world), world, train);
            assert_memory_equal(fused.digest[0], plain.digest[0], 16);
        }
}

/** Every other step is fused. What the others gather again after its gradient was handed over
 * is not fetched ahead where it may not be. */
static bool train_now_and_then(struct team_rank *rank, void *user)
{
    struct job *job = user;
    struct toy toy = job->toy;
    rank->config.persist_numel = ZERO_OFF;
    rank->config.open_units = 1;
    if (!open_job(rank, job))
        return false;
    for (int step = 0; step < STEPS; step++) {
        toy.fused = job->toy.fused && step % 2;
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            if (!toy_micro(rank, &toy, i, NULL, NULL))
                return false;
            for (zero_unit unit = toy.unit_count - 1; unit >= 0 && !toy.fused; unit--) {
                TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
                TEAM_OK(rank, zero_release(rank->z, unit, NULL));
            }
        }
        for (int i = 0; i < rank->z->placement.gather.slot_count && toy.fused; i++)
            TEAM_CHECK(!rank->z->gathers.slots[i].in_flight);
        TEAM_OK(rank, toy_update(rank, &toy));
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

static void compare_now_and_then(int stage, const char *gather)
{
    struct job plain = job_of(ZERO_F32, 3, false), fused = job_of(ZERO_F32, 3, true);
    fused.stage = stage;
    fused.gather = gather;
    run(&plain, "self", 1, train_now_and_then);
    for (int world = 2; world <= 3; world++) {
        run(&fused, "threads", world, train_now_and_then);
        assert_memory_equal(fused.digest[0], plain.digest[0], 16);
    }
}

static void nothing_old_is_fetched_ahead(void **state)
{
    (void)state;
    everywhere(compare_now_and_then);
}

/* ------------------------------------------------------------------ hazards */

/** One rank looks at each unit for a while, before it hands its gradient over, and at what is
 * always readable, after it. In the last round the last rank's micro-batch does not count. */
static bool stare(struct team_rank *rank, void *user)
{
    static const int places[][2] = {
        {7, 0}, {8, 0}, {8, 1}, {8, 2}, {6, 0}}; // a tensor of each unit
    struct job *job = user;
    const struct toy *toy = &job->toy;
    if (!open_job(rank, job))
        return false;
    for (int step = 0; step < 2 * rank->world; step++) {
        const bool late = step % rank->world == rank->rank;
        const volatile float *small = zero_param_ptr(rank->z, 0, 0);
        const float before = *small;
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
            if (i == zero_micro_count(rank->z) - 1)
                TEAM_OK(rank, toy_fuse(rank, toy));
            for (zero_unit unit = 0; unit < toy->unit_count; unit++) {
                TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
                TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
                *(float *)zero_grad_ptr(rank->z, places[unit][0], places[unit][1]) = 0.25f;
                const double sum = toy_unit_sum(rank, toy, unit);
                usleep(late ? 1000 : 0);
                TEAM_CHECK(toy_unit_sum(rank, toy, unit) == sum);
                TEAM_OK(rank, zero_release(rank->z, unit, NULL));
                if (unit == 0)
                    *(float *)zero_grad_ptr(rank->z, 0, 0) = 0.25f;
                TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
                usleep(late ? 200 : 0);
                TEAM_CHECK(*small == before);
            }
        }
        TEAM_OK(rank, zero_step(rank->z, NULL, NULL));
        TEAM_CHECK(*small != before);
    }
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

static void compare_stares(int stage, const char *gather)
{
    for (int world = 2; world <= 3; world++) {
        struct job expected = job_of(ZERO_F32, 2 * world - 1, true);
        struct job threads = expected;
        threads.stage = stage;
        threads.gather = gather;
        struct job processes = threads;
        run(&expected, "threads", world, stare);
        run(&threads, "threads", world, stare);
        run(&processes, "shm", world, stare);
        assert_memory_equal(threads.digest[0], expected.digest[0], 16);
        assert_memory_equal(processes.digest[0], expected.digest[0], 16);
    }
}

static void nobody_writes_what_is_read(void **state)
{
    (void)state;
    everywhere(compare_stares);
}

/* ------------------------------------------------------------------ what is refused */

#define REFUSED(rank, call, code, words)                                                           \
    TEAM_CHECK((call) == (code) && strstr(zero_last_error((rank)->z), words))

static bool refused_arguments(struct team_rank *rank)
{
    const zero_hyper hyper[3] = {{1e-3, 0.9, 0.99, 1e-8, 0}, {1e-3, 0.9, 0.99, 1e-8, 0}};
    zero_step_args args = zero_step_args_default();
    REFUSED(rank, zero_step_in_backward(rank->z, NULL), ZERO_E_INVALID,
            "zero_step_in_backward needs");
    REFUSED(rank, zero_step_in_backward(rank->z, &args), ZERO_E_INVALID, "of 0 groups, not 2");
    args.group_count = 2;
    args.hyper = hyper;
    args.max_norm = 1;
    REFUSED(rank, zero_step_in_backward(rank->z, &args), ZERO_E_INVALID, "max_norm 1");
    args.max_norm = 0;
    args.scale = NAN;
    REFUSED(rank, zero_step_in_backward(rank->z, &args), ZERO_E_INVALID, "scale nan");
    return true;
}

/** In a fused step, its unit gathered and its gradient open. */
static bool refused_inside(struct team_rank *rank, const struct toy *toy)
{
    REFUSED(rank, zero_grad_done(rank->z, UNIT, NULL), ZERO_E_STATE, "release it first");
    TEAM_OK(rank, zero_release(rank->z, UNIT, NULL));
    TEAM_OK(rank, zero_grad_done(rank->z, UNIT, NULL));
    REFUSED(rank, zero_gather(rank->z, UNIT, NULL), ZERO_E_STATE, "unit 2 (above), whose gradient");
    REFUSED(rank, toy_fuse(rank, toy), ZERO_E_STATE, "a fused step already");
    TEAM_OK(rank, zero_gather(rank->z, BESIDE, NULL));
    TEAM_OK(rank, zero_release(rank->z, BESIDE, NULL));
    return true;
}

static bool finish_micro(struct team_rank *rank, const struct toy *toy)
{
    for (zero_unit unit = 0; unit < toy->unit_count; unit++) {
        if (rank->z->units[unit].grad_handed)
            continue;
        TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    return true;
}

static bool refuse(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct toy *toy = &job->toy;
    if (!open_job(rank, job) || !refused_arguments(rank))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        REFUSED(rank, toy_fuse(rank, toy), ZERO_E_STATE, "micro-batches were begun");
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        if (i == zero_micro_count(rank->z) - 1)
            break;
        TEAM_CHECK(finish_micro(rank, toy));
    }
    TEAM_OK(rank, zero_gather(rank->z, UNIT, NULL));
    TEAM_OK(rank, toy_fuse(rank, toy));
    TEAM_OK(rank, zero_grad_open(rank->z, UNIT, NULL));
    TEAM_CHECK(refused_inside(rank, toy) && finish_micro(rank, toy));
    struct toy other = *toy;
    other.micro_batches++; // another scale
    REFUSED(rank, toy_update(rank, &other), ZERO_E_INVALID, "other arguments");
    double norm;
    TEAM_OK(rank, zero_grad_norm(rank->z, 1, &norm));
    REFUSED(rank, zero_gather(rank->z, UNIT, NULL), ZERO_E_STATE, "unit 2 (above), whose gradient");
    TEAM_OK(rank, toy_update(rank, toy));
    TEAM_OK(rank, zero_gather(rank->z, UNIT, NULL));
    TEAM_OK(rank, zero_release(rank->z, UNIT, NULL));
    // Too late in the next one.
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_OK(rank, zero_grad_open(rank->z, UNIT, NULL));
    if (zero_micro_count(rank->z) == 1)
        REFUSED(rank, toy_fuse(rank, toy), ZERO_E_STATE, "unit 2 (above) was opened");
    TEAM_OK(rank, zero_grad_done(rank->z, UNIT, NULL));
    if (zero_micro_count(rank->z) == 1)
        REFUSED(rank, toy_fuse(rank, toy), ZERO_E_STATE, "unit 2 (above) was handed over");
    return true;
}

static void refuse_at(int stage, const char *gather)
{
    for (int world = 1; world <= 2; world++)
        for (int rounds = 1; rounds <= 2; rounds++) {
            struct job job = job_of(ZERO_F32, rounds * world, true);
            job.stage = stage;
            job.gather = gather;
            run(&job, team_threads(world), world, refuse);
        }
}

static void what_could_read_changing_weights(void **state)
{
    (void)state;
    everywhere(refuse_at);
}

static bool would_skip(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    rank->config.nonfinite = ZERO_NONFINITE_SKIP;
    TEAM_CHECK(open_job(rank, job));
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    REFUSED(rank, toy_fuse(rank, &job->toy), ZERO_E_INVALID, "nonfinite=skip");
    return true;
}

static void a_policy_to_skip(void **state)
{
    (void)state;
    struct job job = job_of(ZERO_F32, 1, true);
    run(&job, "self", 1, would_skip);
}

/* ------------------------------------------------------------------ what is told to all */

/** The last rank fuses another step, or none. */
static bool disagree(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    struct toy toy = job->toy;
    const bool odd = rank->rank == rank->world - 1;
    if (!open_job(rank, job) || !toy_train(rank, &toy, 1))
        return false;
    toy.fused = toy.fused && !odd;
    if (odd && !job->toy.fused)
        toy.micro_batches++; // another scale
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    if (toy.fused || !job->toy.fused)
        TEAM_OK(rank, toy_fuse(rank, &toy));
    TEAM_OK(rank, zero_barrier(rank->z)); // from here on any call may tell
    const bool early = job->toy.fused && job->stage > 0;
    for (zero_unit unit = 0; unit < toy.unit_count; unit++) {
        zero_result r = zero_grad_open(rank->z, unit, NULL);
        r = r ? r : zero_grad_done(rank->z, unit, NULL);
        TEAM_CHECK(r == ZERO_OK || (early && r == ZERO_E_DIVERGED));
    }
    REFUSED(rank, toy_update(rank, &toy), ZERO_E_DIVERGED,
            early ? "only one of them waits for all ranks" : "different arguments");
    TEAM_CHECK(zero_step(rank->z, NULL, NULL) == ZERO_E_DIVERGED);
    return true;
}

static void ranks_that_differ(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int fused = 0; fused <= 1; fused++) {
            struct job job = job_of(ZERO_F32, 2 + stage % 2, fused);
            job.stage = stage;
            run(&job, "threads", job.toy.micro_batches, disagree);
        }
}

/** A gradient is not finite: the step fails, and no weight has become so. */
static bool spoil(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!open_job(rank, job) || !toy_train(rank, &job->toy, 1))
        return false;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    TEAM_OK(rank, toy_fuse(rank, &job->toy));
    for (zero_unit unit = 0; unit < job->toy.unit_count; unit++) {
        TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
        float *gradient = zero_grad_ptr(rank->z, 8, 1);
        if (gradient && rank->rank == rank->world - 1)
            gradient[1234] = INFINITY;
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    REFUSED(rank, zero_step(rank->z, NULL, NULL), ZERO_E_NONFINITE,
            "stacked, slice 1, element 1234");
    TEAM_CHECK(!strstr(zero_last_error(rank->z), "a part of the fused update is made") ==
               (job->stage == 0 && rank->world > 1));
    for (size_t s = 0; s < rank->z->layout.bucket_count; s++) {
        const struct eng_bucket_place *place = &rank->z->placement.buckets[s];
        const float *weights = eng_weights(rank->z, s, place->state_first * BASE_GRANULE);
        for (size_t i = 0; i < place->state_granules * BASE_GRANULE; i++)
            TEAM_CHECK(isfinite(weights[i]));
    }
    return true;
}

static void a_gradient_that_is_not_finite(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= 3; world++) {
            struct job job = job_of(ZERO_F32, world, true);
            job.stage = stage;
            run(&job, team_threads(world), world, spoil);
        }
}

enum { VICTIM = 1 };

/** The victim dies at some point of a fused step. */
static bool die(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct toy *toy = &job->toy;
    if (!open_job(rank, job) || !toy_train(rank, toy, 1))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == VICTIM)
        TEAM_CHECK(base_fault_set("coll.reduce-scatter.*:kill@20", NULL) == ZERO_OK);
    zero_result r = zero_micro_begin(rank->z, 0, NULL);
    r = r ? r : toy_fuse(rank, toy);
    for (zero_unit unit = 0; !r && unit < toy->unit_count; unit++) {
        r = zero_grad_open(rank->z, unit, NULL);
        r = r ? r : zero_grad_done(rank->z, unit, NULL);
    }
    r = r ? r : zero_step(rank->z, NULL, NULL);
    TEAM_CHECK(r == ZERO_E_PEER && strstr(zero_last_error(rank->z), "rank 1 died"));
    return true;
}

static void a_rank_that_dies(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job job = job_of(ZERO_F32, 3, true);
        job.stage = stage;
        assert_true(team_run_killed(3, VICTIM, die, &job));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_sums),
        cmocka_unit_test(nothing_old_is_fetched_ahead),
        cmocka_unit_test(nobody_writes_what_is_read),
        cmocka_unit_test(what_could_read_changing_weights),
        cmocka_unit_test(a_policy_to_skip),
        cmocka_unit_test(ranks_that_differ),
        cmocka_unit_test(a_gradient_that_is_not_finite),
        cmocka_unit_test(a_rank_that_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
