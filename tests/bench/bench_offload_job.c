// Jobs whose state is in files. The first has parameters there, too, and its forward and backward
// passes take longer than reading them. The passes of the second take about as long as moving its
// state, the backward pass beside it where steps are fused. The passes of the third hardly take
// time, so that a save lasts for several steps. Ranks are threads; rank 0 measures.
#include "tests/bench/bench_offload_job.h"

#include "base/bfloat16.h"
#include "base/cpu.h"
#include "tests/bench/bench.h"
#include "tests/bench/local_update.h"
#include "tests/bench/weights.h"
#include "tests/ranks/team.h"
#include "tests/unit/temporary.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

// Each unit is one tensor of bf16. A pass goes over its weights so often that computing takes
// several times as long as a disk of 1 GB/s takes to read them, and about as long as one of 2 GB/s
// takes to read and write their state.
enum { UNITS = 16, ELEMENTS = 1 << 20, PASSES = 8, RANKS_MAX = 2 };

// Of which so many begin beside a save, and are compared with as many without.
enum { STEPS = 6 };

struct meeting {
    const char *directory;
    char saved[512]; // where saves go
    enum offload_job job;
    int steps;  // that are taken together
    bool fused; // those are
    bool saves; // a save begins before them, and is complete after them
    int passes; // over each unit's weights
    pthread_barrier_t barrier;
    bool finished;
    double waited[RANKS_MAX]; // seconds that the last steps of each rank waited for gathers
};

struct worker {
    struct team_rank *rank;
    struct meeting *meeting;
    bool good;
    double blocked_s, save_s; // of so many
    int saves;
    float sum; // of all that was computed: zeros, of which no step makes anything else
};

static bool commit(struct team_rank *rank, const struct meeting *meeting)
{
    rank->config.stage = 3;
    rank->config.micro_batches = rank->world;
    rank->config.offload_optimizer = "nvme";
    rank->config.offload_params = meeting->job == OFFLOAD_PARAMS ? "nvme" : "host";
    if (meeting->job == OFFLOAD_SAVES)
        rank->config.compress = "off"; // what it finds out would differ from step to step
    rank->config.nvme_dir = meeting->directory;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    zero_param_desc desc = zero_param_default();
    desc.name = "weights";
    desc.dtype = ZERO_BF16;
    desc.ndim = 2;
    desc.shape[0] = UNITS;
    desc.shape[1] = ELEMENTS;
    desc.unit_count = UNITS;
    desc.fill = meeting->job == OFFLOAD_SAVES ? weights_fill : NULL;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static void compute(struct worker *worker, zero_unit unit)
{
    const uint16_t *weights = zero_param_ptr(worker->rank->z, 0, unit);
    float sums[16] = {0};
    for (int pass = 0; pass < worker->meeting->passes; pass++)
        for (size_t i = 0; i < ELEMENTS; i++)
            sums[i % 16] = sums[i % 16] * 0.5f + base_f32_from_bf16(weights[i]);
    worker->sum += sums[0];
}

static bool pass(struct worker *worker, const zero_step_args *args)
{
    struct team_rank *rank = worker->rank;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit unit = 0; unit < UNITS; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        compute(worker, unit);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    if (worker->meeting->fused)
        TEAM_OK(rank, zero_step_in_backward(rank->z, args));
    for (zero_unit unit = UNITS - 1; unit >= 0; unit--) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
        compute(worker, unit);
        if (worker->meeting->job == OFFLOAD_SAVES) // moments that are no zeros
            memcpy(zero_grad_ptr(rank->z, 0, unit), zero_param_ptr(rank->z, 0, unit),
                   ELEMENTS * sizeof(uint16_t));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    }
    return true;
}

static bool step(struct worker *worker)
{
    struct team_rank *rank = worker->rank;
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &local_hyper;
    args.scale = 1.0 / rank->world;
    if (!pass(worker, &args))
        return false;
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

static bool steps(struct worker *worker)
{
    struct team_rank *rank = worker->rank;
    const struct meeting *meeting = worker->meeting;
    zero_save_options options = zero_save_options_default();
    options.keep = 1; // the one before gives the next one's file
    if (meeting->saves)
        TEAM_OK(rank, zero_save(rank->z, meeting->saved, &options));
    for (int i = 0; i < meeting->steps; i++)
        if (!step(worker))
            return false;
    if (meeting->saves)
        TEAM_OK(rank, zero_save_wait(rank->z));
    return true;
}

static double gather_waits(const struct worker *worker)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    zero_stats(worker->rank->z, &stats);
    return stats.gather_wait_s;
}

