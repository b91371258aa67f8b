#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct worker {
    struct pool *pool;
    pthread_t handle;
    int thread;
};

struct pool {
    int threads;
    int started; /* workers that exist: threads - 1, fewer after a failed pool_create() */
    struct worker *worker;
    struct pool_meter *meter;
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    unsigned long generation; /* counts pool_run() calls */
    int busy;                 /* workers that have not finished this generation */
    bool stop;
    pool_task task;
    void *arg;
    size_t count;
    atomic_size_t next;
};

static void work(struct pool *pool, int thread)
{
    size_t index;
    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count)
        pool->task(pool->arg, index, thread);
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    struct pool *pool = self->pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->generation == seen && !pool->stop)
            pthread_cond_wait(&pool->begin, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->lock);
        work(pool, self->thread);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->end);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
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
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
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
    pthread_mutex_lock(&pool->lock);
    pool->task = task;
    pool->arg = arg;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->busy = pool->started;
    pool->generation++;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
    work(pool, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->busy > 0)
        pthread_cond_wait(&pool->end, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

struct pool_meter *pool_meter(struct pool *pool, int thread)
{
    return &pool->meter[thread];
}
