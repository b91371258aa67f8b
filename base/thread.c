#include "base/thread.h"

#include "base/fault.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <time.h>

static int create(pthread_t *thread, size_t stack_bytes, void *(*run)(void *argument),
                  void *argument)
{
    pthread_attr_t attributes;
    int errnum = pthread_attr_init(&attributes);
    if (errnum)
        return errnum;
    if (stack_bytes > 0)
        pthread_attr_setstacksize(&attributes, stack_bytes);
    errnum = pthread_create(thread, &attributes, run, argument);
    if (errnum == EINVAL && stack_bytes > 0) // the program's thread-local variables don't fit
        errnum = pthread_create(thread, NULL, run, argument);
    pthread_attr_destroy(&attributes);
    return errnum;
}

int base_thread_start(pthread_t *thread, const char *point, size_t stack_bytes,
                      void *(*run)(void *argument), void *argument)
{
    assert(thread && point && run);
    sigset_t all, before;
    int errnum = base_fault(point);
    if (errnum)
        return errnum;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errnum = create(thread, stack_bytes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum;
}

void base_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

int base_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    assert(cond && mutex);
    const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000)),
                                      .tv_nsec = (long)(deadline_ns % UINT64_C(1000000000))};
    return pthread_cond_timedwait(cond, mutex, &deadline);
}
