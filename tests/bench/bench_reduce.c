// Reductions: the kernel of the ordered sum against a plain loop; reduce-scatter and all-reduce of
// ranks on one host, each of them a process, against what memory can do.
#include "base/kernels/sum.h"
#include "collectives/comm/comm.h"
#include "tests/bench/job.h"
#include "tests/bench/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ------------------------------------------------------------------ the kernel */

/** From memory, where contributions come from: at most 1.02 of a plain loop's time. */
#define KERNEL_TARGET (1 / 1.02)

struct kernel {
    zero_dtype dtype;
    int count, repeat;
    size_t n;
    bool far;
    float *sum;
    const void *sources[SUMS_MOST];
};

static double canonical(void *user)
{
    const struct kernel *kernel = user;
    const struct base_pass pass = {.op = BASE_SUM,
                                   .sum = kernel->sum,
                                   .sources = kernel->sources,
                                   .count = kernel->count,
                                   .n = kernel->n,
                                   .store = true,
                                   .far = kernel->far};
    const base_sum_fn sum = base_sum_best()->sum[kernel->dtype];
    const double begin = bench_now();
    for (int i = 0; i < kernel->repeat; i++)
        sum(&pass);
    return bench_now() - begin;
}

static double plain(void *user)
{
    const struct kernel *kernel = user;
    const float *floats[SUMS_MOST];
    const uint16_t *halves[SUMS_MOST];
    for (int k = 0; k < kernel->count; k++) {
        floats[k] = kernel->sources[k];
        halves[k] = kernel->sources[k];
    }
    const double begin = bench_now();
    for (int i = 0; i < kernel->repeat; i++)
        if (kernel->dtype == ZERO_F32)
            sums_f32(kernel->sum, floats, kernel->count, kernel->n);
        else
            sums_bf16(kernel->sum, halves, kernel->count, kernel->n);
    return bench_now() - begin;
}

static void kernel_row(unsigned char *memory, zero_dtype dtype, int count, size_t n, bool far)
{
    char name[64];
    struct kernel kernel = {.dtype = dtype, .count = count, .n = n, .far = far};
    // Vectors that don't begin at the same place of a page.
    const size_t stride = n * sizeof(float) + 4096 + 192;
    kernel.sum = (float *)(void *)memory;
    for (int k = 0; k < count; k++)
        kernel.sources[k] = memory + stride * (size_t)(k + 1);
    kernel.repeat = (int)(((size_t)1 << 26) / n / (size_t)count) + 1;
    snprintf(name, sizeof name, "sum of %d %s, %s", count, dtype == ZERO_F32 ? "f32" : "bf16",
             far ? "in memory" : "in cache");
    const double bytes = (double)n * kernel.repeat *
                         (double)((size_t)count * base_dtype_bytes(dtype) + sizeof(float)) * 1e-9;
    const struct bench_row row = {.name = name,
                                  .reference_name = "plain loop",
                                  .unit = "GB/s",
                                  .ours_amount = bytes,
                                  .reference_amount = bytes,
                                  .ours = canonical,
                                  .reference = plain,
                                  .user = &kernel,
                                  .target = KERNEL_TARGET};
    bench_run(&row);
}

static int kernel_rows(void)
{
    enum { SMALL = 8192, LARGE = 8 << 20 };
    static const int counts[] = {2, 4, 8};
    const size_t bytes = (SUMS_MOST + 1) * ((size_t)LARGE * sizeof(float) + 8192);
    unsigned char *memory = aligned_alloc(4096, bytes);
    if (!memory)
        return 1;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int dtype = ZERO_F32; dtype <= ZERO_BF16; dtype++) {
            kernel_row(memory, (zero_dtype)dtype, counts[i], SMALL, false);
            kernel_row(memory, (zero_dtype)dtype, counts[i], LARGE, true);
        }
    free(memory);
    return 0;
}

/* ------------------------------------------------------------------ the ranks' work */

enum { MOST_WORLD = 4 };

static const size_t vector_bytes = (size_t)256 << 20; // a rank

enum work {
    REDUCE_F32,
    REDUCE_TILE_F32,
    REDUCE_ADD_F32,
    REDUCE_BF16,
    ALL_REDUCE_F32,
    ALL_REDUCE_IN_PLACE_F32,
    ALL_REDUCE_BF16,
    COPY,
};

struct rank {
    struct coll_comm *comm;
    int number, world;
    unsigned char *vector, *result; // in arenas
    double squares;
};

static void deal(struct coll_span *spans, int world, size_t count)
{
    for (int r = 0; r < world; r++) {
        spans[r].offset = count * (size_t)r / (size_t)world;
        spans[r].count = count * ((size_t)r + 1) / (size_t)world - spans[r].offset;
    }
}

