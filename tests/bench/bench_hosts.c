// Collectives of ranks on two hosts against an MPI's, over one and the same link: hosts.sh makes
// the hosts and has mpirun start this program on both. While one of the two works, the other has
// nothing to do.
//
//     bench_hosts_<library> <address of rank 0's host> <transport>
#include "collectives/rendezvous/mesh.h"
#include "tests/bench/job.h"
#include "tests/bench/mpi_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WORLD = 4, SMALLS = 100, LEAST_PORT = 20000, PORTS = 10000 };

static const size_t elements = (size_t)16 << 20; // of a rank's vector: 64 MiB of f32

enum work {
    GATHER,
    REDUCE_SCATTER,
    ALL_REDUCE_8,
    MPI_GATHER,
    MPI_REDUCE_SCATTER,
    MPI_EXCHANGE,
    MPI_ALL_REDUCE_8,
};

struct rank {
    struct coll_comm *comm;
    int number, world;
    struct coll_arena *arena; // a vector
    float *vector;            // in it
    float *sum;               // of a reduction: a block
    float *area;              // of the exchange
    size_t block;             // elements of a rank
    struct coll_span elements[MOST_WORLD], bytes[MOST_WORLD];
};

/* ------------------------------------------------------------------ the work */

static zero_result gather(struct rank *rank)
{
    const struct coll_all_gather op = {.source = rank->vector + rank->elements[rank->number].offset,
                                       .recv = rank->vector,
                                       .spans = rank->bytes};
    struct coll_request request = {0};
    const zero_result r = coll_all_gather_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result reduce_scatter(struct rank *rank)
{
    const struct coll_reduce_scatter op = {.source = rank->vector,
                                           .dtype = ZERO_F32,
                                           .spans = rank->elements,
                                           .accumulator = rank->sum,
                                           .contributors = rank->world,
                                           .store = true};
    struct coll_request request = {0};
    const zero_result r = coll_reduce_scatter_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result all_reduce_8(struct rank *rank)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    zero_result r = ZERO_OK;
    for (int i = 0; i < SMALLS && r == ZERO_OK; i++)
        r = coll_all_reduce(rank->comm, values, 8, BASE_SUM);
    return r;
}

static bool mpi_all_reduce_8(void)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    bool good = true;
    for (int i = 0; i < SMALLS && good; i++)
        good = mpi_reference_all_reduce_8(values);
    return good;
}

static bool run_mpi(struct rank *rank, enum work work)
{
    switch (work) {
    case MPI_GATHER:
        return mpi_reference_all_gather(rank->vector, rank->block);
    case MPI_REDUCE_SCATTER:
        return mpi_reference_reduce_scatter(rank->vector, rank->sum, rank->block);
    case MPI_EXCHANGE:
        return mpi_reference_exchange(rank->vector, rank->sum, rank->block, rank->area);
    default:
        return mpi_all_reduce_8();
    }
}

static zero_result run(void *user, int work)
{
    struct rank *rank = user;
    switch ((enum work)work) {
    case GATHER:
        return gather(rank);
    case REDUCE_SCATTER:
        return reduce_scatter(rank);
    case ALL_REDUCE_8:
        return all_reduce_8(rank);
    default:
        return run_mpi(rank, (enum work)work) ? ZERO_OK : ZERO_E_IO;
    }
}

/* ------------------------------------------------------------------ the rows */

