// The end of a link frees memory of its GPU, for which the driver may wait until that is at rest,
// and calls of it meanwhile for that: with another link of the process in the way, whose peer is
// dead, too, for ever. So who fails first waits a moment for those who fail with it, and one thread
// ends them all.

#include "base/clock.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>

#define GATHERING_NS UINT64_C(500000000)

// How long a thread that is in a call may take to come out of it; longer, and the call waits for
// the driver.
#define CALL_NS UINT64_C(1000000000)

static struct {
    pthread_mutex_t mutex;
    unsigned expected;
    struct gcomm_abort *come; // the thread that gathers ends them
    bool gathers;             // a thread gathers
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ the links */

static bool is_left(struct gcomm *gcomm, uint64_t until_ns)
{
    unsigned rounds = 0;
    while (pthread_mutex_trylock(&gcomm->calls) != 0) {
        if (base_clock_ns() > until_ns)
            return false;
        gcomm_pause(&rounds);
    }
    return true;
}

static void halt(struct gcomm_abort *one)
{
    struct gcomm *gcomm = one->gcomm;
    struct base_error error = {.result = ZERO_OK};
    pthread_mutex_lock(&gcomm->mutex);
    one->link = gcomm->link;
    pthread_mutex_unlock(&gcomm->mutex);
    if (one->link && gcomm->transport->halt)
        gcomm->transport->halt(one->link, &error);
    gcomm_watchdog_log(gcomm, &error);
}

/** No thread finds the link any more. With the mutex of calls, which it gives back. */
static void take(struct gcomm_abort *one)
{
    struct gcomm *gcomm = one->gcomm;
    if (!one->link) // it may have come to be meanwhile
        halt(one);
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->link = NULL;
    pthread_mutex_unlock(&gcomm->mutex);
    pthread_mutex_unlock(&gcomm->calls);
}

/** All are told before anything is waited for, be it a thread that is in a call of one, and frees
 * it when he comes out of that: what was told lets the driver go on. */
static void end_links(struct gcomm *gcomm, struct gcomm_abort *first)
{
    assert(first);
    const uint64_t until_ns = base_clock_ns() + CALL_NS;
    struct base_error error = {.result = ZERO_OK};
    for (struct gcomm_abort *one = first; one; one = one->next) {
        one->was_in_use = !is_left(one->gcomm, until_ns);
        halt(one);
        if (!one->was_in_use)
            take(one);
    }
    for (struct gcomm_abort *one = first; one; one = one->next)
        if (one->was_in_use) {
            pthread_mutex_lock(&one->gcomm->calls);
            take(one);
        }
    gcomm->transport->abort(first, &error);
    gcomm_watchdog_log(gcomm, &error);
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
    assert(!all.gathers);
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    all.gathers = true;
    while (all.expected > 0 && coll_waited(&clock) < GATHERING_NS)
        let_others(&rounds);
    all.gathers = false;
}

/** Who comes meanwhile does not wait for these: these may have to wait for it. */
static void end_all(struct gcomm *gcomm)
{
    assert(all.come);
    struct gcomm_abort *next, *first = all.come;
    all.come = NULL;
    for (struct gcomm_abort *one = first; one; one = one->next)
        one->has_begun = true;
    pthread_mutex_unlock(&all.mutex);
    end_links(gcomm, first);
    pthread_mutex_lock(&all.mutex);
    for (; first; first = next) {
        next = first->next;
        first->is_over = true; // and it is gone when the mutex is
    }
}

/* ------------------------------------------------------------------ a watchdog */

void gcomm_abort_expect(const struct gcomm *gcomm)
{
    pthread_mutex_lock(&all.mutex);
    all.expected += gcomm->transport->entangled;
    pthread_mutex_unlock(&all.mutex);
}

static void end_with_others(struct gcomm *gcomm)
{
    struct gcomm_abort mine = {.gcomm = gcomm};
    unsigned rounds = 0;
    pthread_mutex_lock(&all.mutex);
    assert(all.expected > 0);
    all.expected--;
    mine.next = all.come;
    all.come = &mine;
    while (!mine.is_over) {
        if (all.gathers || mine.has_begun) {
            let_others(&rounds);
        } else {
            if (coll_failed(gcomm->host))
                gather();
            end_all(gcomm);
        }
    }
    pthread_mutex_unlock(&all.mutex);
}

/** A thread that makes a link has the mutex of calls. */
static bool has_link(struct gcomm *gcomm)
{
    if (pthread_mutex_trylock(&gcomm->calls) != 0)
        return true;
    const bool has = gcomm->link != NULL;
    pthread_mutex_unlock(&gcomm->calls);
    return has;
}

void gcomm_abort_join(struct gcomm *gcomm)
{
    const bool entangled = gcomm->transport->entangled;
    if (entangled && has_link(gcomm)) {
        end_with_others(gcomm);
    } else if (entangled) {
        pthread_mutex_lock(&all.mutex);
        assert(all.expected > 0);
        all.expected--;
        pthread_mutex_unlock(&all.mutex);
    } else {
        end_links(gcomm, &(struct gcomm_abort){.gcomm = gcomm});
    }
}
