#include "offload/blocking_call.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/patience.h"
#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct off_blocking_calls {
    uint64_t timeout_ns;
    pthread_t thread;
    pthread_mutex_t mutex; // for all that follows
    pthread_cond_t work;   // the thread's,
    pthread_cond_t news;   // and of callers that wait
    bool taken;            // a call is being made,
    bool asked, done;      // by the thread, and has come back
    off_blocking_call_fn call;
    _Alignas(max_align_t) unsigned char order[OFF_BLOCKING_CALL_BYTES];
    char what[256];
    struct base_error outcome; // of the call
    uint64_t count;            // calls that have come back
    void (*last)(void *user);  // set: the thread ends
    void *user;
    bool ended;                // and has,
    bool left;                 // to itself: it frees all of this
    struct base_error failure; // set: a call has not come back
};

static void destroy(struct off_blocking_calls *blocking_calls)
{
    pthread_cond_destroy(&blocking_calls->work);
    pthread_cond_destroy(&blocking_calls->news);
    pthread_mutex_destroy(&blocking_calls->mutex);
    base_free(blocking_calls);
}

static void name_the_last(struct off_blocking_calls *blocking_calls)
{
    snprintf(blocking_calls->what, sizeof blocking_calls->what, "what is under way in files");
}

static void make_call(struct off_blocking_calls *blocking_calls)
{
    assert(blocking_calls->asked && !blocking_calls->done);
    struct base_error outcome = {.result = ZERO_OK};
    pthread_mutex_unlock(&blocking_calls->mutex);
    blocking_calls->call(blocking_calls->order, &outcome);
    pthread_mutex_lock(&blocking_calls->mutex);
    assert(blocking_calls->asked && !blocking_calls->done); // the caller waits, or has given up
    blocking_calls->outcome = outcome;
    blocking_calls->asked = false;
    blocking_calls->done = true;
    blocking_calls->count++;
    if (blocking_calls->last)
        name_the_last(blocking_calls);
    pthread_cond_broadcast(&blocking_calls->news);
}

static void *runner(void *argument)
{
    struct off_blocking_calls *blocking_calls = argument;
    pthread_mutex_lock(&blocking_calls->mutex);
    for (;;) {
        if (blocking_calls->asked)
            make_call(blocking_calls);
        else if (blocking_calls->last)
            break;
        else
            pthread_cond_wait(&blocking_calls->work, &blocking_calls->mutex);
    }
    pthread_mutex_unlock(&blocking_calls->mutex);
    blocking_calls->last(blocking_calls->user);
    pthread_mutex_lock(&blocking_calls->mutex);
    blocking_calls->ended = true;
    pthread_cond_broadcast(&blocking_calls->news);
    const bool left = blocking_calls->left;
    pthread_mutex_unlock(&blocking_calls->mutex);
    if (left)
        destroy(blocking_calls);
    return NULL;
}

/* ------------------------------------------------------------------ waiting: mutex held */

static bool is_taken(const struct off_blocking_calls *blocking_calls)
{
    return blocking_calls->taken &&
           !blocking_calls->failure.result; // a call that has failed never gives its place up
}

static bool is_under_way(const struct off_blocking_calls *blocking_calls)
{
    return !blocking_calls->done;
}

static bool has_not_ended(const struct off_blocking_calls *blocking_calls)
{
    return !blocking_calls->ended;
}

// Waits while `waits` says so; false: nothing has come back for all of the timeout, but for what of
// it the process was stopped.
static bool wait_while(struct off_blocking_calls *blocking_calls,
                       bool (*waits)(const struct off_blocking_calls *blocking_calls))
{
    const uint64_t timeout = blocking_calls->timeout_ns;
    uint64_t waited = 0, count = blocking_calls->count;
    while (waits(blocking_calls) && !base_patience_over(timeout, waited, 0)) {
        const uint64_t began = base_clock_ns();
        base_cond_wait_until(&blocking_calls->news, &blocking_calls->mutex,
                             began + base_patience_part(timeout));
        waited = blocking_calls->count == count ? waited + base_patience_spent(timeout, began) : 0;
        count = blocking_calls->count;
    }
    return !waits(blocking_calls);
}

