#include "base/clock.h"
#include "base/thread.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 1000000L

// A watchdog with nothing under way looks so often whether something else of its comm world has
// failed.

// How long a rank's failure may take to come to the host, whose message names it, where the
// transport has noticed only that something is gone.
enum { NEWS_MS = 50 };

enum { PAUSE_SPINS = 100 };

/* ------------------------------------------------------------------ time */

void gcomm_pause(unsigned *rounds)
{
    if ((*rounds)++ < PAUSE_SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, LOOK_NS / 10}, NULL);
}

zero_result gcomm_fail_timeout(struct gcomm *gcomm, uint64_t sequence, uint64_t waited_ns)
{
    assert(sequence > 0);
    char absent[COLL_MESSAGE_BYTES / 2];
    gcomm_log_absent(gcomm, sequence, absent, sizeof absent);
    if (absent[0])
        return gcomm_fail(gcomm, ZERO_E_TIMEOUT, sequence, "waited %.1f s for %s to come",
                          (double)waited_ns * 1e-9, absent);
    return gcomm_fail(gcomm, ZERO_E_TIMEOUT, sequence,
                      "not done after %.1f s, although all ranks have called it",
                      (double)waited_ns * 1e-9);
}

/* ------------------------------------------------------------------ who asks the driver */

/** Whether the oldest operation's stream has come to it. What is only being given is asked about as
 * well, to see whether the driver answers. */
static zero_result ask_for_start(struct gcomm *gcomm)
{
    struct base_error inner = {.result = ZERO_OK};
    pthread_mutex_lock(&gcomm->mutex);
    const uint64_t oldest = gcomm->finished + 1;
    const bool asks = gcomm_is_busy(gcomm) && gcomm->come_to != oldest && !gcomm->is_over;
    const bool is_announced = oldest <= gcomm->announced;
    pthread_mutex_unlock(&gcomm->mutex);
    if (!asks)
        return ZERO_OK;
    const zero_result result =
        gcomm->kind->event_query(gcomm_operation(gcomm, oldest)->ready, &inner);
    pthread_mutex_lock(&gcomm->mutex);
    const bool fails = result < 0 && !gcomm->is_over;
    if (result == ZERO_OK && is_announced && oldest > gcomm->come_to)
        gcomm->come_to = oldest;
    pthread_mutex_unlock(&gcomm->mutex);
    return fails ? gcomm_fail(gcomm, result, oldest, "%s", inner.message) : ZERO_OK;
}

/** The caller holds the mutex. */
static void wait_a_moment(struct gcomm *gcomm)
{
    if (gcomm_is_busy(gcomm))
        base_cond_wait_until(&gcomm->news, &gcomm->mutex, base_clock_ns() + LOOK_NS);
    else
        pthread_cond_wait(&gcomm->news, &gcomm->mutex);
}

/** A thread's, which has the mutex then. */
static bool begin(struct gcomm *gcomm)
{
    const bool entered = gcomm->kind->enter(gcomm->number, NULL) == ZERO_OK;
    pthread_mutex_lock(&gcomm->mutex);
    assert(gcomm->there < 2);
    gcomm->there++;
    pthread_cond_broadcast(&gcomm->news);
    return entered;
}

static void *ask_driver(void *argument)
{
    struct gcomm *gcomm = argument;
    const bool entered = begin(gcomm);
    while (!gcomm->is_over) {
        wait_a_moment(gcomm);
        if (gcomm->is_over || !gcomm_is_busy(gcomm))
            continue;
        gcomm->questions++;
        pthread_mutex_unlock(&gcomm->mutex);
        if (gcomm_advance(gcomm) == ZERO_OK)
            ask_for_start(gcomm);
        pthread_mutex_lock(&gcomm->mutex);
        gcomm->questions++;
    }
    pthread_mutex_unlock(&gcomm->mutex);
    if (entered)
        gcomm->kind->leave();
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->through = true;
    pthread_cond_broadcast(&gcomm->news);
    pthread_mutex_unlock(&gcomm->mutex);
    return NULL;
}

/* ------------------------------------------------------------------ who watches */

/** What is there to see, at one time. */
struct sight {
    uint64_t started, finished, come_to, questions;
};

