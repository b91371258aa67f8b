// The end of a link frees memory of its GPU, for which the driver may wait until that is at rest,
// and calls of it meanwhile for that: with another link of the process in the way, whose peer is
// dead, too, for ever. So who fails first waits a moment for those who fail with it, and one thread
// ends them all.

#include "base/clock.h"
#include "collectives/gpu/gcomm_internal.h"

#define GATHERING_NS UINT64_C(500000000)

// How long whoever is in a call may take to come out of it; longer, and that waits for the driver.
#define CALL_NS UINT64_C(1000000000)

static struct {
    pthread_mutex_t mutex;
    unsigned expected;
    struct gcomm_abort *come; // to be ended by whoever gathers
    bool gathers;             // somebody does
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ the links */

static bool is_left(struct gcomm *device, uint64_t until_ns)
{
    unsigned rounds = 0;
    while (pthread_mutex_trylock(&device->calls) != 0) {
        if (base_clock_ns() > until_ns)
            return false;
        gcomm_pause(&rounds);
    }
    return true;
}

static void halt(struct gcomm_abort *one)
{
    struct gcomm *device = one->device;
    struct base_error error = {.result = ZERO_OK};
    pthread_mutex_lock(&device->mutex);
    one->link = device->link;
    pthread_mutex_unlock(&device->mutex);
    if (one->link && device->transport->halt)
        device->transport->halt(one->link, &error);
    gcomm_watchdog_log(device, &error);
}

/** Nobody finds the link any more. With the mutex of calls, which it gives back. */
static void take(struct gcomm_abort *one)
{
    struct gcomm *device = one->device;
    if (!one->link) // it may have come to be meanwhile
        halt(one);
    pthread_mutex_lock(&device->mutex);
    device->link = NULL;
    pthread_mutex_unlock(&device->mutex);
    pthread_mutex_unlock(&device->calls);
}

/** All are told before anything is waited for, be it whoever is in a call of one, and frees it when
 * he comes out of that: what was told lets the driver go on. */
static void end_links(struct gcomm *device, struct gcomm_abort *first)
{
    const uint64_t until_ns = base_clock_ns() + CALL_NS;
    struct base_error error = {.result = ZERO_OK};
    for (struct gcomm_abort *one = first; one; one = one->next) {
        one->was_in_use = !is_left(one->device, until_ns);
        halt(one);
        if (!one->was_in_use)
            take(one);
    }
    for (struct gcomm_abort *one = first; one; one = one->next)
        if (one->was_in_use) {
            pthread_mutex_lock(&one->device->calls);
            take(one);
        }
    device->transport->abort(first, &error);
    gcomm_watchdog_log(device, &error);
}

/* ------------------------------------------------------------------ mutex held */

static void let_others(unsigned *rounds)
{
    pthread_mutex_unlock(&all.mutex);
    gcomm_pause(rounds);
    pthread_mutex_lock(&all.mutex);
}

/** Until all have come that are expected, or that takes too long: others may be well. */
static void gather(void)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    all.gathers = true;
    while (all.expected > 0 && coll_waited(&clock) < GATHERING_NS)
        let_others(&rounds);
    all.gathers = false;
}

/** Who comes meanwhile does not wait for these: these may have to wait for it. */
static void end_all(struct gcomm *device)
{
    struct gcomm_abort *next, *first = all.come;
    all.come = NULL;
    for (struct gcomm_abort *one = first; one; one = one->next)
        one->has_begun = true;
    pthread_mutex_unlock(&all.mutex);
    end_links(device, first);
    pthread_mutex_lock(&all.mutex);
    for (; first; first = next) {
        next = first->next;
        first->is_over = true; // and it is gone when the mutex is
    }
}

/* ------------------------------------------------------------------ a watchdog */

void gcomm_abort_expect(const struct gcomm *device)
{
    pthread_mutex_lock(&all.mutex);
    all.expected += device->transport->entangled;
    pthread_mutex_unlock(&all.mutex);
}

static void end_with_others(struct gcomm *device)
{
    struct gcomm_abort mine = {.device = device};
    unsigned rounds = 0;
    pthread_mutex_lock(&all.mutex);
    all.expected--;
    mine.next = all.come;
    all.come = &mine;
    while (!mine.is_over) {
        if (all.gathers || mine.has_begun) {
            let_others(&rounds);
        } else {
            if (coll_failed(device->host))
                gather();
            end_all(device);
        }
    }
    pthread_mutex_unlock(&all.mutex);
}

/** Whoever is making one has the mutex of calls. */
static bool has_link(struct gcomm *device)
{
    if (pthread_mutex_trylock(&device->calls) != 0)
        return true;
    const bool has = device->link != NULL;
    pthread_mutex_unlock(&device->calls);
    return has;
}

void gcomm_abort_join(struct gcomm *device)
{
    const bool entangled = device->transport->entangled;
    if (entangled && has_link(device)) {
        end_with_others(device);
    } else if (entangled) {
        pthread_mutex_lock(&all.mutex);
        all.expected--;
        pthread_mutex_unlock(&all.mutex);
    } else {
        end_links(device, &(struct gcomm_abort){.device = device});
    }
}
