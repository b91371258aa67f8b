#include "base/clock.h"
#include "base/thread.h"
#include "collectives/gpu/gcomm_internal.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 1000000L

// Who has nothing under way looks so often whether something else of its comm world has failed.
#define IDLE_NS 10000000L

// How long a rank's failure may take to come to the host, whose message names it, where the
// transport has noticed only that something is gone.
enum { RUMOUR_MS = 50 };

enum { PAUSE_SPINS = 100 };

/* ------------------------------------------------------------------ time */

void gcomm_pause(unsigned *rounds)
{
    if ((*rounds)++ < PAUSE_SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, LOOK_NS / 10}, NULL);
}

zero_result gcomm_fail_timeout(struct gcomm *device, uint64_t sequence, uint64_t waited_ns)
{
    char absent[COLL_MESSAGE_BYTES / 2];
    gcomm_log_absent(device, sequence, absent, sizeof absent);
    if (absent[0])
        return gcomm_fail(device, ZERO_E_TIMEOUT, sequence, "waited %.1f s for %s to come",
                          (double)waited_ns * 1e-9, absent);
    return gcomm_fail(device, ZERO_E_TIMEOUT, sequence,
                      "not done after %.1f s, although all ranks have called it",
                      (double)waited_ns * 1e-9);
}

/* ------------------------------------------------------------------ who asks the driver */

/** Whether the oldest operation's stream has come to it. What is only being given is asked about as
 * well, to see whether the driver answers. */
static zero_result ask_for_start(struct gcomm *device)
{
    struct base_error inner = {.result = ZERO_OK};
    pthread_mutex_lock(&device->mutex);
    const uint64_t oldest = device->finished + 1;
    const bool asks = gcomm_is_busy(device) && device->come_to != oldest && !device->is_over;
    const bool is_announced = oldest <= device->announced;
    pthread_mutex_unlock(&device->mutex);
    if (!asks)
        return ZERO_OK;
    const zero_result result =
        device->kind->event_query(gcomm_operation(device, oldest)->ready, &inner);
    pthread_mutex_lock(&device->mutex);
    const bool fails = result < 0 && !device->is_over;
    if (result == ZERO_OK && is_announced && oldest > device->come_to)
        device->come_to = oldest;
    pthread_mutex_unlock(&device->mutex);
    return fails ? gcomm_fail(device, result, oldest, "%s", inner.message) : ZERO_OK;
}

/** With the mutex. Who watches looks, where there are groups, whether something else of the comm
 * world has failed. */
static void wait_a_moment(struct gcomm *device, bool watches)
{
    if (gcomm_is_busy(device))
        base_cond_wait_until(&device->news, &device->mutex, base_clock_ns() + LOOK_NS);
    else if (watches && atomic_load(&device->whole->groups) > 0)
        base_cond_wait_until(&device->news, &device->mutex, base_clock_ns() + IDLE_NS);
    else
        pthread_cond_wait(&device->news, &device->mutex);
}

/** A thread's, which has the mutex then. */
static bool begin(struct gcomm *device)
{
    const bool entered = device->kind->enter(device->number, NULL) == ZERO_OK;
    pthread_mutex_lock(&device->mutex);
    device->there++;
    pthread_cond_broadcast(&device->news);
    return entered;
}

