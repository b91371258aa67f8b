#include "gpt2_pool.h"

#include "base/pool.h"

#include <stdlib.h>

struct pool {
    struct base_pool *threads;
    struct pool_meter meter[];
};

struct pool *pool_create(int threads)
{
    struct base_error error;
    struct pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof *pool->meter);
    if (pool && base_pool_create(&pool->threads, threads, &error) == ZERO_OK)
        return pool;
    free(pool);
    return NULL;
}

void pool_free(struct pool *pool)
{
    if (pool)
        base_pool_destroy(pool->threads);
    free(pool);
}

void pool_run(struct pool *pool, pool_task task, void *arg, size_t count)
{
    if (count == 1) // wakes no thread
        task(arg, 0, 0);
    else
        base_pool_run(pool->threads, count, task, arg);
}

struct parts {
    pool_part part;
    void *arg;
    size_t count, grain;
};

static void run_part(void *arg, size_t index, int thread)
{
    (void)thread;
    const struct parts *parts = arg;
    const size_t first = index * parts->grain, left = parts->count - first;
    parts->part(parts->arg, first, left < parts->grain ? left : parts->grain);
}

void pool_run_parts(struct pool *pool, pool_part part, void *arg, size_t count, size_t grain)
{
    struct parts parts = {part, arg, count, grain};
    pool_run(pool, run_part, &parts, (count + grain - 1) / grain);
}

int pool_threads(const struct pool *pool)
{
    return base_pool_threads(pool->threads);
}

struct pool_meter *pool_meter(struct pool *pool, int thread)
{
    return &pool->meter[thread];
}
