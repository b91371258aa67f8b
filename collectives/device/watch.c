#include "base/clock.h"
#include "base/thread.h"
#include "collectives/device/inner.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 1000000L

// Who has nothing under way looks so often whether something else of its family has failed.
#define IDLE_NS 10000000L

// How long a rank's failure may take to come to the host, whose message names it, where the
// transport has noticed only that something is gone.
enum { RUMOUR_MS = 50 };

enum { PAUSE_SPINS = 100 };

/* ------------------------------------------------------------------ time */

void device_pause(unsigned *rounds)
{
    if ((*rounds)++ < PAUSE_SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, LOOK_NS / 10}, NULL);
}

zero_result device_fail_timeout(struct coll_device *device, uint64_t sequence, uint64_t waited_ns)
{
    char absent[COLL_MESSAGE_BYTES / 2];
    device_board_absent(device, sequence, absent, sizeof absent);
    if (absent[0])
        return device_fail(device, ZERO_E_TIMEOUT, sequence, "waited %.1f s for %s to come",
                           (double)waited_ns * 1e-9, absent);
    return device_fail(device, ZERO_E_TIMEOUT, sequence,
                       "not done after %.1f s, although all ranks have called it",
                       (double)waited_ns * 1e-9);
}

/* ------------------------------------------------------------------ looking */

struct watch {
    uint64_t oldest; /**< the operation that the time is of */
    struct coll_clock clock;
};

/** The transport has failed; another rank's end has a better message, if it is that. */
static zero_result fail_transport(struct coll_device *device, const struct base_error *inner)
{
    for (int i = 0; i < RUMOUR_MS && inner->result == ZERO_E_PEER; i++) {
        if (coll_failed(device->host))
            break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return device_fail(device, inner->result, device->finished + 1, "%s", inner->message);
}

/** How long the oldest operation has been at the head of its stream. */
static uint64_t age(struct coll_device *device, struct watch *watch)
{
    const uint64_t oldest = device->finished + 1;
    if (watch->oldest != oldest) {
        *watch = (struct watch){.oldest = oldest};
        return 0;
    }
    if (watch->clock.last_ns == 0 &&
        device->kind->event_query(device_operation(device, oldest)->ready, NULL) == ZERO_AGAIN)
        return 0;
    return coll_waited(&watch->clock);
}

/** With the mutex; something is under way. */
static zero_result look(struct coll_device *device, struct watch *watch)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = coll_failed(device->host);
    if (result || device_ending_is_on())
        return result;
    if (device->transport->ready(device->link, &inner) < 0)
        return fail_transport(device, &inner);
    result = device_advance(device);
    if (result || device->finished == device->started)
        return result;
    const int left = device_board_left(device, device->started);
    if (left >= 0)
        return device_fail(device, ZERO_E_PEER, device->started, DEVICE_HAS_LEFT, left);
    const uint64_t waited_ns = age(device, watch);
    return waited_ns > device->timeout_ns ? device_fail_timeout(device, watch->oldest, waited_ns)
                                          : ZERO_OK;
}

static void wait_a_moment(struct coll_device *device, struct watch *watch)
{
    if (device->started == device->finished) {
        *watch = (struct watch){0};
        if (atomic_load(&device->whole->groups) == 0)
            pthread_cond_wait(&device->news, &device->mutex);
        else
            base_cond_wait_until(&device->news, &device->mutex, base_clock_ns() + IDLE_NS);
        return;
    }
    base_cond_wait_until(&device->news, &device->mutex, base_clock_ns() + LOOK_NS);
}

/** After a failure: ranks that are threads may read what is lent to them until they have come to it
 * themselves. */
static void wait_for_readers(struct coll_device *device)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    if (!device->transport->lends || strcmp(coll_private_path(device->host), "direct") != 0)
        return;
    while (!device_board_closed(device) && coll_waited(&clock) < DEVICE_ENDING_NS / 2)
        device_pause(&rounds);
}

/* ------------------------------------------------------------------ the thread */

static void *watch_it(void *argument)
{
    struct coll_device *device = argument;
    struct watch watch = {0};
    const bool entered = device->kind->enter(device->number, NULL) == ZERO_OK;
    pthread_mutex_lock(&device->mutex);
    while (!device->is_over) {
        wait_a_moment(device, &watch);
        if (!device->is_over && device->started > device->finished &&
            look(device, &watch) != ZERO_OK)
            device->is_over = true;
        if (coll_failed(device->host) != ZERO_OK)
            device->is_over = true;
    }
    void *link = device->link;
    device->link = NULL;
    pthread_mutex_unlock(&device->mutex);
    if (link && coll_failed(device->host))
        wait_for_readers(device);
    device_ending_come(device, link);
    if (entered)
        device->kind->leave();
    pthread_mutex_lock(&device->mutex);
    device->aborted = true;
    pthread_cond_broadcast(&device->news);
    pthread_mutex_unlock(&device->mutex);
    return NULL;
}

zero_result device_watch_start(struct coll_device *device, struct base_error *error)
{
    pthread_mutex_init(&device->mutex, NULL);
    base_cond_init(&device->news);
    device_ending_expect(device);
    const int failed = base_thread_start(&device->watcher, "device.thread", 0, watch_it, device);
    if (failed) {
        device_ending_come(device, NULL);
        pthread_cond_destroy(&device->news);
        pthread_mutex_destroy(&device->mutex);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed, "no thread to watch %s", device->where);
    }
    device->watched = true;
    return ZERO_OK;
}

bool device_watch_stop(struct coll_device *device)
{
    const uint64_t until = base_clock_ns() + DEVICE_ENDING_NS;
    pthread_mutex_lock(&device->mutex);
    device->is_over = true;
    pthread_cond_broadcast(&device->news);
    int waited = 0;
    while (!device->aborted && waited != ETIMEDOUT)
        waited = base_cond_wait_until(&device->news, &device->mutex, until);
    const bool ended = device->aborted;
    pthread_mutex_unlock(&device->mutex);
    if (!ended) {
        pthread_detach(device->watcher);
        return false;
    }
    pthread_join(device->watcher, NULL);
    pthread_cond_destroy(&device->news);
    pthread_mutex_destroy(&device->mutex);
    device->watched = false;
    return true;
}