static void *ask_driver(void *argument)
{
    struct gcomm *device = argument;
    const bool entered = begin(device);
    while (!device->is_over) {
        wait_a_moment(device, false);
        if (device->is_over || !gcomm_is_busy(device))
            continue;
        device->questions++;
        pthread_mutex_unlock(&device->mutex);
        if (gcomm_advance(device) == ZERO_OK)
            ask_for_start(device);
        pthread_mutex_lock(&device->mutex);
        device->questions++;
    }
    pthread_mutex_unlock(&device->mutex);
    if (entered)
        device->kind->leave();
    pthread_mutex_lock(&device->mutex);
    device->through = true;
    pthread_cond_broadcast(&device->news);
    pthread_mutex_unlock(&device->mutex);
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
static zero_result fail_transport(struct gcomm *device, uint64_t sequence,
                                  const struct base_error *inner)
{
    for (int i = 0; i < RUMOUR_MS && inner->result == ZERO_E_PEER; i++) {
        if (coll_failed(device->host))
            break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return gcomm_fail(device, inner->result, sequence, "%s", inner->message);
}

/** As long as nobody is in a call of it: who is asks, too, or has a deadline. */
static zero_result ask_transport(struct gcomm *device, struct base_error *error)
{
    if (pthread_mutex_trylock(&device->calls) != 0)
        return ZERO_OK;
    const zero_result result =
        device->link ? device->transport->ready(device->link, error) : ZERO_OK;
    pthread_mutex_unlock(&device->calls);
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
static zero_result look_at_times(struct gcomm *device, struct watchdog *watch,
                                 const struct sight *now)
{
    const uint64_t oldest = now->finished + 1;
    const uint64_t came_ns = age(&watch->came, &watch->oldest, oldest, now->come_to == oldest);
    const uint64_t asks_ns =
        age(&watch->asks, &watch->questions, now->questions, now->questions % 2 == 1);
    if (came_ns > device->timeout_ns)
        return gcomm_fail_timeout(device, oldest, came_ns);
    if (asks_ns <= device->timeout_ns)
        return ZERO_OK;
    char absent[COLL_MESSAGE_BYTES / 2];
    gcomm_log_absent(device, oldest, absent, sizeof absent);
    return absent[0] ? gcomm_fail_timeout(device, oldest, asks_ns)
                     : gcomm_fail(device, ZERO_E_TIMEOUT, oldest,
                                  "the driver has not answered for %.1f s, although all ranks "
                                  "have called it",
                                  (double)asks_ns * 1e-9);
}

/** Something is being given, or under way. */
static zero_result look(struct gcomm *device, struct watchdog *watch, const struct sight *now)
{
    struct base_error inner = {.result = ZERO_OK};
    const zero_result result = coll_failed(device->host);
    if (result)
        return result;
    if (ask_transport(device, &inner) < 0)
        return fail_transport(device, now->finished + 1, &inner);
    const int left = now->finished < now->started ? gcomm_log_left(device, now->started) : -1;
    if (left >= 0)
        return gcomm_fail(device, ZERO_E_PEER, now->started, GCOMM_HAS_LEFT, left);
    return look_at_times(device, watch, now);
}

/** After a failure: ranks that are threads may read what is lent to them until they have come to it
 * themselves. */
static void wait_for_readers(struct gcomm *device)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    if (!device->transport->lends || strcmp(coll_unregistered_path(device->host), "direct") != 0)
        return;
    while (!gcomm_log_closed(device) && coll_waited(&clock) < device->abort_timeout_ns / 2)
        gcomm_pause(&rounds);
}

static void *run_watchdog(void *argument)
{
    struct gcomm *device = argument;
    struct watchdog watch = {0};
    const bool entered = begin(device);
    while (!device->is_over) {
        wait_a_moment(device, true);
        const struct sight now = {device->started, device->finished, device->come_to,
                                  device->questions};
        const bool looks = !device->is_over && gcomm_is_busy(device);
        pthread_mutex_unlock(&device->mutex);
        const bool fails =
            (looks && look(device, &watch, &now) != ZERO_OK) || coll_failed(device->host);
        pthread_mutex_lock(&device->mutex);
        if (fails)
            device->is_over = true;
    }
    pthread_cond_broadcast(&device->news); // for the other thread
    const bool has_link = device->link != NULL;
    pthread_mutex_unlock(&device->mutex);
    if (has_link && coll_failed(device->host))
        wait_for_readers(device);
    gcomm_abort_join(device);
    if (entered)
        device->kind->leave();
    pthread_mutex_lock(&device->mutex);
    device->aborted = true;
    pthread_cond_broadcast(&device->news);
    pthread_mutex_unlock(&device->mutex);
    return NULL;
}

void gcomm_watchdog_log(struct gcomm *device, const struct base_error *error)
{
    if (error->result == ZERO_OK)
        return;
    pthread_mutex_lock(&device->mutex);
    if (device->log) // else the host may be gone, too
        base_logf(device->log, ZERO_LOG_WARN, "coll", "%s: rank %d on %s: %s",
                  device->transport->name, coll_root_rank(device->host, device->host->rank),
                  device->where, error->message);
    pthread_mutex_unlock(&device->mutex);
}

/* ------------------------------------------------------------------ both */

static void free_mutexes(struct gcomm *device)
{
    pthread_cond_destroy(&device->news);
    pthread_mutex_destroy(&device->mutex);
    pthread_mutex_destroy(&device->calls);
}

/** Until both have done what they need the driver for before anything can be under way. */
static void await_both(struct gcomm *device)
{
    pthread_mutex_lock(&device->mutex);
    while (device->there < 2)
        pthread_cond_wait(&device->news, &device->mutex);
    pthread_mutex_unlock(&device->mutex);
}

static int start_both(struct gcomm *device)
{
    int failed = base_thread_start(&device->asker, "device.thread", 0, ask_driver, device);
    if (failed)
        return failed;
    failed = base_thread_start(&device->watchdog, "device.thread", 0, run_watchdog, device);
    if (!failed)
        return 0;
    pthread_mutex_lock(&device->mutex);
    device->is_over = true;
    pthread_cond_broadcast(&device->news);
    pthread_mutex_unlock(&device->mutex);
    pthread_join(device->asker, NULL);
    return failed;
}

zero_result gcomm_watchdog_start(struct gcomm *device, struct base_error *error)
{
    pthread_mutex_init(&device->calls, NULL);
    pthread_mutex_init(&device->mutex, NULL);
    base_cond_init(&device->news);
    gcomm_abort_expect(device);
    const int failed = start_both(device);
    if (failed) {
        gcomm_abort_join(device);
        free_mutexes(device);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed, "no thread to watch %s", device->where);
    }
    await_both(device);
    device->has_threads = true;
    return ZERO_OK;
}

bool gcomm_watchdog_stop(struct gcomm *device)
{
    const uint64_t until = base_clock_ns() + device->abort_timeout_ns;
    pthread_mutex_lock(&device->mutex);
    device->is_over = true;
    pthread_cond_broadcast(&device->news);
    int waited = 0;
    while (!(device->aborted && device->through) && waited != ETIMEDOUT)
        waited = base_cond_wait_until(&device->news, &device->mutex, until);
    const bool ended = device->aborted && device->through;
    pthread_mutex_unlock(&device->mutex);
    if (!ended) {
        pthread_detach(device->watchdog);
        pthread_detach(device->asker);
        return false;
    }
    pthread_join(device->watchdog, NULL);
    pthread_join(device->asker, NULL);
    free_mutexes(device);
    device->has_threads = false;
    return true;
}
