/**
 * base/thread.h: threads of the library's own.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/**
 * pthread_create() with every signal blocked: signals are for the program's own threads.
 * `stack_bytes`: 0 for what the system gives, which it also is where the program's thread-local
 * variables don't fit. `point`: of base/fault.h. Returns 0, then *thread is to be joined, or an
 * errno. *Local.*
 */
int base_thread_start(pthread_t *thread, const char *point, size_t stack_bytes,
                      void *(*run)(void *argument), void *argument);

/** pthread_cond_init() of one for base_cond_wait_until(). *Local.* */
void base_cond_init(pthread_cond_t *cond);

/** pthread_cond_timedwait() until base_clock_ns() is `deadline_ns`: returns 0 or ETIMEDOUT.
 * *Local.* */
int base_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