/** Times: of what was seen last. */
struct watchdog {
    uint64_t oldest, questions;
    struct coll_clock came, asks;
};

/** The transport has failed; another rank's end has a better message, if it is that. */
static zero_result fail_transport(struct gcomm *gcomm, uint64_t sequence,
                                  const struct base_error *inner)
{
    for (int i = 0; i < NEWS_MS && inner->result == ZERO_E_PEER; i++) {
        if (coll_failed(gcomm->host))
            break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return gcomm_fail(gcomm, inner->result, sequence, "%s", inner->message);
}

/** Asks while no thread is in a call of the transport: a thread that is in one asks, too, or has a
 * deadline. */
static zero_result ask_transport(struct gcomm *gcomm, struct base_error *error)
{
    if (pthread_mutex_trylock(&gcomm->calls) != 0)
        return ZERO_OK;
    const zero_result result = gcomm->link ? gcomm->transport->ready(gcomm->link, error) : ZERO_OK;
    pthread_mutex_unlock(&gcomm->calls);
    return result;
}

/** The time since `*seen` has come to be `now`, as long as it counts. */
static uint64_t age(struct coll_clock *clock, uint64_t *seen, uint64_t now, bool counts)
{
    if (*seen != now || !counts) {
        *seen = now;
        *clock = (struct coll_clock){0};
    }
    return counts ? coll_waited(clock) : 0;
}

/** How long the oldest operation has been at the head of its stream, and the driver has not
 * answered. */
static zero_result look_at_times(struct gcomm *gcomm, struct watchdog *watch,
                                 const struct sight *now)
{
    assert(now->finished <= now->started);
    const uint64_t oldest = now->finished + 1;
    const uint64_t came_ns = age(&watch->came, &watch->oldest, oldest, now->come_to == oldest);
    const uint64_t asks_ns =
        age(&watch->asks, &watch->questions, now->questions, now->questions % 2 == 1);
    if (came_ns > gcomm->timeout_ns)
        return gcomm_fail_timeout(gcomm, oldest, came_ns);
    if (asks_ns <= gcomm->timeout_ns)
        return ZERO_OK;
    char absent[COLL_MESSAGE_BYTES / 2];
    gcomm_log_absent(gcomm, oldest, absent, sizeof absent);
    return absent[0] ? gcomm_fail_timeout(gcomm, oldest, asks_ns)
                     : gcomm_fail(gcomm, ZERO_E_TIMEOUT, oldest,
                                  "the driver has not answered for %.1f s, although all ranks "
                                  "have called it",
                                  (double)asks_ns * 1e-9);
}

/** Something is being given, or under way. */
static zero_result look(struct gcomm *gcomm, struct watchdog *watch, const struct sight *now)
{
    struct base_error inner = {.result = ZERO_OK};
    const zero_result result = coll_failed(gcomm->host);
    if (result)
        return result;
    if (ask_transport(gcomm, &inner) < 0)
        return fail_transport(gcomm, now->finished + 1, &inner);
    const int left = now->finished < now->started ? gcomm_log_left(gcomm, now->started) : -1;
    if (left >= 0)
        return gcomm_fail(gcomm, ZERO_E_PEER, now->started, GCOMM_HAS_LEFT, left);
    return look_at_times(gcomm, watch, now);
}

/** After a failure: ranks that are threads may read what is lent to them until they have come to it
 * themselves. */
static void wait_for_readers(struct gcomm *gcomm)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    if (!gcomm->transport->lends || strcmp(coll_unregistered_path(gcomm->host), "direct") != 0)
        return;
    while (!gcomm_log_closed(gcomm) && coll_waited(&clock) < gcomm->abort_timeout_ns / 2)
        gcomm_pause(&rounds);
}

