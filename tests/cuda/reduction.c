// reduction=local with all state on the GPU: a rank adds its micro-batches up there, and what
// travels once a step is the transport's own reduce-scatter. Through the host that adds in the
// order of ranks, so a program that computes on the host ends in the same bits, but for what it
// rounds to 16 bits on its way; NCCL's order is its own, so it gets gradients whose sums are exact.
#include "base/arena.h"
#include "tests/cuda/job.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void wide_on_the_way(zero_config *config)
{
    config->comm_dtype = ZERO_F32;
}

static void half_on_the_way(zero_config *config)
{
    config->comm_dtype = ZERO_BF16;
}

static struct job local(int world, int stage, int rounds)
{
    struct job job = job_of(world, stage);
    job.resident = job.local = true;
    job.gather = NULL;
    job.toy.micro_batches = world * rounds;
    job.configure = wide_on_the_way;
    return job;
}

// Worlds, stages, dtypes, one micro-batch or several, added to a buffer or written into it.
static void ranks_end_in_the_bits_of_the_host(void **state)
{
    (void)state;
    for (int turn = 0; turn < 16; turn++) {
        if (!test_takes(turn))
            continue;
        const int world = 1 + turn / 4, stage = turn % 2;
        struct job job = local(world, stage, turn / 2 % 2 ? 3 : 1);
        job.toy.dtype = (zero_dtype[]){ZERO_F32, ZERO_BF16, ZERO_F16}[(turn + turn / 4) % 3];
        job.toy.raw = turn / 2 % 3 != 0;
        job.releases_first = turn == 11;
        job_compare(world, &job);
    }
}

static void so_they_do_with_state_of_the_host(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 1; stage++) {
        struct job job = local(2, stage, 2);
        job.streamed = true;
        job.nvme = stage == 1;
        job_compare(2, &job);
    }
}

// One rank alone sends nothing, and rounds what it has not.
static void one_rank_rounds_as_the_host(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 1; stage++) {
        struct job job = local(1, stage, 3);
        job.toy.dtype = stage ? ZERO_F16 : ZERO_F32;
        job.configure = half_on_the_way;
        job_compare(1, &job);
    }
}

// Between steps; a group's tensors are frozen for some of them, beside others in their buckets.
static bool change_course(struct place *place)
{
    struct team_rank *rank = place->rank;
    double norm;
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 1));
    if (!job_train(place, 2))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, 1, 0));
    TEAM_OK(rank, zero_set_micro_batches(rank->z, rank->world));
    if (!job_train(place, 1) || !job_micro_batches(place))
        return false;
    TEAM_OK(rank, zero_grad_norm(rank->z, 0.5, &norm));
    if (rank->rank == 0)
        place->job->means[0] = norm;
    TEAM_OK(rank, zero_skip_step(rank->z));
    place->steps++;
    TEAM_OK(rank, zero_set_micro_batches(rank->z, 4 * rank->world));
    return job_train(place, 2) && job_conclude(place);
}

static void a_program_may_decide_itself(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        const int world = 1 + turn % 3;
        struct job job = local(world, turn % 2, 3);
        job.toy.frozen = turn < 2 ? 0 : 2;
        job.act = change_course;
        job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ what is not finite */

static void skips(zero_config *config)
{
    config->comm_dtype = ZERO_F32;
    config->nonfinite = ZERO_NONFINITE_SKIP;
}

static void steps_that_are_not_finite_are_skipped(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        const int world = 1 + turn;
        struct job job = local(world, turn % 2, 3);
        job.toy.raw = turn < 2;
        job.toy.absent = false;
        job.configure = skips;
        job.poisoned = 6;
        job_compare(world, &job);
    }
}

// Of the rank whose sum is not finite: all of them see the same, and so does the host.
static bool train_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result last = {.struct_size = sizeof last};
    TEAM_CHECK(job_train_badly(place));
    TEAM_OK(rank, zero_step_info(rank->z, &last));
    TEAM_CHECK(last.bad_rank == 2 % rank->world);
    return true;
}

static void who_sent_it_is_named(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        const int world = 2 + turn / 2;
        struct job job = local(world, turn % 2, 2);
        job.toy.absent = false;
        job.toy.dtype = ZERO_BF16; // without a loss scale that changes
        job.act = train_badly;
        job.poisoned = 2;
        job.looks_elsewhere = true; // for it learns of it sooner
        job_compare(world, &job);
        job.moves = "nccl";
        if (job_gpu_each(world))
            job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ exact sums */

static void set(zero_dtype dtype, void *array, uint64_t k, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == ZERO_F32)
        ((float *)array)[k] = value;
    else
        ((uint16_t *)array)[k] = (uint16_t)(bits >> 16);
}

