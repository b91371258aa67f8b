#include "base/pool.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/futex.h"
#include "base/thread.h"

#include <assert.h>
#include <stdatomic.h>

enum { SPINS = 2000 };

struct worker {
    struct base_pool *pool;
    int index; // 1 .. threads-1
    pthread_t thread;
};

// A run: the caller fills in task, user and tasks, sets `running` to the number of workers, and
// advances `epoch`; each worker does its share and counts `running` down to 0.
struct base_pool {
    int threads; // workers started, and the caller
    bool stop;
    size_t tasks;
    void (*task)(void *user, size_t index, int thread);
    void *user;
    _Alignas(64) _Atomic uint32_t epoch;
    _Alignas(64) _Atomic uint32_t running;
    _Alignas(64) struct worker worker[];
};

// Returns when *word is no longer `value`, with what happened before visible.
static uint32_t wait_while(const _Atomic uint32_t *word, uint32_t value)
{
    for (int i = 0; i < SPINS; i++) {
        const uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != value)
            return now;
        base_cpu_relax();
    }
    uint32_t now;
    while ((now = atomic_load_explicit(word, memory_order_acquire)) == value)
        base_futex_wait(word, value, BASE_FUTEX_FOREVER, false);
    return now;
}

// The first task of thread t, without overflow.
static size_t first_task(size_t tasks, int threads, int t)
{
    assert(threads > 0 && t >= 0 && t <= threads);
    const size_t n = (size_t)threads, i = (size_t)t;
    return tasks / n * i + tasks % n * i / n;
}

static void run_share(const struct base_pool *pool, int t)
{
    const size_t end = first_task(pool->tasks, pool->threads, t + 1);
    for (size_t i = first_task(pool->tasks, pool->threads, t); i < end; i++)
        pool->task(pool->user, i, t);
}

static void *worker_main(void *argument)
{
    const struct worker *worker = argument;
    struct base_pool *pool = worker->pool;
    for (uint32_t epoch = 0;;) {
        epoch = wait_while(&pool->epoch, epoch);
        if (pool->stop)
            return NULL;
        assert(worker->index >= 1 && worker->index < pool->threads);
        assert(atomic_load(&pool->running) >= 1);
        run_share(pool, worker->index);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1)
            base_futex_wake(&pool->running, 1, false);
    }
}

static void advance_epoch(struct base_pool *pool)
{
    atomic_fetch_add_explicit(&pool->epoch, 1, memory_order_release);
    base_futex_wake(&pool->epoch, INT_MAX, false);
}

static int start_worker(struct base_pool *pool, int index)
{
    assert(index >= 1 && index < BASE_POOL_THREADS);
    struct worker *worker = &pool->worker[index - 1];
    *worker = (struct worker){.pool = pool, .index = index};
    return base_thread_start(&worker->thread, "thread", 0, worker_main, worker);
}

zero_result base_pool_create(struct base_pool **out, int threads, struct base_error *error)
{
    *out = NULL;
    if (threads < 1 || threads > BASE_POOL_THREADS)
        return zero_fail(error, ZERO_E_INVALID, "%d threads; 1 to %d are possible", threads,
                         BASE_POOL_THREADS);
    const size_t workers = (size_t)threads - 1;
    struct base_pool *pool =
        base_aligned_alloc(64, sizeof *pool + workers * sizeof pool->worker[0]);
    if (!pool)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a pool of %d threads", threads);
    *pool = (struct base_pool){.threads = 1};

    int errnum = 0;
    while (pool->threads < threads && !(errnum = start_worker(pool, pool->threads)))
        pool->threads++;
    if (errnum) {
        const int failed = pool->threads;
        base_pool_destroy(pool);
        return zero_fail_errno(error, ZERO_E_NOMEM, errnum, "cannot start thread %d of %d", failed,
                               threads);
    }
    *out = pool;
    return ZERO_OK;
}

int base_pool_threads(const struct base_pool *pool)
{
    return pool ? pool->threads : 1;
}

void base_pool_run(struct base_pool *pool, size_t tasks,
                   void (*task)(void *user, size_t index, int thread), void *user)
{
    if (!pool || pool->threads == 1 || tasks == 0) {
        for (size_t i = 0; i < tasks; i++)
            task(user, i, 0);
        return;
    }
    assert(!pool->stop && atomic_load(&pool->running) == 0); // one caller, and no task of it
    pool->tasks = tasks;
    pool->task = task;
    pool->user = user;
    atomic_store_explicit(&pool->running, (uint32_t)pool->threads - 1, memory_order_relaxed);
    advance_epoch(pool);
    run_share(pool, 0);
    for (uint32_t running; (running = atomic_load_explicit(&pool->running, memory_order_acquire));)
        wait_while(&pool->running, running);
}

void base_pool_destroy(struct base_pool *pool)
{
    if (!pool)
        return;
    assert(!pool->stop && atomic_load(&pool->running) == 0);
    pool->stop = true;
    advance_epoch(pool);
    for (int i = 1; i < pool->threads; i++)
        pthread_join(pool->worker[i - 1].thread, NULL);
    base_free(pool);
}
