// A whole step, gathers, reductions and update of a model without its arithmetic, against a local
// AdamW. A large model is compared with one rank's share. A fused step counts as bytes that have to
// move. A small model is compared with all of it and two barriers. One row has the kernel of a
// fused step by itself, with gradients in no cache: what memory gives at most. Ranks are threads;
// rank 0 measures. Rows: those whose name has the argument in it, if there is one.
#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/cpu.h"
#include "tests/bench/bench.h"
#include "tests/bench/local_update.h"
#include "tests/ranks/team.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum command { OURS, REFERENCE, FINISH };

// A model: each unit is one tensor.
struct model {
    int units;
    size_t unit_elements;
    int steps; // of one measurement
};

static const struct model large = {16, 1024 * 1024, 1}, small = {4, 25000, 200};

static const char *only = ""; // part of the names of the rows that are asked for

// What all ranks share: rank 0 says what comes next.
struct meeting {
    pthread_barrier_t barrier;
    char name[96]; // of the row
    enum command command;
    const struct model *model;
    int32_t stage;
    zero_dtype dtype, gradient; // of the weights that are worked with, and of their gradient
    const char *gather;         // NULL: the default
    bool fused;
    bool bound;                // the kernel of a fused step without anything around it
    const float *gradients[2]; // of the ranks, for this
};

// One rank.
struct worker {
    struct team_rank *rank;
    struct meeting *meeting;
    bool good;
    bool filled; // every gradient buffer has values
    struct local_state state, bound;
};

/* ------------------------------------------------------------------ ours */

