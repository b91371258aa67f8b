/**
 * base/pool.h: threads that work through one numbered list of tasks at a time.
 *
 * Which thread runs which task depends on the number of tasks and threads only, so that results
 * and memory placement never depend on timing.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/error.h"

struct base_pool;

/** The most threads a pool can have. */
enum { BASE_POOL_THREADS = 1024 };

/**
 * Starts threads - 1 threads; the caller of base_pool_run() is the last one (its index is 0).
 * threads 1 starts none. All signals are blocked in them. *Local.* On success *pool is to be
 * destroyed with base_pool_destroy(); after an error it is NULL: ZERO_E_INVALID threads not in
 * 1 .. BASE_POOL_THREADS, ZERO_E_NOMEM (also where the system refuses a thread).
 */
zero_result base_pool_create(struct base_pool **pool, int threads, struct base_error *error);

/** Number of threads, the caller included; 1 for NULL. *Local.* */
int base_pool_threads(const struct base_pool *pool);

/**
 * Calls task(user, index, thread) for index 0 .. tasks-1 and returns when all have returned.
 * Thread t runs tasks tasks*t/threads .. tasks*(t+1)/threads - 1, in this order. What the caller
 * wrote before is visible to the tasks, and what they wrote to the caller afterwards. pool NULL:
 * the caller runs all. One caller at a time, not from within a task. *Local.* Allocates nothing.
 */
void base_pool_run(struct base_pool *pool, size_t tasks,
                   void (*task)(void *user, size_t index, int thread), void *user);

/** Ends and joins the threads; accepts NULL. Not while base_pool_run() is under way. *Local.* */
void base_pool_destroy(struct base_pool *pool);

#endif
