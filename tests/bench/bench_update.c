// The update, the norm and the narrowing against the memory's bandwidth, and against a plain loop.
//
// What memory sets as a limit is measured by loops that prefetch at several distances; a row is
// compared with the one that is fastest on this machine, and says its distance.
#include "base/arena.h"
#include "base/bfloat16.h"
#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"
#include "base/pool.h"
#include "tests/bench/bench.h"
#include "tests/bench/loops.h"
#include "zero/optim/optim.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TILE = 64 * 1024, // elements: one call, with which the engine goes over a shard too
    IN_MEMORY =
        32 * 1024 * 1024, // elements: 512 MiB, beyond what caches keep for one of many users
    IN_CACHE = 32 * 1024, // elements a thread: 512 KiB
    PIECE = 2048,         // elements that are widened at a time: 8 KiB
    // Bytes between two arrays: where arrays are a power of two apart, each element's numbers fall
    // into one set of a cache, and every loop over them is slow.
    APART = 5 * 64,
    ALL = IN_MEMORY + APART / (int)sizeof(float), // elements from an array to the next one
    TRIES = 3,                                    // runs of each loop that may be the limit
};

enum { NEAR = 512, FAR = 2048 }; // bytes that kernels prefetch ahead

static const size_t distances[] = {0, NEAR, FAR};

enum { DISTANCES = sizeof distances / sizeof distances[0] };

struct work {
    struct base_pool *pool;
    const struct base_kernels *kernels;
    union eng_scalars scalars;
    struct arrays arrays;
    uint16_t *narrow; // a gradient in bf16
    size_t count;     // elements, a multiple of TILE or less than one
    size_t repeat;    // passes over them in one call
    size_t ahead;     // bytes that the loop of a limit prefetches ahead
    double sink;      // where results of no interest go
    void (*body)(struct work *work, size_t first, size_t count);
};

static void narrow_arrays(const struct work *work, size_t first, struct arrays *part)
{
    part->gradient = work->arrays.gradient + first;
    part->m = work->arrays.m + first;
    part->v = work->arrays.v ? work->arrays.v + first : NULL;
    part->weight = work->arrays.weight + first;
    part->work = work->arrays.work ? work->arrays.work + first : NULL;
}

static void body_update(struct work *work, size_t first, size_t count)
{
    struct arrays part;
    narrow_arrays(work, first, &part);
    const struct base_update run = {
        .count = count,
        .gradient = part.gradient,
        .moment = {part.m, part.v},
        .weight = part.weight,
        .work = part.work,
        .work_dtype = ZERO_BF16,
        .past_caches = work->count == IN_MEMORY,
    };
    work->kernels->update[work->scalars.built_in.rule](&work->scalars.built_in, &run);
}

// Takes the gradient as it arrives, in bf16 (where it lies does not matter: it is read once).
// Widens it to a piece that stays in cache, as the sum of a fused step leaves it, then updates.
static void body_narrow(struct work *work, size_t first, size_t count)
{
    float gradient[PIECE];
    struct arrays part;
    narrow_arrays(work, first, &part);
    for (size_t i = 0; i < count; i += PIECE) {
        const struct base_update run = {
            .count = PIECE,
            .gradient = gradient,
            .moment = {part.m + i, part.v + i},
            .weight = part.weight + i,
            .work = part.work + i,
            .work_dtype = ZERO_BF16,
            .past_caches = true,
        };
        work->kernels->from_bf16(PIECE, work->narrow + first + i, gradient);
        work->kernels->update[BASE_RULE_ADAM](&work->scalars.built_in, &run);
    }
}

// The update and nothing else: no working copy is written, and the gradient's factor is 1.
static void body_alone(struct work *work, size_t first, size_t count)
{
    struct base_rule_scalars scalars = work->scalars.built_in;
    struct arrays part;
    narrow_arrays(work, first, &part);
    const struct base_update run = {
        .count = count,
        .gradient = part.gradient,
        .moment = {part.m, part.v},
        .weight = part.weight,
    };
    scalars.gradient_scale = 1.0f;
    work->kernels->update[BASE_RULE_ADAM](&scalars, &run);
}

static void body_scale(struct work *work, size_t first, size_t count)
{
    loop_scale(count, work->arrays.weight + first, 0.999999f, work->ahead);
}

static void body_stream(struct work *work, size_t first, size_t count)
{
    struct arrays part;
    narrow_arrays(work, first, &part);
    loop_stream(count, &part, work->ahead);
}