static bool commit(struct team_rank *rank, const struct meeting *meeting)
{
    rank->config.stage = meeting->stage;
    rank->config.gather = meeting->gather;
    rank->config.micro_batches = rank->world;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    zero_param_desc desc = zero_param_default();
    desc.name = "weights";
    desc.dtype = meeting->dtype;
    desc.grad_dtype = meeting->gradient;
    desc.ndim = 2;
    desc.shape[0] = (uint64_t)meeting->model->units;
    desc.shape[1] = meeting->model->unit_elements;
    desc.unit_count = meeting->model->units;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

// Small numbers of different sizes, once: the time is that of moving and adding them.
static void fill_gradient(struct worker *worker, zero_unit unit)
{
    void *gradient = zero_grad_ptr(worker->rank->z, 0, unit);
    for (size_t i = 0; i < worker->meeting->model->unit_elements; i++) {
        const float value = 1e-3f * (float)(1 + i % 1000);
        if (worker->meeting->gradient == ZERO_BF16)
            ((uint16_t *)gradient)[i] = base_bf16_from_f32(value);
        else
            ((float *)gradient)[i] = value;
    }
}

static bool one_step(struct worker *worker)
{
    struct team_rank *rank = worker->rank;
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &local_hyper;
    args.scale = 1.0 / rank->world;
    args.max_norm = worker->meeting->fused ? 0.0 : 1.0;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit unit = 0; unit < worker->meeting->model->units; unit++) { // forward
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    if (worker->meeting->fused)
        TEAM_OK(rank, zero_step_in_backward(rank->z, &args));
    for (zero_unit unit = worker->meeting->model->units - 1; unit >= 0; unit--) { // backward
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_open_raw(rank->z, unit, NULL));
        if (!worker->filled)
            fill_gradient(worker, unit);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    worker->filled = true;
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

/* ------------------------------------------------------------------ reference */

static float *filled(struct base_arena *arena, size_t count)
{
    float *part = base_arena_alloc(arena, count * sizeof *part, 0);
    for (size_t i = 0; part && i < count; i++)
        part[i] = 1e-3f * (float)(1 + i % 1000);
    return part;
}

static bool allocate_state(struct local_state *state, size_t count, size_t gradients, bool narrow,
                           struct base_arena *arena)
{
    const size_t bytes = (gradients + 3 * count) * sizeof(float) + (narrow ? 2 * count : 0);
    state->count = count;
    TEAM_CHECK(base_arena_init(arena, bytes + (size_t)5 * 4096, 4096, NULL) == ZERO_OK);
    state->gradient = filled(arena, gradients);
    state->moment[0] = filled(arena, count);
    state->moment[1] = filled(arena, count);
    state->weight = filled(arena, count);
    state->work = narrow ? base_arena_alloc(arena, 2 * count, 0) : NULL;
    return true;
}

static bool allocate(struct worker *worker, struct base_arena arenas[2])
{
    const struct model *model = worker->meeting->model;
    const bool narrow = worker->meeting->dtype == ZERO_BF16;
    const size_t all = (size_t)model->units * model->unit_elements;
    const size_t count = model == &large ? all / (size_t)worker->rank->world : all;
    if (!allocate_state(&worker->state, count, count, narrow, &arenas[0]))
        return false;
    if (!worker->meeting->bound)
        return true;
    TEAM_CHECK(allocate_state(&worker->bound, count, all, narrow, &arenas[1]));
    worker->meeting->gradients[worker->rank->rank] = worker->bound.gradient;
    return true;
}

// The kernel of a fused step of two ranks over this rank's half of every unit, the last unit
// first.
static bool one_bound(struct worker *worker)
{
    const size_t unit = worker->meeting->model->unit_elements, half = unit / 2;
    for (size_t u = (size_t)worker->meeting->model->units; u-- > 0;)
        local_update_sums(&worker->bound, u * half, half, worker->meeting->gradients,
                          u * unit + (size_t)worker->rank->rank * half);
    return true;
}

// One rank updates the whole small model, between two barriers of all.
static bool one_reference(struct worker *worker)
{
    const bool apart = worker->meeting->model == &small;
    if (apart)
        TEAM_OK(worker->rank, zero_barrier(worker->rank->z));
    if (!apart || worker->rank->rank == 0)
        local_update(&worker->state);
    if (apart)
        TEAM_OK(worker->rank, zero_barrier(worker->rank->z));
    return true;
}

/* ------------------------------------------------------------------ ranks */

// Does what was ordered, together with the other ranks; false at the end.
static bool obey(struct worker *worker)
{
    struct meeting *meeting = worker->meeting;
    pthread_barrier_wait(&meeting->barrier);
    if (meeting->command == FINISH)
        return false;
    for (int i = 0; i < meeting->model->steps && worker->good; i++)
        worker->good = meeting->command == REFERENCE ? one_reference(worker)
                       : meeting->bound              ? one_bound(worker)
                                                     : one_step(worker);
    pthread_barrier_wait(&meeting->barrier);
    return true;
}

static double timed(void *user, enum command command)
{
    struct worker *worker = user;
    worker->meeting->command = command;
    const double begin = bench_now();
    obey(worker);
    return bench_now() - begin;
}

static double ours(void *user)
{
    return timed(user, OURS);
}

static double reference(void *user)
{
    return timed(user, REFERENCE);
}

// Bytes of an element that an update has to move beside its gradient: fp32 weight and two moments
// in and out, and the bf16 weight out.
static double state_bytes(zero_dtype dtype)
{
    return dtype == ZERO_BF16 ? 26 : 24;
}

// What is measured in which unit, and what is good enough.
static void choose_amounts(const struct worker *worker, struct bench_row *row)
{
    const struct meeting *meeting = worker->meeting;
    const double elements = (double)meeting->model->units * (double)meeting->model->unit_elements;
    const double state = state_bytes(meeting->dtype),
                 gradient = meeting->gradient == ZERO_BF16 ? 2 : 4;
    const int world = worker->rank->world;
    if (meeting->fused) {
        // A rank's share of every rank's gradient; the reference reads an fp32 one.
        row->unit = "GB/s";
        row->ours_amount = 1e-9 * elements / world * (gradient * world + state);
        row->reference_amount = 1e-9 * elements / world * (4 + state);
        row->target = meeting->bound ? 0 : 1 / 1.10;
    } else if (meeting->model == &small) {
        row->reference_name = "update, 2 barriers";
        row->unit = "steps/ms";
        row->ours_amount = row->reference_amount = 1e-3 * meeting->model->steps;
        row->target = 1 / 1.5;
    } else {
        row->unit = "Mel/s";
        row->ours_amount = row->reference_amount = 1e-6 * elements;
    }
}

static void lead(struct worker *worker)
{
    struct bench_row row = {
        .name = worker->meeting->name,
        .reference_name = "local update",
        .ours = ours,
        .reference = reference,
        .user = worker,
    };
    choose_amounts(worker, &row);
    bench_run(&row);
    worker->meeting->command = FINISH;
    obey(worker);
}

static bool run_rank(struct team_rank *rank, void *user)
{
    struct base_arena arenas[2] = {{0}, {0}};
    struct worker worker = {.rank = rank, .meeting = user};
    worker.good = commit(rank, worker.meeting) && allocate(&worker, arenas);
    if (worker.good && rank->rank == 0)
        lead(&worker);
    else if (worker.good)
        while (obey(&worker)) {
        }
    base_arena_free(&arenas[0]);
    base_arena_free(&arenas[1]);
    return worker.good;
}

static bool row(int world, struct meeting meeting)
{
    snprintf(meeting.name, sizeof meeting.name, "%s%s %s%s, stage %d%s, %d rank%s",
             meeting.model == &small ? "small " : "", meeting.fused ? "fused" : "step",
             meeting.dtype == ZERO_BF16 ? "bf16" : "f32",
             meeting.gradient != meeting.dtype ? " of f32" : "", meeting.stage,
             meeting.bound    ? ", memory"
             : meeting.gather ? ", copied"
                              : "",
             world, world > 1 ? "s" : "");
    if (!strstr(meeting.name, only))
        return true;
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)world);
    const bool good = team_run(team_threads(world), world, run_rank, &meeting);
    pthread_barrier_destroy(&meeting.barrier);
    return good;
}

