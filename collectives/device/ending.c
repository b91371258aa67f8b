// The end of a link frees memory of its GPU, for which the driver may wait until that is at rest,
// and calls of it meanwhile for that: with another link of the process in the way, whose peer is
// dead, too, for ever. So who fails first waits a moment for those who fail with it, and one thread
// ends them all.

#include "base/clock.h"
#include "collectives/device/inner.h"

#define GATHERING_NS UINT64_C(500000000)

static struct {
    pthread_mutex_t mutex;
    unsigned expected;
    struct device_ending *come; // to be ended by whoever gathers
    bool gathers;               // somebody does
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Atomic unsigned under_way;
static _Atomic uint64_t given_up_ns; // when what is under way has taken too long

bool device_ending_is_on(void)
{
    return atomic_load(&under_way) > 0 && base_clock_ns() < atomic_load(&given_up_ns);
}

/* ------------------------------------------------------------------ mutex held */

static void let_others(unsigned *rounds)
{
    pthread_mutex_unlock(&all.mutex);
    device_pause(rounds);
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
static void end_all(const struct coll_device *device)
{
    struct device_ending *next, *first = all.come;
    all.come = NULL;
    for (struct device_ending *one = first; one; one = one->next)
        one->has_begun = true;
    atomic_store(&given_up_ns, base_clock_ns() + DEVICE_ENDING_NS);
    atomic_fetch_add(&under_way, 1);
    pthread_mutex_unlock(&all.mutex);
    device->transport->abort(first);
    pthread_mutex_lock(&all.mutex);
    atomic_fetch_sub(&under_way, 1);
    for (; first; first = next) {
        next = first->next;
        first->is_over = true; // and it is gone when the mutex is
    }
}

/* ------------------------------------------------------------------ a watcher */

void device_ending_expect(const struct coll_device *device)
{
    pthread_mutex_lock(&all.mutex);
    all.expected += device->transport->entangled;
    pthread_mutex_unlock(&all.mutex);
}

static void end_with_others(const struct coll_device *device, void *link)
{
    struct device_ending mine = {.link = link};
    unsigned rounds = 0;
    pthread_mutex_lock(&all.mutex);
    all.expected--;
    if (link) {
        mine.next = all.come;
        all.come = &mine;
    }
    while (link && !mine.is_over) {
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

void device_ending_come(const struct coll_device *device, void *link)
{
    if (device->transport->entangled)
        end_with_others(device, link);
    else if (link)
        device->transport->abort(&(struct device_ending){.link = link});
}
