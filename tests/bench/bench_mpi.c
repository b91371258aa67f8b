// Collectives of ranks on one host against an MPI's, and the engine's fused step against what a
// program would write with MPI. Both run in processes that mpirun has started: while one of the two
// works, the other has nothing to do.
#include "base/cpu.h"
#include "tests/bench/job.h"
#include "tests/bench/local_update.h"
#include "tests/bench/mpi_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WORLD = 16, SMALLS = 2000, FEW_SMALLS = 20 };

static const size_t elements = (size_t)64 << 20; // of a rank's vector: 256 MiB of f32

enum work {
    REDUCE_SCATTER,
    ALL_REDUCE,
    GATHER,
    PUBLISH,
    BARRIER,
    ALL_REDUCE_8,
    STEP,
    MPI_REDUCE_SCATTER,
    MPI_EXCHANGE,
    MPI_ALL_REDUCE,
    MPI_ALL_GATHER,
    MPI_BARRIER,
    MPI_ALL_REDUCE_8,
    MPI_STEP,
};

enum { UNITS = 64 }; // of the model

struct rank {
    struct coll_comm *comm;
    int number, world;
    struct coll_arena *arena;           // a vector, and room for a result of the same size
    struct coll_arena *shared;          // a vector that is there once
    float *vector, *result;             // both in the arena
    float *area;                        // of the exchange
    size_t block;                       // elements of a rank
    struct coll_span spans[MOST_WORLD]; // of all ranks,
    struct coll_span bytes[MOST_WORLD]; // and in bytes
    int mpi_smalls;                     // small operations of MPI in a measurement
    volatile float seen;
    zero_ctx *z;              // a model with as many parameters as the vector has elements
    struct local_state state; // of a rank's block: moments
};

/* ------------------------------------------------------------------ the work */