static bool rows(int world, struct meeting like)
{
    if (!like.model)
        like.model = &large;
    like.dtype = like.gradient = ZERO_F32;
    if (!row(world, like))
        return false;
    like.dtype = like.gradient = ZERO_BF16;
    if (!row(world, like))
        return false;
    like.gradient = ZERO_F32;
    return !like.fused || row(world, like);
}

static bool rows_of_two(void)
{
    bool good = true;
    for (int32_t stage = 0; good && stage <= 3; stage++) {
        good = rows(2, (struct meeting){.stage = stage});
        if (stage > 0) {
            good = good && rows(2, (struct meeting){.stage = stage, .gather = "copy"});
            good = good && rows(2, (struct meeting){.stage = stage, .fused = true});
        }
        good = good && rows(2, (struct meeting){.stage = stage, .model = &small});
    }
    return good && row(2, (struct meeting){.stage = 1,
                                           .model = &large,
                                           .dtype = ZERO_F32,
                                           .gradient = ZERO_F32,
                                           .fused = true,
                                           .bound = true});
}

int main(int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "usage: bench_step [ROWS]\n");
        return 2;
    }
    if (argc == 2)
        only = argv[1];
    bench_print_header();
    bool good = rows(1, (struct meeting){.stage = 0}) && rows(1, (struct meeting){.stage = 3}) &&
                rows(1, (struct meeting){.stage = 3, .gather = "copy"}) &&
                rows(1, (struct meeting){.stage = 3, .fused = true});
    if (base_cpu_allowed() < 2)
        printf("rows with 2 ranks are left out: this process may use one processor only\n");
    else
        good = good && rows_of_two();
    return good ? 0 : 1;
}