static zero_result give_up(struct off_blocking_calls *blocking_calls, struct base_error *error)
{
    assert(*blocking_calls->what);
    zero_fail(&blocking_calls->failure, ZERO_E_TIMEOUT, "%s: has not come back for %g s",
              blocking_calls->what, (double)blocking_calls->timeout_ns * 1e-9);
    pthread_cond_broadcast(&blocking_calls->news);
    return zero_fail(error, ZERO_E_TIMEOUT, "%s", blocking_calls->failure.message);
}

/* ------------------------------------------------------------------ calls */

zero_result off_blocking_calls_run(struct off_blocking_calls *blocking_calls,
                                   off_blocking_call_fn call, const void *order, size_t bytes,
                                   struct base_error *error, const char *format, ...)
{
    va_list arguments;
    zero_result result;
    assert(bytes <= OFF_BLOCKING_CALL_BYTES);
    pthread_mutex_lock(&blocking_calls->mutex);
    if (!wait_while(blocking_calls, is_taken) || blocking_calls->failure.result) {
        result = give_up(blocking_calls, error);
        pthread_mutex_unlock(&blocking_calls->mutex);
        return result;
    }
    assert(!blocking_calls->taken && !blocking_calls->asked);
    memcpy(blocking_calls->order, order, bytes);
    va_start(arguments, format);
    vsnprintf(blocking_calls->what, sizeof blocking_calls->what, format, arguments);
    va_end(arguments);
    blocking_calls->call = call;
    blocking_calls->taken = blocking_calls->asked = true;
    blocking_calls->done = false;
    pthread_cond_signal(&blocking_calls->work);
    if (wait_while(blocking_calls, is_under_way)) {
        result = blocking_calls->outcome.result;
        if (result)
            zero_fail(error, result, "%s", blocking_calls->outcome.message);
        blocking_calls->taken = false;
        pthread_cond_broadcast(&blocking_calls->news);
    } else {
        result = give_up(blocking_calls, error);
    }
    pthread_mutex_unlock(&blocking_calls->mutex);
    return result;
}

/* ------------------------------------------------------------------ life */

size_t off_blocking_calls_memory(void)
{
    return sizeof(struct off_blocking_calls);
}

zero_result off_blocking_calls_create(struct off_blocking_calls **out, double timeout_s,
                                      struct base_error *error)
{
    struct off_blocking_calls *blocking_calls = base_calloc(1, sizeof *blocking_calls);
    *out = NULL;
    if (!blocking_calls)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a thread that waits for files");
    blocking_calls->timeout_ns = (uint64_t)(timeout_s * 1e9);
    pthread_mutex_init(&blocking_calls->mutex, NULL);
    pthread_cond_init(&blocking_calls->work, NULL);
    base_cond_init(&blocking_calls->news);
    const int failed =
        base_thread_start(&blocking_calls->thread, "thread", 0, runner, blocking_calls);
    if (failed != 0) {
        destroy(blocking_calls);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "cannot start a thread that waits for files");
    }
    *out = blocking_calls;
    return ZERO_OK;
}

zero_result off_blocking_calls_end(struct off_blocking_calls *blocking_calls,
                                   void (*last)(void *user), void *user, struct base_error *error)
{
    assert(last && !blocking_calls->last);
    const pthread_t thread = blocking_calls->thread;
    pthread_mutex_lock(&blocking_calls->mutex);
    if (!blocking_calls->asked)
        name_the_last(blocking_calls);
    blocking_calls->last = last;
    blocking_calls->user = user;
    pthread_cond_signal(&blocking_calls->work);
    const bool ended = wait_while(blocking_calls, has_not_ended);
    blocking_calls->left = !ended;
    const zero_result result = ended ? ZERO_OK : give_up(blocking_calls, error);
    pthread_mutex_unlock(&blocking_calls->mutex);
    if (!ended) {
        pthread_detach(thread);
        return result;
    }
    pthread_join(thread, NULL);
    destroy(blocking_calls);
    return ZERO_OK;
}