/** Amounts are bytes that each rank has to get from the others. */
static void rows(struct job *job, const char *transport, const char *library)
{
    char names[3][48], gathered[48], block[48], by_hand[48], reduced[48];
    snprintf(names[0], sizeof names[0], "all-gather, %s", transport);
    snprintf(names[1], sizeof names[1], "reduce-scatter, %s", transport);
    snprintf(names[2], sizeof names[2], "all-reduce of 8 doubles, %s", transport);
    snprintf(gathered, sizeof gathered, "%s's Allgather", library);
    snprintf(block, sizeof block, "%s's Reduce_scatter_block", library);
    snprintf(by_hand, sizeof by_hand, "%s by hand", library);
    snprintf(reduced, sizeof reduced, "%s's Allreduce", library);
    const double p = coll_world(job->comm), n = SMALLS * 1e-3;
    const double s = (p - 1) / p * (double)(elements * sizeof(float)) * 1e-9;
    const double target = strcmp(transport, "ucx") == 0 ? 1 : 0;
    const struct job_row all[] = {
        {names[0], GATHER, s, MPI_GATHER, s, gathered, "GB/s", target, 0},
        {names[1], REDUCE_SCATTER, s, MPI_REDUCE_SCATTER, s, block, "GB/s", target, 0},
        {names[1], REDUCE_SCATTER, s, MPI_EXCHANGE, s, by_hand, "GB/s", 0, 0},
        {names[2], ALL_REDUCE_8, n, MPI_ALL_REDUCE_8, n, reduced, "1/ms", 1 / 1.5, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        job_measure(job, &all[i]);
}

static zero_result open_comm(struct rank *rank, const char *address, const char *transport,
                             struct base_error *error)
{
    char job[64];
    const int number = mpi_reference_agree((int)getpid());
    struct boot_master master = {.port = LEAST_PORT + number % PORTS, .source = "here"};
    snprintf(job, sizeof job, "bench-hosts-%d", number);
    snprintf(master.address, sizeof master.address, "%s", address);
    const struct coll_config config = {.transport = transport,
                                       .rank = rank->number,
                                       .world = rank->world,
                                       .job = job,
                                       .name = "hosts",
                                       .master = &master,
                                       .timeout_ns = UINT64_C(60000000000)};
    return coll_open(&rank->comm, &config, error);
}

/** Memory and the communicator, all pages touched. */
static zero_result prepare(struct rank *rank, const char *address, const char *transport,
                           struct base_error *error)
{
    const size_t area = mpi_reference_area(rank->world);
    rank->block = elements / (size_t)rank->world;
    for (size_t r = 0; r < (size_t)rank->world; r++) {
        rank->elements[r] = (struct coll_span){r * rank->block, rank->block};
        rank->bytes[r] =
            (struct coll_span){r * rank->block * sizeof(float), rank->block * sizeof(float)};
    }
    zero_result r = open_comm(rank, address, transport, error);
    if (!r)
        r = coll_arena_create(rank->comm, elements * sizeof(float), &rank->arena, error);
    if (r)
        return r;
    rank->vector = coll_arena_base(rank->arena);
    rank->sum = calloc(rank->block, sizeof(float));
    rank->area = aligned_alloc(4096, area);
    if (!rank->sum || !rank->area)
        return zero_fail(error, ZERO_E_NOMEM, "no memory");
    memset(rank->area, 0, area);
    return ZERO_OK;
}

int main(int argc, char **argv)
{
    struct base_error error = {0};
    struct rank rank = {0};
    const char *library;
    if (!mpi_reference_open(&argc, &argv, &rank.number, &rank.world, &library))
        return 1;
    if (argc != 3 || rank.world > MOST_WORLD) {
        fprintf(stderr, "usage: %s <address of rank 0's host> <transport>, at most %d ranks\n",
                argv[0], MOST_WORLD);
        return 2;
    }
    zero_result r = prepare(&rank, argv[1], argv[2], &error);
    if (!r) {
        struct job job = {rank.comm, run, &rank};
        if (rank.number == 0) {
            bench_print_header();
            rows(&job, argv[2], library);
        }
        r = rank.number == 0 ? job_finish(&job) : job_follow(&job);
        coll_state(rank.comm, &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", rank.number, error.message);
    coll_close(rank.comm);
    free(rank.sum);
    free(rank.area);
    mpi_reference_close();
    return r ? 1 : 0;
}