// Adds small whole numbers, or writes them. bf16 holds every sum of them.
static void add_numbers(struct work *work)
{
    const zero_dtype dtype = toy_grad_dtype(work->toy, work->tensor);
    for (uint64_t k = 0; k < work->tensor->numel; k++) {
        const uint64_t number = (k * 5 + work->micro.index * 2 + work->micro.step) % 13;
        const float before = work->toy->raw ? 0 : toy_element(dtype, work->gradient, k);
        set(dtype, work->gradient, k, before + work->factor * ((float)number - 6));
    }
}

static bool add_large(struct place *place);

static float factor_of(const struct place *place, zero_unit unit, const zero_micro *micro)
{
    const struct job *job = place->job;
    const bool bad = job->poisoned >> micro->step & 1 && unit == 4 && micro->index == 1;
    return job->act == add_large ? 9000 : bad ? INFINITY : 1;
}

// By another stream in each micro-batch.
static bool give_numbers(struct place *place, zero_unit unit, const zero_micro *micro)
{
    const struct toy *toy = &place->job->toy;
    struct team_rank *rank = place->rank;
    void *stream = place->streams[(unit + (int)micro->index / rank->world + place->steps) % 2];
    struct work works[JOB_WORKS];
    int count = 0;
    TEAM_OK(rank, toy->raw ? zero_grad_open_raw(rank->z, unit, stream)
                           : zero_grad_open(rank->z, unit, stream));
    for (int p = 0; p < toy->tensor_count; p++) {
        const int slice = toy_slice_in(&toy->tensors[p], unit);
        const struct work work = {
            .toy = toy,
            .tensor = &toy->tensors[p],
            .micro = *micro,
            .factor = factor_of(place, unit, micro),
            .gradient = slice < 0 ? NULL : zero_grad_ptr(rank->z, p, slice),
        };
        if (work.gradient)
            works[count++] = work;
    }
    if (!job_queue(place, stream, add_numbers, works, count))
        return false;
    TEAM_OK(rank, zero_grad_done(rank->z, unit, stream));
    return true;
}

static bool give_all_numbers(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_micro micro = {.struct_size = sizeof micro};
    for (int i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
        for (zero_unit unit = place->job->toy.unit_count - 1; unit >= 0; unit--)
            if (!give_numbers(place, unit, &micro))
                return false;
    }
    return true;
}

static bool train_exactly(struct place *place, int steps)
{
    for (int step = 0; step < steps; step++, place->steps++) {
        if (!give_all_numbers(place))
            return false;
        TEAM_OK(place->rank, toy_update_on(place->rank, &place->job->toy, place->streams[0]));
    }
    return true;
}

static bool add_exactly(struct place *place)
{
    return train_exactly(place, JOB_STEPS) && job_conclude(place);
}

static void exact_sums(const char *moves, int most)
{
    for (int turn = 0; turn < 8; turn++) {
        if (!test_takes(turn))
            continue;
        const int world = 2 + (turn + turn / 4) % (most - 1);
        struct job job = local(world, turn / 2 % 2, turn % 4 ? 3 : 1);
        job.moves = moves;
        job.act = add_exactly;
        job.toy.dtype = turn < 4 ? ZERO_BF16 : ZERO_F32;
        job.toy.raw = turn % 2 == 0;
        job.toy.frozen = turn == 5 ? 2 : 0;
        job.configure = turn % 4 < 2 ? half_on_the_way : NULL;
        job_compare(world, &job);
    }
}

static void what_travels_in_16_bits_is_summed(void **state)
{
    (void)state;
    exact_sums("host", JOB_RANKS);
}

static void so_it_is_by_nccl(void **state)
{
    (void)state;
    if (job_most_gpus() >= 2)
        exact_sums("nccl", job_most_gpus()); // a GPU each
    struct job alone = local(1, 1, 3);
    alone.moves = "nccl";
    job_compare(1, &alone);
}

static void f16_on_the_way(zero_config *config)
{
    config->comm_dtype = ZERO_F16;
    config->loss_scale = "off";
    config->nonfinite = ZERO_NONFINITE_ERROR;
}

