// A whole step, gathers, reductions and update of a large model without its arithmetic, against a
// local AdamW over one rank's share. Ranks are threads; rank 0 measures.
#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/cpu.h"
#include "tests/bench/bench.h"
#include "tests/ranks/team.h"
#include "zero/optim/optim.h"

#include <pthread.h>
#include <stdio.h>

enum {
    UNITS = 16,
    UNIT_ELEMENTS = 1024 * 1024,
    TILE = 64 * 1024, // elements of one call of the kernel, as in the engine
};

static const zero_hyper hyper = {1e-6, 0.9, 0.999, 1e-8, 0.1};

enum command { OURS, REFERENCE, FINISH };

// What all ranks share: rank 0 says what comes next.
struct meeting {
    pthread_barrier_t barrier;
    enum command command;
    int32_t stage;
    zero_dtype dtype;
    const char *gather; // NULL: the default
};

// One rank.
struct worker {
    struct team_rank *rank;
    struct meeting *meeting;
    bool good;
    bool filled;  // every gradient buffer has values
    size_t share; // elements of the local sweep
    float *state[4];
    uint16_t *work;
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
    desc.ndim = 2;
    desc.shape[0] = UNITS;
    desc.shape[1] = UNIT_ELEMENTS;
    desc.unit_count = UNITS;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

// Small numbers of different sizes, once: the time is that of moving and adding them.
static void fill_gradient(struct worker *worker, zero_unit unit)
{
    void *gradient = zero_grad_ptr(worker->rank->z, 0, unit);
    for (size_t i = 0; i < UNIT_ELEMENTS; i++) {
        const float value = 1e-3f * (float)(1 + i % 1000);
        if (worker->meeting->dtype == ZERO_BF16)
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
    args.hyper = &hyper;
    args.scale = 1.0 / rank->world;
    args.max_norm = 1.0;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit unit = 0; unit < UNITS; unit++) { // forward
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    for (zero_unit unit = UNITS - 1; unit >= 0; unit--) { // backward
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_open_raw(rank->z, unit, NULL));
        if (!worker->filled)
            fill_gradient(worker, unit);
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    worker->filled = true;
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

/* ------------------------------------------------------------------ reference */

static bool allocate(struct worker *worker, struct base_arena *arena)
{
    worker->share = (size_t)UNITS * UNIT_ELEMENTS / (size_t)worker->rank->world;
    const size_t bytes = worker->share * sizeof(float);
    TEAM_CHECK(base_arena_init(arena, 4 * bytes + bytes / 2, 4096, NULL) == ZERO_OK);
    for (int k = 0; k < 4; k++) {
        worker->state[k] = base_arena_alloc(arena, bytes, 0);
        for (size_t i = 0; i < worker->share; i++)
            worker->state[k][i] = 1e-3f * (float)(1 + i % 1000);
    }
    if (worker->meeting->dtype == ZERO_BF16)
        worker->work = base_arena_alloc(arena, bytes / 2, 0);
    return true;
}

static void local_update(struct worker *worker)
{
    const struct eng_kernels *kernels = eng_kernels_find("auto");
    const struct eng_choice choice = {.decay = ZERO_DECAY_DECOUPLED};
    union eng_scalars scalars;
    struct eng_fp_state saved;
    eng_fp_enter(&saved);
    eng_optimizer_adamw.prepare(&choice, &hyper, 10, 1e-3, &scalars);
    for (size_t i = 0; i < worker->share; i += TILE) {
        const struct eng_update run = {
            .count = TILE,
            .gradient = worker->state[0] + i,
            .moment = {worker->state[1] + i, worker->state[2] + i},
            .weight = worker->state[3] + i,
            .work = worker->work ? worker->work + i : NULL,
            .work_dtype = ZERO_BF16,
        };
        eng_optimizer_adamw.update(&choice, kernels, &scalars, &run);
    }
    eng_fp_leave(&saved);
}

/* ------------------------------------------------------------------ ranks */

// Does what was ordered, together with the other ranks; false at the end.
static bool obey(struct worker *worker)
{
    struct meeting *meeting = worker->meeting;
    pthread_barrier_wait(&meeting->barrier);
    if (meeting->command == FINISH)
        return false;
    if (meeting->command == REFERENCE)
        local_update(worker);
    else if (worker->good)
        worker->good = one_step(worker);
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

static void lead(struct worker *worker)
{
    char name[80];
    const struct team_rank *rank = worker->rank;
    snprintf(name, sizeof name, "step %s, stage %d%s, %d rank%s",
             worker->meeting->dtype == ZERO_BF16 ? "bf16" : "f32", rank->config.stage,
             worker->meeting->gather ? ", copied" : "", rank->world, rank->world > 1 ? "s" : "");
    const double millions = 1e-6 * (double)UNITS * UNIT_ELEMENTS;
    const struct bench_row row = {
        .name = name,
        .reference_name = "local update",
        .unit = "Mel/s",
        .ours_amount = millions,
        .reference_amount = millions,
        .ours = ours,
        .reference = reference,
        .user = worker,
    };
    bench_run(&row);
    worker->meeting->command = FINISH;
    obey(worker);
}

static bool run_rank(struct team_rank *rank, void *user)
{
    struct base_arena arena = {0};
    struct worker worker = {.rank = rank, .meeting = user};
    worker.good = commit(rank, worker.meeting) && allocate(&worker, &arena);
    if (worker.good && rank->rank == 0)
        lead(&worker);
    else if (worker.good)
        while (obey(&worker)) {
        }
    base_arena_free(&arena);
    return worker.good;
}

static bool row(int world, int32_t stage, const char *gather, zero_dtype dtype)
{
    struct meeting meeting = {.stage = stage, .gather = gather, .dtype = dtype};
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)world);
    const bool good = team_run(team_threads(world), world, run_rank, &meeting);
    pthread_barrier_destroy(&meeting.barrier);
    return good;
}

static bool rows(int world, int32_t stage, const char *gather)
{
    return row(world, stage, gather, ZERO_F32) && row(world, stage, gather, ZERO_BF16);
}

int main(void)
{
    bench_print_header();
    bool good = rows(1, 0, NULL) && rows(1, 3, NULL) && rows(1, 3, "copy");
    if (base_cpu_detect().allowed_cpus < 2)
        printf("rows with 2 ranks are left out: this process may use one processor only\n");
    else
        for (int32_t stage = 0; good && stage <= 3; stage++)
            good = rows(2, stage, NULL) && (stage == 0 || rows(2, stage, "copy"));
    return good ? 0 : 1;
}
