#include "zero/exec/memory_probe.h"

#include "base/arena.h"
#include "base/clock.h"
#include "zero/core/context.h"

#include <string.h>

enum { LEAST = 128 << 20, A_THREAD = 32 << 20, MOST = 1 << 30, WARM_UP = 2, ROUNDS = 4 };

/** More than the threads' caches hold, as far as that is 1 GiB. */
static size_t bytes_of(int threads)
{
    const size_t bytes = (size_t)threads * A_THREAD;
    return bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
}

struct copying {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, parts;
};

static void copy_part(void *user, size_t index, int thread)
{
    const struct copying *copying = user;
    const size_t first = copying->bytes * index / copying->parts;
    const size_t end = copying->bytes * (index + 1) / copying->parts;
    (void)thread;
    memcpy(copying->to + first, copying->from + first, end - first);
}

/** An even number of times: from one half to the other, and back. */
static void copy(struct base_pool *pool, unsigned char *memory, size_t half, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        struct copying copying = {.to = memory + (size_t)(round % 2) * half,
                                  .from = memory + (size_t)(1 - round % 2) * half,
                                  .bytes = half,
                                  .parts = (size_t)base_pool_threads(pool)};
        base_pool_run(pool, copying.parts, copy_part, &copying);
    }
}

zero_result eng_probe_memory(struct base_pool *pool, double *rate, struct base_error *error)
{
    const size_t bytes = bytes_of(base_pool_threads(pool)), half = bytes / 2;
    unsigned char *memory = base_calloc(2, half);
    *rate = 0;
    if (!memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast it is: %zu bytes",
                         bytes);
    copy(pool, memory, half, WARM_UP); // each thread has written to the pages that it copies
    const uint64_t began = base_clock_ns();
    copy(pool, memory, half, ROUNDS);
    *rate = 1e9 * ROUNDS * (double)bytes / (double)(base_clock_ns() - began);
    base_free(memory);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ an update */

enum { ELEMENTS = 4 * BASE_GRANULE, UPDATES = 1000, TRIALS = 3 };

/** What a thread updates, again and again. */
struct block {
    float gradient[ELEMENTS], weight[ELEMENTS], moment[BASE_MAX_MOMENTS][ELEMENTS];
    uint16_t work[ELEMENTS], stored[BASE_MAX_MOMENTS][ELEMENTS];
};

struct updating {
    const zero_ctx *z;
    struct base_pool *pool;
    const struct eng_group *group;
    zero_dtype dtype;   // of the tensor
    bool wide_weight;   // it has weights of fp32, and so many moments:
    int narrow_moments; // rounded after each update
    union eng_scalars scalars;
    struct block *blocks; // one a thread
};

static const struct eng_param *largest_that_trains(const struct eng_model *model)
{
    const struct eng_param *largest = NULL;
    size_t most = 0;
    for (size_t p = 0; p < model->param_count; p++) {
        const struct eng_param *param = &model->params[p];
        const size_t count = param->slice_numel * (size_t)param->slice_count;
        if (param->frozen || count <= most)
            continue;
        largest = param;
        most = count;
    }
    return largest;
}

/** As host_update.c and stochastic.c do it. */
static void update_block(const struct updating *of, struct block *block)
{
    const struct base_kernels *kernels = of->z->cpu.kernels;
    struct base_update run = {.count = ELEMENTS,
                              .gradient = block->gradient,
                              .moment = {block->moment[0], block->moment[1]},
                              .weight = block->weight};
    if (of->dtype != ZERO_F32 && of->wide_weight) {
        run.work = block->work;
        run.work_dtype = of->dtype;
    }
    if (!of->wide_weight)
        eng_widen(kernels, of->dtype, block->work, ELEMENTS, block->weight);
    for (int k = 0; k < of->narrow_moments; k++)
        eng_widen(kernels, ZERO_BF16, block->stored[k], ELEMENTS, block->moment[k]);
    of->group->optimizer->update(&of->group->choice, kernels, &of->scalars, &run);
    if (!of->wide_weight)
        eng_round(kernels, of->dtype, 0, 0, ELEMENTS, block->weight, block->work);
    for (int k = 0; k < of->narrow_moments; k++)
        eng_round(kernels, ZERO_BF16, 0, 0, ELEMENTS, block->moment[k], block->stored[k]);
}

static void update_task(void *user, size_t index, int thread)
{
    const struct updating *of = user;
    struct base_fp_state saved;
    (void)thread;
    base_fp_enter(&saved);
    for (int i = 0; i < UPDATES; i++)
        update_block(of, &of->blocks[index]);
    base_fp_leave(&saved);
}

/** Gradients that make no moment a denormal. */
static void fill(struct updating *of, int threads)
{
    const zero_hyper hyper = {1e-4, 0.9, 0.999, 1e-8, 0.01};
    struct base_fp_state saved;
    for (int t = 0; t < threads; t++)
        for (size_t i = 0; i < ELEMENTS; i++)
            of->blocks[t].gradient[i] = 1e-3F;
    base_fp_enter(&saved);
    of->group->optimizer->prepare(&of->group->choice, &hyper, 1, 1, &of->scalars);
    base_fp_leave(&saved);
}

/** Bytes of state of an element, read and written. */
static size_t touched(const struct updating *of)
{
    const size_t weight = of->wide_weight ? sizeof(float) : eng_dtype_size(of->dtype);
    const size_t moment = eng_dtype_size(of->z->config.moment_dtype);
    return 2 * (weight + (size_t)of->group->optimizer->moments * moment);
}

static double best_rate(struct updating *of, int threads)
{
    const double bytes = (double)touched(of) * ELEMENTS * UPDATES * threads;
    double best = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        const uint64_t began = base_clock_ns();
        base_pool_run(of->pool, (size_t)threads, update_task, of);
        const double rate = 1e9 * bytes / (double)(base_clock_ns() - began);
        best = rate > best ? rate : best;
    }
    return best;
}

/** Why it can't be timed; NULL: it can. param NULL: no tensor trains. */
static const char *why_unknown(const zero_ctx *z, const struct eng_param *param)
{
    if (!param)
        return "no tensor trains";
    if (z->model.groups[param->group].choice.own)
        return "the optimizer is the program's own";
    return z->config.streamed ? "the GPU updates" : NULL;
}

zero_result eng_probe_update(const zero_ctx *z, struct base_pool *pool,
                             struct eng_update_rate *rate, struct base_error *error)
{
    const struct eng_param *param = largest_that_trains(&z->model);
    const int threads = base_pool_threads(pool);
    *rate = (struct eng_update_rate){.unknown = why_unknown(z, param)};
    if (!param || rate->unknown)
        return ZERO_OK;
    struct updating of = {
        .z = z,
        .pool = pool,
        .group = &z->model.groups[param->group],
        .dtype = param->dtype,
        .wide_weight = param->dtype == ZERO_F32 || !z->config.no_masters,
        .blocks = base_calloc((size_t)threads, sizeof *of.blocks),
    };
    if (z->config.moment_dtype != ZERO_F32)
        of.narrow_moments = of.group->optimizer->moments;
    if (!of.blocks)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast an update is");
    fill(&of, threads);
    rate->bytes_s = best_rate(&of, threads);
    base_free(of.blocks);
    return ZERO_OK;
}