static bool add_large(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!train_exactly(place, 1))
        return false;
    TEAM_CHECK(zero_step_wait(rank->z) == ZERO_E_NONFINITE);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "every gradient is finite, but their sum"));
    return true;
}

// What ranks send is finite, and its sum, which is f16 as well, is not.
static void a_sum_that_overflows_is_nobodys(void **state)
{
    (void)state;
    struct job job = local(2, 1, 1);
    job.toy.dtype = ZERO_F32;
    job.act = add_large;
    job.configure = f16_on_the_way;
    job_run_on_gpus(2, &job);
}

// Two steps are queued before any of their work is done, and no gradient waits for weights: what is
// found in the second one's is there when the verdict on the first one falls, and stays.
static bool add_badly(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result last = {.struct_size = sizeof last};
    if (!job_hold(place->streams[0]) || !give_all_numbers(place))
        return false;
    TEAM_OK(rank, toy_update_on(rank, &place->job->toy, place->streams[0]));
    place->steps++;
    if (!give_all_numbers(place))
        return false;
    zero_result r = toy_update_on(rank, &place->job->toy, place->streams[0]);
    TEAM_CHECK(r == (place->streams[0] ? ZERO_OK : ZERO_E_NONFINITE));
    if (!r)
        TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 0);
    r = zero_step_wait(rank->z);
    TEAM_CHECK(r == ZERO_E_NONFINITE && zero_barrier(rank->z) == ZERO_E_NONFINITE);
    TEAM_OK(rank, zero_step_info(rank->z, &last));
    TEAM_CHECK(last.bad_rank == 1);
    if (rank->rank == 0)
        place->job->last = last;
    return true;
}

static void nccls_is_named_though_steps_are_queued(void **state)
{
    (void)state;
    if (!job_gpu_each(3))
        skip();
    for (int turn = 0; turn < 8; turn++) {
        const int world = 2 + turn / 4;
        struct job job = local(world, turn % 2, 1);
        job.moves = "nccl";
        job.act = add_badly;
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.poisoned = 2;
        job_compare(world, &job);
    }
}

/* ------------------------------------------------------------------ waits */

// All of two steps is queued behind work that is not done before they have returned.
static bool step_without_waiting(struct place *place)
{
    struct team_rank *rank = place->rank;
    zero_step_result info = {.struct_size = sizeof info};
    if (!job_hold(place->streams[0]) || !train_exactly(place, 2))
        return false;
    if (place->streams[0])
        TEAM_CHECK(zero_step_info(rank->z, &info) == ZERO_AGAIN);
    TEAM_OK(rank, zero_barrier(rank->z));
    job_let_go(place, 0);
    return job_train_queued(place, train_exactly, 4) && job_conclude(place);
}

static void a_step_waits_for_nothing(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        const int world = 1 + turn / 2;
        if (!job_gpu_each(world))
            skip();
        struct job job = local(world, turn % 2, 2);
        job.moves = "nccl";
        job.toy.dtype = ZERO_BF16; // without a loss scale that the program asks for
        job.act = step_without_waiting;
        job_compare(world, &job);
    }
}

// Ranks are threads here, whose allocations are counted together.
static bool count_allocations(struct place *place)
{
    struct team_rank *rank = place->rank;
    if (!train_exactly(place, 3))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    const uint64_t before = base_allocation_count();
    TEAM_OK(rank, zero_barrier(rank->z));
    if (!train_exactly(place, 3))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(!place->streams[0] || base_allocation_count() == before);
    TEAM_OK(rank, zero_barrier(rank->z));
    return job_conclude(place);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    struct job job = local(2, 1, 2);
    job.act = count_allocations;
    job_compare(2, &job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_end_in_the_bits_of_the_host),
        cmocka_unit_test(so_they_do_with_state_of_the_host),
        cmocka_unit_test(one_rank_rounds_as_the_host),
        cmocka_unit_test(a_program_may_decide_itself),
        cmocka_unit_test(steps_that_are_not_finite_are_skipped),
        cmocka_unit_test(who_sent_it_is_named),
        cmocka_unit_test(what_travels_in_16_bits_is_summed),
        cmocka_unit_test(so_it_is_by_nccl),
        cmocka_unit_test(a_sum_that_overflows_is_nobodys),
        cmocka_unit_test(nccls_is_named_though_steps_are_queued),
        cmocka_unit_test(a_step_waits_for_nothing),
        cmocka_unit_test(steps_allocate_nothing),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    return cmocka_run_group_tests(tests, job_set_up, job_tear_down);
}