static void body_plain(struct work *work, size_t first, size_t count)
{
    struct arrays part;
    narrow_arrays(work, first, &part);
    loop_plain_adamw(count, &part, 1e-4f, 0.9f, 0.999f, 1.5f, 1.5f, 1e-8f, 0.1f);
}

static void body_norm(struct work *work, size_t first, size_t count)
{
    double sum = 0.0;
    const void *const source = work->arrays.gradient;
    struct base_contributions from = {.sources = &source, .count = 1, .first = first};
    for (; from.first < first + count; from.first += BASE_GRANULE) {
        double squares;
        work->kernels->sum_squares(BASE_GRANULE, &from, &squares);
        sum += squares;
    }
    if (first == 0)
        work->sink = sum;
}

static void body_read(struct work *work, size_t first, size_t count)
{
    const float sum = loop_read(count, work->arrays.gradient + first, work->ahead);
    if (first == 0)
        work->sink = (double)sum;
}

static void tile(void *user, size_t index, int thread)
{
    (void)thread;
    struct work *work = user;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    const size_t count = work->count < TILE ? work->count : TILE;
    for (size_t i = 0; i < work->repeat; i++)
        work->body(work, index * count, count);
    base_fp_leave(&saved);
}

static double timed(struct work *work, void (*body)(struct work *, size_t, size_t))
{
    // In memory every tile is one task; in cache every thread stays with a tile of its own.
    const size_t tiles =
        work->count < TILE ? (size_t)base_pool_threads(work->pool) : work->count / TILE;
    work->body = body;
    const double begin = bench_now();
    base_pool_run(work->pool, tiles, tile, work);
    return bench_now() - begin;
}

static double update(void *user)
{
    return timed(user, body_update);
}

static double narrow(void *user)
{
    return timed(user, body_narrow);
}

static double alone(void *user)
{
    return timed(user, body_alone);
}

static double scale(void *user)
{
    return timed(user, body_scale);
}

static double stream(void *user)
{
    return timed(user, body_stream);
}

static double plain(void *user)
{
    return timed(user, body_plain);
}

// The update with the prefetch distance that this processor is not given.
static double other_prefetch(void *user)
{
    const size_t chosen = base_prefetch_bytes;
    base_prefetch_bytes = chosen == FAR ? NEAR : FAR;
    const double seconds = timed(user, body_update);
    base_prefetch_bytes = chosen;
    return seconds;
}

static double norm(void *user)
{
    return timed(user, body_norm);
}

static double read_only(void *user)
{
    return timed(user, body_read);
}

// One row; bytes an element of ours and of the reference, and the least ratio, 0 if none is named.
static void row(struct work *work, const char *what, const char *where, const double bytes[2],
                bench_fn ours, bench_fn reference, const char *reference_name, double target)
{
    char name[80];
    const int threads = base_pool_threads(work->pool);
    const size_t tiles = work->count < TILE ? (size_t)threads : 1;
    const double elements = (double)work->count * (double)(work->repeat * tiles) * 1e-9;
    snprintf(name, sizeof name, "%s %s, %s, %d thread%s", what, where, work->kernels->name, threads,
             threads > 1 ? "s" : "");
    const struct bench_row r = {
        .name = name,
        .reference_name = reference_name,
        .unit = "GB/s",
        .ours_amount = bytes[0] * elements,
        .reference_amount = bytes[1] * elements,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = target,
    };
    bench_run(&r);
}

// Lets the reference prefetch at the distance at which it is fastest.
static void choose_distance(struct work *work, bench_fn reference)
{
    double least = 0.0;
    size_t best = 0;
    for (int i = 0; i < DISTANCES * TRIES; i++) {
        work->ahead = distances[i % DISTANCES];
        const double seconds = reference(work);
        if (i == 0 || seconds < least) {
            least = seconds;
            best = work->ahead;
        }
    }
    work->ahead = best;
}

// A row whose reference is a loop that memory limits.
static void limit_row(struct work *work, const char *what, const char *where, const double bytes[2],
                      bench_fn ours, bench_fn reference, const char *reference_name, double target)
{
    char name[40];
    choose_distance(work, reference);
    snprintf(name, sizeof name, "%s, prefetch %zu", reference_name, work->ahead);
    row(work, what, where, bytes, ours, reference, name, target);
}

// AdamW reads gradient, m, v, weight and writes m, v, weight; with a working copy also that.
static const double of_f32[] = {28, 28}, of_bf16[] = {30, 30}, of_norm[] = {4, 4};
static const double of_narrow[] = {28, 8}, of_alone[] = {30, 28};
// One moment less.
static const double of_one[] = {20, 20};

