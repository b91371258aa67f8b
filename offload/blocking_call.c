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

struct off_errands {
    uint64_t timeout_ns;
    pthread_t thread;
    pthread_mutex_t mutex; // for all that follows
    pthread_cond_t work;   // the thread's,
    pthread_cond_t news;   // and of those who wait
    bool taken;            // somebody's call is being made,
    bool asked, done;      // by the thread, and has come back
    off_errand_fn call;
    _Alignas(max_align_t) unsigned char order[OFF_ERRAND_BYTES];
    char what[256];
    struct base_error outcome; // of the call
    uint64_t count;            // calls that have come back
    void (*last)(void *user);  // set: the thread ends
    void *user;
    bool ended;                // and has,
    bool left;                 // to itself: it frees all of this
    struct base_error failure; // set: a call has not come back
};

static void destroy(struct off_errands *errands)
{
    pthread_cond_destroy(&errands->work);
    pthread_cond_destroy(&errands->news);
    pthread_mutex_destroy(&errands->mutex);
    base_free(errands);
}

static void name_the_last(struct off_errands *errands)
{
    snprintf(errands->what, sizeof errands->what, "what is under way in files");
}

static void make_call(struct off_errands *errands)
{
    struct base_error outcome = {.result = ZERO_OK};
    pthread_mutex_unlock(&errands->mutex);
    errands->call(errands->order, &outcome);
    pthread_mutex_lock(&errands->mutex);
    errands->outcome = outcome;
    errands->asked = false;
    errands->done = true;
    errands->count++;
    if (errands->last)
        name_the_last(errands);
    pthread_cond_broadcast(&errands->news);
}

static void *runner(void *argument)
{
    struct off_errands *errands = argument;
    pthread_mutex_lock(&errands->mutex);
    for (;;) {
        if (errands->asked)
            make_call(errands);
        else if (errands->last)
            break;
        else
            pthread_cond_wait(&errands->work, &errands->mutex);
    }
    pthread_mutex_unlock(&errands->mutex);
    errands->last(errands->user);
    pthread_mutex_lock(&errands->mutex);
    errands->ended = true;
    pthread_cond_broadcast(&errands->news);
    const bool left = errands->left;
    pthread_mutex_unlock(&errands->mutex);
    if (left)
        destroy(errands);
    return NULL;
}

/* ------------------------------------------------------------------ waiting: mutex held */

static bool is_taken(const struct off_errands *errands)
{
    return errands->taken && !errands->failure.result; // who has failed never gives his place up
}

static bool is_under_way(const struct off_errands *errands)
{
    return !errands->done;
}

static bool has_not_ended(const struct off_errands *errands)
{
    return !errands->ended;
}

// Waits while `waits` says so; false: nothing has come back for all of the timeout, but for what of
// it the process was stopped.
static bool wait_while(struct off_errands *errands,
                       bool (*waits)(const struct off_errands *errands))
{
    const uint64_t timeout = errands->timeout_ns;
    uint64_t waited = 0, count = errands->count;
    while (waits(errands) && !base_patience_over(timeout, waited, 0)) {
        const uint64_t began = base_clock_ns();
        base_cond_wait_until(&errands->news, &errands->mutex, began + base_patience_part(timeout));
        waited = errands->count == count ? waited + base_patience_spent(timeout, began) : 0;
        count = errands->count;
    }
    return !waits(errands);
}

static zero_result give_up(struct off_errands *errands, struct base_error *error)
{
    zero_fail(&errands->failure, ZERO_E_TIMEOUT, "%s: has not come back for %g s", errands->what,
              (double)errands->timeout_ns * 1e-9);
    pthread_cond_broadcast(&errands->news);
    return zero_fail(error, ZERO_E_TIMEOUT, "%s", errands->failure.message);
}

/* ------------------------------------------------------------------ calls */

zero_result off_errands_run(struct off_errands *errands, off_errand_fn call, const void *order,
                            size_t bytes, struct base_error *error, const char *format, ...)
{
    va_list arguments;
    zero_result result;
    assert(bytes <= OFF_ERRAND_BYTES);
    pthread_mutex_lock(&errands->mutex);
    if (!wait_while(errands, is_taken) || errands->failure.result) {
        result = give_up(errands, error);
        pthread_mutex_unlock(&errands->mutex);
        return result;
    }
    memcpy(errands->order, order, bytes);
    va_start(arguments, format);
    vsnprintf(errands->what, sizeof errands->what, format, arguments);
    va_end(arguments);
    errands->call = call;
    errands->taken = errands->asked = true;
    errands->done = false;
    pthread_cond_signal(&errands->work);
    if (wait_while(errands, is_under_way)) {
        result = errands->outcome.result;
        if (result)
            zero_fail(error, result, "%s", errands->outcome.message);
        errands->taken = false;
        pthread_cond_broadcast(&errands->news);
    } else {
        result = give_up(errands, error);
    }
    pthread_mutex_unlock(&errands->mutex);
    return result;
}

/* ------------------------------------------------------------------ life */

size_t off_errands_memory(void)
{
    return sizeof(struct off_errands);
}

zero_result off_errands_create(struct off_errands **out, double timeout_s, struct base_error *error)
{
    struct off_errands *errands = base_calloc(1, sizeof *errands);
    *out = NULL;
    if (!errands)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a thread that waits for files");
    errands->timeout_ns = (uint64_t)(timeout_s * 1e9);
    pthread_mutex_init(&errands->mutex, NULL);
    pthread_cond_init(&errands->work, NULL);
    base_cond_init(&errands->news);
    const int failed = base_thread_start(&errands->thread, "thread", 0, runner, errands);
    if (failed != 0) {
        destroy(errands);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "cannot start a thread that waits for files");
    }
    *out = errands;
    return ZERO_OK;
}

zero_result off_errands_end(struct off_errands *errands, void (*last)(void *user), void *user,
                            struct base_error *error)
{
    const pthread_t thread = errands->thread;
    pthread_mutex_lock(&errands->mutex);
    if (!errands->asked)
        name_the_last(errands);
    errands->last = last;
    errands->user = user;
    pthread_cond_signal(&errands->work);
    const bool ended = wait_while(errands, has_not_ended);
    errands->left = !ended;
    const zero_result result = ended ? ZERO_OK : give_up(errands, error);
    pthread_mutex_unlock(&errands->mutex);
    if (!ended) {
        pthread_detach(thread);
        return result;
    }
    pthread_join(thread, NULL);
    destroy(errands);
    return ZERO_OK;
}