static zero_result reduce_scatter(struct rank *rank)
{
    const struct coll_reduce_scatter op = {
        .source = rank->vector,
        .dtype = ZERO_F32,
        .spans = rank->spans,
        .accumulator = rank->result,
        .contributors = rank->world,
        .store = true,
    };
    struct coll_request request = {0};
    const zero_result r = coll_reduce_scatter_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result all_reduce(struct rank *rank)
{
    const struct coll_all_reduce op = {
        .source = rank->vector,
        .result = rank->result,
        .count = elements,
        .dtype = ZERO_F32,
        .op = BASE_SUM,
    };
    struct coll_request request = {0};
    const zero_result r = coll_all_reduce_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result gather(struct rank *rank)
{
    const struct coll_all_gather op = {
        .source = rank->result + rank->spans[rank->number].offset,
        .recv = rank->result,
        .spans = rank->bytes,
    };
    struct coll_request request = {0};
    const zero_result r = coll_all_gather_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

/** Every rank has written its part of the shared vector, and reads all others'. */
static zero_result publish(struct rank *rank)
{
    const struct coll_all_gather op = {.spans = rank->bytes};
    struct coll_request request = {0};
    zero_result r = coll_all_gather_start(rank->comm, &op, &request);
    if (!r)
        r = coll_drain(rank->comm, &request);
    const float *view = coll_arena_view(rank->shared);
    for (int i = 0; i < rank->world; i++)
        rank->seen = view[rank->spans[i].offset];
    return r;
}

static zero_result small(struct rank *rank, enum work work)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    zero_result r = ZERO_OK;
    for (int i = 0; i < SMALLS && r == ZERO_OK; i++)
        r = work == BARRIER ? coll_barrier(rank->comm)
                            : coll_all_reduce(rank->comm, values, 8, BASE_SUM);
    return r;
}

static bool mpi_small(struct rank *rank, enum work work)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    bool good = true;
    for (int i = 0; i < rank->mpi_smalls && good; i++)
        good = work == MPI_BARRIER ? mpi_reference_barrier() : mpi_reference_all_reduce_8(values);
    return good;
}

static zero_result step(struct rank *rank)
{
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &local_hyper;
    zero_result r = zero_micro_begin(rank->z, 0, NULL);
    r = r ? r : zero_step_in_backward(rank->z, &args);
    for (zero_unit unit = UNITS - 1; unit >= 0 && !r; unit--) {
        r = zero_grad_open_raw(rank->z, unit, NULL);
        r = r ? r : zero_grad_done(rank->z, unit, NULL);
    }
    r = r ? r : zero_step(rank->z, NULL, NULL);
    for (zero_unit unit = 0; unit < UNITS && !r; unit++) { // until all values are here
        r = zero_gather(rank->z, unit, NULL);
        r = r ? r : zero_release(rank->z, unit, NULL);
    }
    return r;
}

static bool mpi_step(struct rank *rank)
{
    struct local_state *state = &rank->state;
    if (!mpi_reference_reduce_scatter(rank->vector, state->gradient, rank->block))
        return false;
    local_update(state);
    return mpi_reference_all_gather(rank->result, rank->block);
}

static bool run_mpi(struct rank *rank, enum work work)
{
    switch (work) {
    case MPI_STEP:
        return mpi_step(rank);
    case MPI_REDUCE_SCATTER:
        return mpi_reference_reduce_scatter(rank->vector, rank->result, rank->block);
    case MPI_EXCHANGE:
        return mpi_reference_exchange(rank->vector, rank->result, rank->block, rank->area);
    case MPI_ALL_REDUCE:
        return mpi_reference_all_reduce(rank->vector, rank->result, elements);
    case MPI_ALL_GATHER:
        return mpi_reference_all_gather(rank->result, rank->block);
    default:
        return mpi_small(rank, work);
    }
}

static zero_result run(void *user, int work)
{
    struct rank *rank = user;
    switch ((enum work)work) {
    case REDUCE_SCATTER:
        return reduce_scatter(rank);
    case ALL_REDUCE:
        return all_reduce(rank);
    case GATHER:
        return gather(rank);
    case PUBLISH:
        return publish(rank);
    case BARRIER:
    case ALL_REDUCE_8:
        return small(rank, (enum work)work);
    case STEP:
        return step(rank);
    default:
        return run_mpi(rank, (enum work)work) ? ZERO_OK : ZERO_E_IO;
    }
}

/* ------------------------------------------------------------------ the rows */

static void rows(struct job *job, const struct rank *rank, const char *library)
{
    char block[40], by_hand[40], gathered[40], reduced[40], barrier[40], reduced_8[40], plain[40];
    snprintf(block, sizeof block, "%s's Reduce_scatter_block", library);
    snprintf(by_hand, sizeof by_hand, "%s by hand", library);
    snprintf(gathered, sizeof gathered, "%s's Allgather", library);
    snprintf(reduced, sizeof reduced, "%s's Allreduce", library);
    snprintf(barrier, sizeof barrier, "%s's Barrier", library);
    snprintf(reduced_8, sizeof reduced_8, "%s's Allreduce", library);
    snprintf(plain, sizeof plain, "%s, its sum and gather", library);
    const double s = (double)elements * sizeof(float) * 1e-9;
    const bool mpich = strcmp(library, "MPICH") == 0;
    const double over_block = mpich ? 4 : 8, e = (double)elements * 1e-6;
    const double n = SMALLS * 1e-3, m = rank->mpi_smalls * 1e-3;
    // A microsecond each for two ranks; a publication in a tenth of a millisecond.
    const double least_small = rank->world == 2 ? 1000 : 0, least_gather = s * 1e4;
    const struct job_row all[] = {
        {"reduce-scatter", REDUCE_SCATTER, s, MPI_REDUCE_SCATTER, s, block, "GB/s", over_block, 0},
        {"reduce-scatter", REDUCE_SCATTER, s, MPI_EXCHANGE, s, by_hand, "GB/s", 1.8, 0},
        {"all-reduce", ALL_REDUCE, s, MPI_ALL_REDUCE, s, reduced, "GB/s", 0, 0},
        {"gather, shared", PUBLISH, s, MPI_ALL_GATHER, s, gathered, "GB/s", 100, least_gather},
        {"gather, copied in place", GATHER, s, MPI_ALL_GATHER, s, gathered, "GB/s", 0, 0},
        {"barrier", BARRIER, n, MPI_BARRIER, m, barrier, "1/ms", 1, least_small},
        {"all-reduce of 8 doubles", ALL_REDUCE_8, n, MPI_ALL_REDUCE_8, m, reduced_8, "1/ms", 1,
         least_small},
        {"fused step", STEP, e, MPI_STEP, e, plain, "Mel/s", mpich ? 0 : 5, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        job_measure(job, &all[i]);
}

/** The model: what is measured has gradients of small numbers, which no rank computes. */
static zero_result prepare_engine(struct rank *rank)
{
    zero_config config = zero_config_default();
    config.stage = 1;
    config.name = "bench-step";
    zero_result r = zero_open(&rank->z, &config);
    if (r)
        return r;
    zero_param_desc desc = zero_param_default();
    desc.name = "weights";
    desc.ndim = 2;
    desc.shape[0] = UNITS;
    desc.shape[1] = elements / UNITS;
    desc.unit_count = UNITS;
    r = zero_add_group(rank->z, NULL, NULL);
    r = r ? r : zero_add_param(rank->z, NULL, &desc);
    r = r ? r : zero_commit(rank->z);
    return r ? r : step(rank);
}

/** Moments, and where the sum goes; weights are this rank's block of the result. */
static zero_result prepare_state(struct rank *rank, struct base_error *error)
{
    struct local_state *state = &rank->state;
    float **const parts[] = {&state->gradient, &state->moment[0], &state->moment[1]};
    state->count = rank->block;
    state->weight = rank->result + rank->spans[rank->number].offset;
    for (int k = 0; k < 3; k++) {
        if (!(*parts[k] = malloc(rank->block * sizeof(float))))
            return zero_fail(error, ZERO_E_NOMEM, "no memory");
        memset(*parts[k], 0, rank->block * sizeof(float));
    }
    return ZERO_OK;
}

/** Memory and the communicator, all pages touched. */
static zero_result prepare(struct rank *rank, struct base_error *error)
{
    char job[64];
    snprintf(job, sizeof job, "bench-%d", mpi_reference_agree((int)getpid()));
    const size_t bytes = elements * sizeof(float), area = mpi_reference_area(rank->world);
    rank->block = elements / (size_t)rank->world;
    for (int r = 0; r < rank->world; r++) {
        rank->spans[r] = (struct coll_span){(size_t)r * rank->block, rank->block};
        rank->bytes[r] =
            (struct coll_span){rank->spans[r].offset * sizeof(float), rank->block * sizeof(float)};
    }
    zero_result r = job_open(&rank->comm, rank->number, rank->world, job, error);
    if (!r)
        r = coll_arena_create(rank->comm, 2 * bytes, &rank->arena, error);
    if (!r)
        r = coll_arena_create_shared(rank->comm, bytes, &rank->bytes[rank->number], 1,
                                     &rank->shared, error);
    rank->area = aligned_alloc(4096, area);
    if (!r && !rank->area)
        r = zero_fail(error, ZERO_E_NOMEM, "no memory");
    if (r)
        return r;
    rank->vector = coll_arena_base(rank->arena);
    rank->result = rank->vector + elements;
    memset(rank->area, 0, area);
    r = prepare_state(rank, error);
    if (!r && prepare_engine(rank))
        r = zero_fail(error, ZERO_E_IO, "%s", zero_last_error(rank->z));
    return r;
}

int main(int argc, char **argv)
{
    struct base_error error = {0};
    struct rank rank = {0};
    const char *library;
    if (!mpi_reference_open(&argc, &argv, &rank.number, &rank.world, &library))
        return 1;
    const bool spins = strcmp(library, "MPICH") == 0;
    rank.mpi_smalls = spins && base_cpu_allowed() < rank.world ? FEW_SMALLS : SMALLS;
    zero_result r = prepare(&rank, &error);
    if (!r) {
        struct job job = {rank.comm, run, &rank};
        if (rank.number == 0) {
            bench_print_header();
            rows(&job, &rank, library);
        }
        r = rank.number == 0 ? job_finish(&job) : job_follow(&job);
        coll_state(rank.comm, &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", rank.number, error.message);
    coll_close(rank.comm);
    zero_close(rank.z);
    free(rank.state.gradient);
    free(rank.state.moment[0]);
    free(rank.state.moment[1]);
    free(rank.area);
    mpi_reference_close();
    return r ? 1 : 0;
}