static void *run_watchdog(void *argument)
{
    struct gcomm *gcomm = argument;
    struct watchdog watch = {0};
    const bool entered = begin(gcomm);
    while (!gcomm->is_over) {
        wait_a_moment(gcomm);
        const struct sight now = {gcomm->started, gcomm->finished, gcomm->come_to,
                                  gcomm->questions};
        const bool looks = !gcomm->is_over && gcomm_is_busy(gcomm);
        pthread_mutex_unlock(&gcomm->mutex);
        const bool fails =
            (looks && look(gcomm, &watch, &now) != ZERO_OK) || coll_failed(gcomm->host);
        pthread_mutex_lock(&gcomm->mutex);
        if (fails)
            gcomm->is_over = true;
    }
    pthread_cond_broadcast(&gcomm->news); // for the other thread
    const bool has_link = gcomm->link != NULL;
    pthread_mutex_unlock(&gcomm->mutex);
    if (has_link && coll_failed(gcomm->host))
        wait_for_readers(gcomm);
    gcomm_abort_join(gcomm);
    if (entered)
        gcomm->kind->leave();
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->aborted = true;
    pthread_cond_broadcast(&gcomm->news);
    pthread_mutex_unlock(&gcomm->mutex);
    return NULL;
}

void gcomm_watchdog_log(struct gcomm *gcomm, const struct base_error *error)
{
    if (error->result == ZERO_OK)
        return;
    pthread_mutex_lock(&gcomm->mutex);
    if (gcomm->log) // else the host may be gone, too
        base_logf(gcomm->log, ZERO_LOG_WARN, "coll", "%s: rank %d on %s: %s",
                  gcomm->transport->name, gcomm->host->rank, gcomm->where, error->message);
    pthread_mutex_unlock(&gcomm->mutex);
}

/* ------------------------------------------------------------------ both */

static void free_mutexes(struct gcomm *gcomm)
{
    pthread_cond_destroy(&gcomm->news);
    pthread_mutex_destroy(&gcomm->mutex);
    pthread_mutex_destroy(&gcomm->calls);
}

/** Until both have done what they need the driver for before anything can be under way. */
static void await_both(struct gcomm *gcomm)
{
    pthread_mutex_lock(&gcomm->mutex);
    while (gcomm->there < 2)
        pthread_cond_wait(&gcomm->news, &gcomm->mutex);
    pthread_mutex_unlock(&gcomm->mutex);
}

static int start_both(struct gcomm *gcomm)
{
    int failed = base_thread_start(&gcomm->asker, "device.thread", 0, ask_driver, gcomm);
    if (failed)
        return failed;
    failed = base_thread_start(&gcomm->watchdog, "device.thread", 0, run_watchdog, gcomm);
    if (!failed)
        return 0;
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->is_over = true;
    pthread_cond_broadcast(&gcomm->news);
    pthread_mutex_unlock(&gcomm->mutex);
    pthread_join(gcomm->asker, NULL);
    return failed;
}

zero_result gcomm_watchdog_start(struct gcomm *gcomm, struct base_error *error)
{
    assert(!gcomm->has_threads);
    pthread_mutex_init(&gcomm->calls, NULL);
    pthread_mutex_init(&gcomm->mutex, NULL);
    base_cond_init(&gcomm->news);
    gcomm_abort_expect(gcomm);
    const int failed = start_both(gcomm);
    if (failed) {
        gcomm_abort_join(gcomm);
        free_mutexes(gcomm);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed, "no thread to watch %s", gcomm->where);
    }
    await_both(gcomm);
    gcomm->has_threads = true;
    return ZERO_OK;
}

bool gcomm_watchdog_stop(struct gcomm *gcomm)
{
    assert(gcomm->has_threads);
    const uint64_t until = base_clock_ns() + gcomm->abort_timeout_ns;
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->is_over = true;
    pthread_cond_broadcast(&gcomm->news);
    int waited = 0;
    while (!(gcomm->aborted && gcomm->through) && waited != ETIMEDOUT)
        waited = base_cond_wait_until(&gcomm->news, &gcomm->mutex, until);
    const bool ended = gcomm->aborted && gcomm->through;
    pthread_mutex_unlock(&gcomm->mutex);
    if (!ended) {
        pthread_detach(gcomm->watchdog);
        pthread_detach(gcomm->asker);
        return false;
    }
    pthread_join(gcomm->watchdog, NULL);
    pthread_join(gcomm->asker, NULL);
    free_mutexes(gcomm);
    gcomm->has_threads = false;
    return true;
}
