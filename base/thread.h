/**
 * base/thread.h: threads of the library's own.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/**
 * pthread_create() with every signal blocked: signals are for the program's own threads.
 * `stack_bytes`: 0 for what the system gives, which it also is where the program's thread-local
 * variables don't fit. `point`: of base/fault.h. Returns 0, then *thread is to be joined, or an
 * errno. *Local.*
 */
int base_thread_start(pthread_t *thread, const char *point, size_t stack_bytes,
                      void *(*run)(void *argument), void *argument);

#endif