static void prepare(struct work *work, const struct eng_optimizer *optimizer)
{
    static const zero_hyper hyper = {1e-6, 0.9, 0.999, 1e-8, 0.1};
    const struct eng_choice choice = {.decay = optimizer->decay};
    optimizer->prepare(&choice, &hyper, 10, 1e-3, &work->scalars);
}

// Optimizers with one moment.
static void other_rows(struct work *work)
{
    static const struct eng_optimizer *const others[] = {&eng_optimizer_sgd, &eng_optimizer_lion,
                                                         &eng_optimizer_adagrad};
    float *const v = work->arrays.v;
    work->arrays.v = NULL;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        prepare(work, others[i]);
        limit_row(work, others[i]->name, "in memory", of_one, update, stream, "limit", 0);
    }
    work->arrays.v = v;
}

static void rows(struct work *work, uint16_t *half, bool all_cores)
{
    prepare(work, &eng_optimizer_adamw);
    work->count = IN_MEMORY;
    work->repeat = 1;
    work->arrays.work = NULL;
    limit_row(work, "update f32", "in memory", of_f32, update, stream, "limit", 0);
    row(work, "update f32", "in memory", of_f32, update, plain, "plain loop", 0);
    row(work, "update f32", "in memory", of_f32, update, other_prefetch,
        base_prefetch_bytes == FAR ? "prefetch 512" : "prefetch 2048", 0);
    limit_row(work, "norm", "in memory", of_norm, norm, read_only, "limit", 0);
    work->arrays.work = half;
    limit_row(work, "update bf16", "in memory", of_bf16, update, stream, "limit", 0);
    row(work, "update bf16", "in memory", of_bf16, update, plain, "plain loop", 0);
    row(work, "scale, clip, cast bf16", "in memory", of_alone, update, alone, "update alone",
        1 / 1.03);
    limit_row(work, "bf16 in and out", "in memory", of_narrow, narrow, scale, "in-place scale",
              all_cores ? 0.93 : 0);
    work->arrays.work = NULL;
    other_rows(work);
    prepare(work, &eng_optimizer_adamw);
    work->count = IN_CACHE;
    work->repeat = 400;
    row(work, "update f32", "in cache", of_f32, update, plain, "plain loop", 0);
    work->arrays.work = half;
    row(work, "update bf16", "in cache", of_bf16, update, plain, "plain loop", 0);
}

// Memory for all arrays, APART bytes between them.
static zero_result make_arrays(struct work *work, struct base_arena *arena, uint16_t **half,
                               struct base_error *error)
{
    const zero_result r = base_arena_init(arena, (size_t)ALL * 20 + 8192, 4096, error);
    if (r)
        return r;
    float *const memory = base_arena_alloc(arena, (size_t)ALL * 16, 0);
    *half = base_arena_alloc(arena, (size_t)ALL * 2, 0);
    work->narrow = base_arena_alloc(arena, (size_t)ALL * 2, 0);
    for (size_t i = 0; i < ALL; i++)
        work->narrow[i] = base_bf16_from_f32(1e-3f * (float)(1 + i % 1000));
    for (size_t i = 0; i < (size_t)ALL * 4; i++)
        memory[i] = 1e-3f * (float)(1 + i % 1000);
    work->arrays = (struct arrays){memory, memory + ALL, memory + 2 * (size_t)ALL,
                                   memory + 3 * (size_t)ALL, NULL};
    return ZERO_OK;
}

static int run(struct work *work, struct base_arena *arena, struct base_error *error)
{
    uint16_t *half;
    if (make_arrays(work, arena, &half, error) != ZERO_OK)
        return 1;
    work->kernels = base_kernels_find("auto");
    const int most = base_cpu_allowed();
    for (int threads = 1; threads <= most; threads = threads < most ? most : most + 1) {
        if (base_pool_create(&work->pool, threads, error) != ZERO_OK)
            return 1;
        rows(work, half, threads == most);
        base_pool_destroy(work->pool);
    }
    return 0;
}

int main(void)
{
    struct work work = {0};
    struct base_arena arena = {0};
    struct base_error error = {0};
    bench_print_header();
    const int failed = run(&work, &arena, &error);
    if (failed)
        fprintf(stderr, "bench_update: %s\n", error.message);
    base_arena_free(&arena);
    return failed;
}
