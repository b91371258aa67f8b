#include "gpt2_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

// Looks at a counter before a thread goes to sleep: the next work of a model comes within
// microseconds, sooner than a sleeper would be awake.
#define LOOKS 2000

struct worker {
    struct pool *pool;
    pthread_t handle;
    int thread;
};

struct pool {
    int threads;
    int started; // workers that exist: threads - 1, fewer after a failed pool_create()
    struct worker *worker;
    struct pool_meter *meter;
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    atomic_ulong generation; // counts pool_run() calls; written under the lock
    atomic_int busy;         // workers that have not finished this generation
    atomic_bool stop;        // written under the lock, with a new generation
    pool_task task;
    void *arg;
    size_t count;
    atomic_size_t next;
};

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static void work(struct pool *pool, int thread)
{
    size_t index;
    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count)
        pool->task(pool->arg, index, thread);
}

static void await_generation(struct pool *pool, unsigned long seen)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(&pool->generation) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->generation) == seen)
        pthread_cond_wait(&pool->begin, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void await_workers(struct pool *pool)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(&pool->busy) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->busy) > 0)
        pthread_cond_wait(&pool->end, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void begin_generation(struct pool *pool, bool stop)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, stop);
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    struct pool *pool = self->pool;
    for (unsigned long seen = 0;; seen++) {
        await_generation(pool, seen);
        if (atomic_load(&pool->stop))
            return NULL;
        work(pool, self->thread);
        if (atomic_fetch_sub(&pool->busy, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->end);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

struct pool *pool_create(int threads)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begin, NULL);
    pthread_cond_init(&pool->end, NULL);
    pool->worker = calloc((size_t)threads, sizeof *pool->worker);
    pool->meter = calloc((size_t)threads, sizeof *pool->meter);
    if (!pool->worker || !pool->meter)
        goto fail;
    for (int i = 1; i < threads; i++) {
        struct worker *worker = &pool->worker[i];
        worker->pool = pool;
        worker->thread = i;
        if (pthread_create(&worker->handle, NULL, worker_main, worker))
            goto fail;
        pool->started++;
    }
    return pool;
fail:
    pool_free(pool);
    return NULL;
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    begin_generation(pool, true);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->worker[i].handle, NULL);
    pthread_cond_destroy(&pool->end);
    pthread_cond_destroy(&pool->begin);
    pthread_mutex_destroy(&pool->lock);
    free(pool->meter);
    free(pool->worker);
    free(pool);
}

void pool_run(struct pool *pool, pool_task task, void *arg, size_t count)
{
    if (pool->threads == 1 || count <= 1) {
        for (size_t i = 0; i < count; i++)
            task(arg, i, 0);
        return;
    }
    pool->task = task;
    pool->arg = arg;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store(&pool->busy, pool->started);
    begin_generation(pool, false);
    work(pool, 0);
    await_workers(pool);
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
    return pool->threads;
}

struct pool_meter *pool_meter(struct pool *pool, int thread)
{
    return &pool->meter[thread];
}