/** As the engine does: it looks at every sum. */
static void see_tile(void *user, size_t first, size_t count, const void *sum)
{
    struct rank *rank = user;
    (void)first;
    rank->squares += (double)sums_squares(sum, count);
}

static zero_result reduce(struct rank *rank, zero_dtype dtype, bool store, bool look)
{
    struct coll_span spans[MOST_WORLD];
    deal(spans, rank->world, vector_bytes / base_dtype_bytes(dtype));
    const struct coll_reduce_scatter op = {
        .source = rank->vector,
        .dtype = dtype,
        .spans = spans,
        .accumulator = rank->result,
        .contributors = rank->world,
        .store = store,
        .tile = look ? see_tile : NULL,
        .user = rank,
    };
    struct coll_request request = {0};
    const zero_result r = coll_reduce_scatter_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result all_reduce(struct rank *rank, zero_dtype dtype, bool in_place)
{
    const struct coll_all_reduce op = {
        .source = rank->vector,
        .result = in_place ? rank->vector : rank->result,
        .count = vector_bytes / base_dtype_bytes(dtype),
        .dtype = dtype,
        .op = BASE_SUM,
    };
    struct coll_request request = {0};
    const zero_result r = coll_all_reduce_start(rank->comm, &op, &request);
    return r ? r : coll_drain(rank->comm, &request);
}

static zero_result run(void *user, int work)
{
    struct rank *rank = user;
    switch ((enum work)work) {
    case REDUCE_F32:
        return reduce(rank, ZERO_F32, true, false);
    case REDUCE_TILE_F32:
        return reduce(rank, ZERO_F32, true, true);
    case REDUCE_ADD_F32:
        return reduce(rank, ZERO_F32, false, false);
    case REDUCE_BF16:
        return reduce(rank, ZERO_BF16, true, false);
    case ALL_REDUCE_F32:
        return all_reduce(rank, ZERO_F32, false);
    case ALL_REDUCE_IN_PLACE_F32:
        return all_reduce(rank, ZERO_F32, true);
    case ALL_REDUCE_BF16:
        return all_reduce(rank, ZERO_BF16, false);
    case COPY: // what memory can do: stores that don't read what they overwrite
        base_sum_best()->copy(rank->result, rank->vector, vector_bytes, BASE_SUM_MEMORY);
        base_sum_fence();
        return ZERO_OK;
    }
    return ZERO_E_INVALID;
}

/** Amounts are bytes that have to be read and written, by all ranks together. */
static void rank_rows(struct job *job)
{
    const double s = (double)vector_bytes * 1e-9, p = coll_world(job->comm), copied = 2 * p * s;
    const struct job_row rows[] = {
        {"reduce-scatter f32", REDUCE_F32, (p + 1) * s, COPY, copied, "copy", "GB/s", 0.85, 0},
        {"reduce-scatter f32, looked at", REDUCE_TILE_F32, (p + 1) * s, COPY, copied, "copy",
         "GB/s", 0.85, 0},
        {"reduce-scatter f32, add", REDUCE_ADD_F32, (p + 2) * s, COPY, copied, "copy", "GB/s", 0.85,
         0},
        {"reduce-scatter bf16", REDUCE_BF16, (p + 2) * s, COPY, copied, "copy", "GB/s", 0.85, 0},
        {"all-reduce f32", ALL_REDUCE_F32, copied, COPY, copied, "copy", "GB/s", 0.95, 0},
        {"all-reduce f32 in place", ALL_REDUCE_IN_PLACE_F32, copied, COPY, copied, "copy", "GB/s",
         0.95, 0},
        {"all-reduce bf16", ALL_REDUCE_BF16, copied, COPY, copied, "copy", "GB/s", 0.95, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_measure(job, &rows[i]);
}

static int run_rank(int number, int world, const char *job, void *user)
{
    struct base_error error = {0};
    struct coll_arena *source = NULL, *result = NULL;
    struct rank rank = {.number = number, .world = world};
    (void)user;
    zero_result r = job_open(&rank.comm, number, world, job, &error);
    if (!r)
        r = coll_arena_create(rank.comm, vector_bytes, &source, &error);
    if (!r)
        r = coll_arena_create(rank.comm, vector_bytes, &result, &error);
    if (!r) {
        rank.vector = coll_arena_base(source);
        rank.result = coll_arena_base(result);
        struct job together = {rank.comm, run, &rank};
        if (number == 0)
            rank_rows(&together);
        r = number == 0 ? job_finish(&together) : job_follow(&together);
        coll_state(rank.comm, &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", number, error.message);
    coll_close(rank.comm);
    return r ? 1 : 0;
}

int main(void)
{
    bench_print_header();
    return kernel_rows() | job_processes(2, run_rank, NULL) |
           job_processes(MOST_WORLD, run_rank, NULL);
}
