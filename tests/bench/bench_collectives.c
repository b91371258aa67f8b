// Gathers and small operations of ranks on one host, each a process, against what the machine can
// do. Reductions are in bench_reduce.c.
#include "collectives/comm/comm.h"
#include "tests/bench/job.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { MOST_WORLD = 4, BARRIERS = 2000 };

static const size_t vector_bytes = (size_t)256 << 20; // a rank

enum work {
    GATHER,
    GATHER_ELSEWHERE,
    COPY,
    BARRIER,
    ALL_REDUCE,
    FLAGS,
};

/** A barrier with nothing around it: the limit of what ranks can do. */
struct flag {
    _Alignas(128) _Atomic unsigned long count;
};

struct rank {
    struct coll_comm *comm;
    int number, world;
    struct coll_arena *arena;           // the vector to gather in place
    unsigned char *elsewhere;           // private, of the same size
    struct coll_span bytes[MOST_WORLD]; // and bytes
    struct flag *flags;
};

/* ------------------------------------------------------------------ the work */

/** What memory can do: stores that don't read what they overwrite. */
static void copy(unsigned char *to, const unsigned char *from, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_load_si128((const __m128i *)(const void *)(from + i)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static zero_result gather(struct rank *rank, bool in_place)
{
    const struct coll_all_gather op = {
        .source = (unsigned char *)coll_arena_base(rank->arena) + rank->bytes[rank->number].offset,
        .recv = in_place ? coll_arena_base(rank->arena) : rank->elsewhere,
        .spans = rank->bytes,
    };
    struct coll_request request = {0};
    const zero_result r = coll_all_gather_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static void flag_barrier(struct rank *rank)
{
    const unsigned long mine = atomic_load(&rank->flags[rank->number].count) + 1;
    atomic_store(&rank->flags[rank->number].count, mine);
    for (int r = 0; r < rank->world; r++)
        for (int spins = 0; atomic_load(&rank->flags[r].count) < mine; spins++)
            if (spins % 64 == 63)
                sched_yield();
}

static zero_result small(struct rank *rank, enum work work)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    zero_result r = ZERO_OK;
    for (int i = 0; i < BARRIERS && r == ZERO_OK; i++)
        if (work == BARRIER)
            r = coll_barrier(rank->comm);
        else if (work == ALL_REDUCE)
            r = coll_all_reduce(rank->comm, values, 8, BASE_MAX);
        else
            flag_barrier(rank);
    return r;
}

static zero_result run(void *user, int work)
{
    struct rank *rank = user;
    switch ((enum work)work) {
    case GATHER:
        return gather(rank, true);
    case GATHER_ELSEWHERE:
        return gather(rank, false);
    case COPY:
        copy(rank->elsewhere, coll_arena_base(rank->arena), vector_bytes);
        return ZERO_OK;
    default:
        return small(rank, (enum work)work);
    }
}

/* ------------------------------------------------------------------ the rows */

/** Amounts are bytes that have to be read and written, by all ranks together. */
static void rows(struct job *job)
{
    const double s = (double)vector_bytes * 1e-9, p = coll_world(job->comm), n = BARRIERS * 1e-3;
    const double copied = 2 * p * s;
    const struct job_row rows[] = {
        {"all-gather in place", GATHER, 2 * (p - 1) * s, COPY, copied, "copy", "GB/s", 0.95, 0},
        {"all-gather", GATHER_ELSEWHERE, copied, COPY, copied, "copy", "GB/s", 0.95, 0},
        {"barrier", BARRIER, n, FLAGS, n, "bare flags", "1/ms", 0, 0},
        {"all-reduce of 8 doubles", ALL_REDUCE, n, FLAGS, n, "bare flags", "1/ms", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_measure(job, &rows[i]);
}

static void deal(struct coll_span *spans, int world, size_t count)
{
    for (int r = 0; r < world; r++) {
        spans[r].offset = count * (size_t)r / (size_t)world;
        spans[r].count = count * ((size_t)r + 1) / (size_t)world - spans[r].offset;
    }
}

static int run_rank(int number, int world, const char *job, void *flags)
{
    struct base_error error = {0};
    struct rank rank = {.number = number, .world = world, .flags = flags};
    deal(rank.bytes, world, vector_bytes);
    zero_result r = job_open(&rank.comm, number, world, job, &error);
    if (!r)
        r = coll_arena_create(rank.comm, vector_bytes, &rank.arena, &error);
    rank.elsewhere = aligned_alloc(4096, vector_bytes);
    if (!r && !rank.elsewhere)
        r = zero_fail(&error, ZERO_E_NOMEM, "no memory");
    if (!r) {
        memset(rank.elsewhere, 0, vector_bytes);
        struct job together = {rank.comm, run, &rank};
        if (number == 0)
            rows(&together);
        r = number == 0 ? job_finish(&together) : job_follow(&together);
        coll_state(rank.comm, &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", number, error.message);
    coll_close(rank.comm);
    free(rank.elsewhere);
    return r ? 1 : 0;
}

static int run_world(int world)
{
    const size_t size = MOST_WORLD * sizeof(struct flag);
    struct flag *flags =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED)
        return 1;
    const int failed = job_processes(world, run_rank, flags);
    munmap(flags, size);
    return failed;
}

int main(void)
{
    bench_print_header();
    return run_world(2) | run_world(MOST_WORLD);
}