// Does what rank 0 does; false at the end.
static bool follow(struct worker *worker)
{
    pthread_barrier_wait(&worker->meeting->barrier);
    if (worker->meeting->finished)
        return false;
    const double before = gather_waits(worker);
    worker->good = worker->good && steps(worker);
    worker->meeting->waited[worker->rank->rank] = gather_waits(worker) - before;
    pthread_barrier_wait(&worker->meeting->barrier);
    return true;
}

static double whole(void *user)
{
    const double begin = bench_now();
    follow(user);
    return bench_now() - begin;
}

static double fused(void *user)
{
    struct worker *worker = user;
    worker->meeting->fused = true; // the others are at the barrier
    const double seconds = whole(user);
    worker->meeting->fused = false;
    return seconds;
}

// Row h: of each step, what is left without the waits of the rank that waits most.
static void measure_waits(struct worker *worker)
{
    const struct bench_row row = {
        .name = "stage 3, parameters on disk",
        .reference_name = "without waits",
        .unit = "Mel/s",
        .target = 0.95,
    };
    const double amount = 1e-6 * UNITS * ELEMENTS;
    double ours[BENCH_ROUNDS], reference[BENCH_ROUNDS], sum = 0;
    whole(worker);
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        const double seconds = whole(worker), *waited = worker->meeting->waited;
        const double most = waited[0] > waited[RANKS_MAX - 1] ? waited[0] : waited[RANKS_MAX - 1];
        ours[round] = amount / seconds;
        reference[round] = amount / (seconds - most);
        sum += seconds;
    }
    const struct bench_result result = bench_summary(ours, reference, BENCH_ROUNDS);
    bench_print(&row, &result);
    worker->meeting->passes = 0;
    const double moving = whole(worker);
    printf("  a step that computes nothing takes %.2f of one that does\n",
           moving * BENCH_ROUNDS / sum);
}

// Row i: fused steps.
static void measure_fused(struct worker *worker)
{
    const struct bench_row row = {
        .name = "stage 3, fused steps",
        .reference_name = "not fused",
        .unit = "Mel/s",
        .ours_amount = 1e-6 * UNITS * ELEMENTS,
        .reference_amount = 1e-6 * UNITS * ELEMENTS,
        .ours = fused,
        .reference = whole,
        .user = worker,
        .target = 1.1,
    };
    bench_run(&row);
}

static double with_save(void *user)
{
    struct worker *worker = user;
    worker->meeting->saves = true;
    const double seconds = whole(user);
    worker->meeting->saves = false;
    zero_save_info info = {.struct_size = sizeof info};
    zero_save_poll(worker->rank->z, &info);
    worker->blocked_s += info.blocked_s;
    worker->save_s += info.seconds;
    worker->saves++;
    return seconds;
}

// Row j: steps beside a save.
static void measure_saves(struct worker *worker)
{
    const struct bench_row row = {
        .name = "6 steps, a save beside",
        .reference_name = "no save",
        .unit = "step/s",
        .ours_amount = STEPS,
        .reference_amount = STEPS,
        .ours = with_save,
        .reference = whole,
        .user = worker,
    };
    worker->meeting->steps = STEPS;
    worker->meeting->passes = 0;
    bench_run(&row);
    printf("  a save blocks for %.3f s of %.3f, on rank 0\n", worker->blocked_s / worker->saves,
           worker->save_s / worker->saves);
    nftw(worker->meeting->saved, temporary_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void measure(struct worker *worker)
{
    switch (worker->meeting->job) {
    case OFFLOAD_PARAMS:
        measure_waits(worker);
        break;
    case OFFLOAD_FUSED:
        measure_fused(worker);
        break;
    case OFFLOAD_SAVES:
        measure_saves(worker);
        break;
    }
}

static bool run_rank(struct team_rank *rank, void *user)
{
    struct worker worker = {.rank = rank, .meeting = user, .good = true};
    if (!commit(rank, worker.meeting))
        return false;
    if (rank->rank > 0) {
        while (follow(&worker)) {
        }
        return worker.good;
    }
    measure(&worker);
    worker.meeting->finished = true;
    follow(&worker);
    return worker.good && worker.sum >= 0;
}

bool offload_job_row(const char *directory, enum offload_job job)
{
    const int world = base_cpu_allowed() < RANKS_MAX ? 1 : RANKS_MAX;
    struct meeting meeting = {.directory = directory, .job = job, .steps = 1, .passes = PASSES};
    snprintf(meeting.saved, sizeof meeting.saved, "%s/bench_offload.saved", directory);
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)world);
    const bool good = team_run(team_threads(world), world, run_rank, &meeting);
    pthread_barrier_destroy(&meeting.barrier);
    return good;
}
