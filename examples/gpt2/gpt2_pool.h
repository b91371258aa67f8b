/**
 * gpt2_pool.h: the threads one rank computes with (base/pool.h), and what each has multiplied.
 *
 * Work is cut into tasks whose number and shape depend on the model only.
 */
#ifndef GPT2_POOL_H
#define GPT2_POOL_H

#include <stddef.h>

struct pool;

/** One task: `index` of 0 .. count-1, run by `thread` of 0 .. threads-1. */
typedef void (*pool_task)(void *arg, size_t index, int thread);

/** What a thread did in matrix products; a cache line each. */
struct pool_meter {
    double seconds;
    double operations;
    double unused[6];
};

/** A pool of `threads` threads, the caller's included; NULL without memory or threads. */
struct pool *pool_create(int threads);

/** Ends the threads; accepts NULL. */
void pool_free(struct pool *pool);

/** Runs all tasks and returns when they are done. Only the creating thread calls this. */
void pool_run(struct pool *pool, pool_task task, void *arg, size_t count);

/** A part of a long row: elements first .. first+count-1. */
typedef void (*pool_part)(void *arg, size_t first, size_t count);

/** Cuts `count` elements into parts of `grain` (the last one may be shorter) and runs them all. */
void pool_run_parts(struct pool *pool, pool_part part, void *arg, size_t count, size_t grain);

/** Number of threads. */
int pool_threads(const struct pool *pool);

/** The thread's meter; the thread itself writes it, others read it between pool_run() calls. */
struct pool_meter *pool_meter(struct pool *pool, int thread);

#endif
