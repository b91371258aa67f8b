#include "base/arena.h"
#include "base/hash.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ which */

static const struct gcomm_transport *const transports[] = {
    &gcomm_transport_host,
#ifdef ZERO_WITH_NCCL
    &gcomm_transport_nccl,
#endif
    NULL,
};

static const struct gcomm_transport *find_transport(const char *name)
{
    for (size_t i = 0; transports[i]; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}

static zero_result check_config(const struct gcomm_config *config, struct base_error *error)
{
    if (!config->transport || !config->device)
        return zero_fail(error, ZERO_E_INVALID,
                         "collectives of devices: without a transport or a device");
    const struct gcomm_transport *transport = find_transport(config->transport);
    if (!transport)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "collectives of devices: this build has no transport %s",
                         config->transport);
    if (transport->device && strcmp(transport->device, config->device->name) != 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "collectives of devices: transport %s is for %s, not for %s",
                         transport->name, transport->device, config->device->name);
    return ZERO_OK;
}

bool gcomm_has(const char *transport)
{
    return find_transport(transport) != NULL;
}

zero_result gcomm_ready(const char *transport, const struct base_device *device,
                        struct base_error *error)
{
    const struct gcomm_config config = {.transport = transport, .device = device};
    const zero_result result = check_config(&config, error);
    return result ? result : find_transport(transport)->prepare(&config, error);
}

zero_result gcomm_alloc(void **memory, const char *transport, const struct base_device *device,
                        size_t bytes, struct base_error *error)
{
    const struct gcomm_config config = {.transport = transport, .device = device};
    const zero_result result = check_config(&config, error);
    *memory = NULL;
    if (result)
        return result;
    const struct gcomm_transport *found = find_transport(transport);
    return found->alloc ? found->alloc(memory, bytes, error) : device->alloc(memory, bytes, error);
}

zero_result gcomm_free(void *memory, const char *transport, const struct base_device *device,
                       struct base_error *error)
{
    const struct gcomm_transport *found = find_transport(transport);
    if (memory && found && found->free)
        return found->free(memory, error);
    device->free(memory);
    return ZERO_OK;
}

size_t gcomm_memory(const char *transport, int world, const struct gcomm_load *most)
{
    const struct gcomm_transport *found = find_transport(transport);
    const size_t own = sizeof(struct gcomm) + sizeof(struct gcomm_call_log) +
                       (size_t)world * sizeof *((struct gcomm *)NULL)->compared;
    return own + (found && found->memory ? found->memory(world, most) : 0);
}

/* ------------------------------------------------------------------ beginning */

/** All ranks go on, or none, as by coll_agree(), and all have given the same value, which is
 * `what`. *Collective, ordered.* */
static zero_result agree(struct coll_comm *host, size_t value, const char *what, zero_result result,
                         const struct base_error *mine, struct base_error *error)
{
    size_t *values = base_calloc((size_t)host->world, sizeof *values);
    if (!values) {
        coll_fail(host, ZERO_E_NOMEM, "rank %d: no memory for %zu bytes", host->rank,
                  (size_t)host->world * sizeof *values);
        return coll_state(host, error);
    }
    result = coll_agree(host, value, values, result, mine, error);
    for (int rank = 1; rank < host->world && !result; rank++)
        if (values[rank] != values[0])
            result = zero_fail(error, ZERO_E_INVALID,
                               "collectives of devices: ranks 0 and %d differ in %s", rank, what);
    base_free(values);
    return result;
}

/** NULL: there is no memory. */
static struct gcomm *allocate(const struct gcomm_config *config)
{
    assert(config->host);
    struct coll_comm *host = config->host;
    struct gcomm *gcomm = base_calloc(1, sizeof *gcomm);
    uint64_t *compared = base_calloc((size_t)host->world, sizeof *compared);
    if (!gcomm || !compared) {
        base_free(gcomm);
        base_free(compared);
        return NULL;
    }
    *gcomm = (struct gcomm){
        .transport = find_transport(config->transport),
        .host = host,
        .kind = config->device,
        .number = config->number,
        .timeout_ns = config->timeout_ns ? config->timeout_ns : host->comm_world->timeout_ns,
        .abort_timeout_ns = config->abort_timeout_ns ? config->abort_timeout_ns : GCOMM_ABORT_NS,
        .log = config->log,
        .compared = compared,
    };
    snprintf(gcomm->where, sizeof gcomm->where, "%s %d", config->device->name, config->number);
    snprintf(gcomm->name, sizeof gcomm->name, "%.16s/%s", host->name, config->transport);
    return gcomm;
}

/** This rank's own part, but for meeting the others. *made may be there after an error. */
static zero_result make(struct gcomm **made, const struct gcomm_config *config,
                        struct base_error *error)
{
    zero_result result = check_config(config, error);
    if (result)
        return result;
    struct gcomm *gcomm = *made = allocate(config);
    if (!gcomm)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes", sizeof *gcomm);
    result = gcomm->kind->enter(gcomm->number, error);
    if (result)
        return result;
    result = gcomm->transport->prepare(config, error);
    if (!result)
        result = gcomm_order_open(gcomm, error);
    if (!result)
        result = gcomm_watchdog_start(gcomm, error);
    gcomm->kind->leave();
    return result;
}

/** Waits for the others as long as none of them has failed to come: ZERO_AGAIN if one has, which
 * has a message. */
static zero_result meet(struct gcomm *gcomm, struct base_error *error)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    zero_result result;
    for (;;) {
        pthread_mutex_lock(&gcomm->calls);
        result = coll_failed(gcomm->host)
                     ? coll_state(gcomm->host, error) // and the link may be gone
                     : gcomm->transport->ready(gcomm->link, error);
        pthread_mutex_unlock(&gcomm->calls);
        if (result != ZERO_AGAIN)
            return result;
        for (int rank = 0; rank < gcomm->host->world; rank++)
            if (atomic_load(&gcomm_call_log_of(gcomm, rank)->state) == GCOMM_FAILED)
                return ZERO_AGAIN;
        const uint64_t waited_ns = coll_waited(&clock);
        if (waited_ns > gcomm->timeout_ns)
            return zero_fail(error, ZERO_E_TIMEOUT, "%s: the ranks have not met within %.1f s",
                             gcomm->transport->name, (double)waited_ns * 1e-9);
        gcomm_pause(&rounds);
    }
}

/** Waits for ranks that have neither met the others nor failed to. Such a rank may try until its
 * time is over. This rank's call of the host began earlier with as much time, so it could not wait
 * so long. */
static void wait_for_meeting(const struct gcomm *gcomm)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    for (int rank = 0; rank < gcomm->host->world;) {
        const uint64_t state = atomic_load(&gcomm_call_log_of(gcomm, rank)->state);
        if (state == GCOMM_JOINED || state == GCOMM_FAILED)
            rank++;
        else if (coll_progress(gcomm->host) == ZERO_OK &&
                 coll_waited(&clock) < gcomm->timeout_ns + gcomm->abort_timeout_ns)
            gcomm_pause(&rounds);
        else
            return;
    }
}

/** The link is there for others when there is something in it to end. */
static zero_result make_link(struct gcomm *gcomm, const struct gcomm_config *config,
                             const unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    assert(!gcomm->link);
    void *link = NULL;
    pthread_mutex_lock(&gcomm->calls);
    const zero_result result = coll_failed(gcomm->host)
                                   ? coll_state(gcomm->host, error)
                                   : gcomm->transport->join(&link, config, id, error);
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->link = link;
    pthread_mutex_unlock(&gcomm->mutex);
    pthread_mutex_unlock(&gcomm->calls);
    return result;
}

static zero_result join(struct gcomm *gcomm, const struct gcomm_config *config,
                        struct base_error *error)
{
    struct base_error mine = {.result = ZERO_OK};
    unsigned char id[GCOMM_ID_BYTES] = {0};
    zero_result result = ZERO_OK;
    if (gcomm->host->rank == 0)
        result = gcomm->transport->identify(id, &mine);
    result = agree(gcomm->host, config->nccl_comm != NULL,
                   "whether they give a communicator of their own", result, &mine, error);
    if (!result && coll_broadcast(gcomm->host, id, sizeof id, 0) != ZERO_OK)
        result = coll_state(gcomm->host, error);
    if (result)
        return result;
    gcomm_log_state(gcomm, GCOMM_JOINING);
    result = gcomm->kind->enter(gcomm->number, &mine);
    if (!result) {
        result = make_link(gcomm, config, id, &mine);
        if (!result)
            result = meet(gcomm, &mine);
        gcomm->kind->leave();
    }
    gcomm_log_state(gcomm, result ? GCOMM_FAILED : GCOMM_JOINED);
    wait_for_meeting(gcomm);
    return agree(gcomm->host, 0, "nothing", result < 0 ? result : ZERO_OK, &mine, error);
}

static zero_result enroll_own(struct gcomm *gcomm, const struct gcomm_config *config,
                              struct base_error *error)
{
    zero_result result = gcomm->kind->enter(gcomm->number, error);
    if (result)
        return result;
    pthread_mutex_lock(&gcomm->calls);
    result = coll_failed(gcomm->host)
                 ? coll_state(gcomm->host, error)
                 : gcomm->transport->enroll(gcomm->link, config->memory, config->bytes, error);
    pthread_mutex_unlock(&gcomm->calls);
    gcomm->kind->leave();
    return result;
}

/** Dismisses a link that is well and has nothing to do. */
static void dismiss(struct gcomm *gcomm)
{
    struct base_error error = {.result = ZERO_OK};
    if (!gcomm->transport->dismiss)
        return;
    if (gcomm->kind->enter(gcomm->number, &error) == ZERO_OK) {
        pthread_mutex_lock(&gcomm->calls);
        if (gcomm->link && !coll_failed(gcomm->host))
            gcomm->transport->dismiss(gcomm->link, &error);
        pthread_mutex_unlock(&gcomm->calls);
        gcomm->kind->leave();
    }
    gcomm_watchdog_log(gcomm, &error);
}

/** Registers memory: where one rank has not, the others may not give theirs either. */
static zero_result enroll(struct gcomm *gcomm, const struct gcomm_config *config,
                          struct base_error *error)
{
    assert(!gcomm->memory);
    struct base_error mine = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    if (config->memory && gcomm->transport->enroll)
        result = enroll_own(gcomm, config, &mine);
    const size_t what = !config->memory ? 0 : config->must_register ? 1 : 2;
    result = agree(gcomm->host, what, "whether memory is registered", result, &mine, error);
    if (!result) {
        gcomm->memory = config->memory;
        gcomm->bytes = config->bytes;
        gcomm->must_register = config->must_register;
        return ZERO_OK;
    }
    dismiss(gcomm);
    if (what != 2 || result == ZERO_E_INVALID || coll_failed(gcomm->host))
        return result;
    base_logf(gcomm->log, ZERO_LOG_WARN, "coll", "%s: no rank registers memory: %s",
              gcomm->transport->name, error->message);
    base_error_clear(error);
    return ZERO_OK;
}

/** What is there is still used, and stays as it is. */
static void leave_behind(struct gcomm *gcomm)
{
    assert(!gcomm->left_behind);
    base_logf(gcomm->log, ZERO_LOG_ERROR, "coll",
              "%s: what rank %d has under way on %s can't be ended within %.1f s, and is left "
              "behind",
              gcomm->transport->name, gcomm->host->rank, gcomm->where,
              (double)gcomm->abort_timeout_ns * 1e-9);
    gcomm->left_behind = true;
    if (!gcomm->has_threads)
        return;
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->log = NULL; // its owner goes on
    pthread_mutex_unlock(&gcomm->mutex);
}

/** Meets the others by call logs in the arena, and registers memory: all ranks or none, with the
 * lowest failed one's message. *Collective* over config->host. */
static zero_result meet_in(struct gcomm *gcomm, struct coll_arena *arena,
                           const struct gcomm_config *config, struct base_error *error)
{
    assert(arena && !gcomm->call_log);
    gcomm->arena = arena;
    gcomm->call_log = coll_arena_base(arena);
    assert(gcomm->call_log);
    zero_result result = join(gcomm, config, error);
    if (!result)
        result = enroll(gcomm, config, error);
    if (result)
        gcomm_log_state(gcomm, GCOMM_FAILED); // no rank need wait for this one
    return result;
}

/** Frees one that has nothing under way, or whose host has failed, or that could not join; accepts
 * NULL. False: it is still used, and left behind. */
static bool discard(struct gcomm *gcomm)
{
    if (!gcomm)
        return true;
    bool ended = !gcomm->has_threads || gcomm_watchdog_stop(gcomm);
    if (ended && gcomm->kind->enter(gcomm->number, NULL) == ZERO_OK) {
        ended = gcomm_order_close(gcomm);
        gcomm->kind->leave();
    }
    if (!ended) {
        leave_behind(gcomm);
        return false;
    }
    base_free(gcomm->compared);
    base_free(gcomm);
    return true;
}

zero_result gcomm_open(struct gcomm **opened, const struct gcomm_config *config,
                       struct base_error *error)
{
    struct gcomm *gcomm = NULL;
    struct coll_arena *arena;
    struct base_error mine = {.result = ZERO_OK};
    *opened = NULL;
    if (!config->host)
        return zero_fail(error, ZERO_E_INVALID, "collectives of devices: without a host's");
    if (config->host->root_ranks)
        return zero_fail(error, ZERO_E_INVALID,
                         "collectives of devices: communicator %s is a group, and devices are "
                         "joined by all ranks only",
                         config->host->name);
    zero_result result = make(&gcomm, config, &mine);
    const size_t name = gcomm ? base_hash64(config->transport, strlen(config->transport), 0) : 0;
    result = agree(config->host, name, "their transports", result, &mine, error);
    if (!result && gcomm)
        result = coll_arena_create(config->host, sizeof *gcomm->call_log, &arena, error);
    if (!result && gcomm)
        result = meet_in(gcomm, arena, config, error);
    if (!result || (gcomm && !discard(gcomm)))
        *opened = gcomm;
    return result;
}

/* ------------------------------------------------------------------ end */

/** What this rank has given to the others is used by them until they have finished it as well. */
static void wait_for_all(struct gcomm *gcomm)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    zero_result result = gcomm_wait(gcomm, gcomm->started);
    while (!result && !gcomm_log_finished(gcomm, gcomm->started)) {
        const uint64_t waited_ns = coll_waited(&clock);
        result = coll_progress(gcomm->host); // a peer may wait for that before it comes to it
        if (!result && waited_ns > gcomm->timeout_ns)
            result = gcomm_fail(gcomm, ZERO_E_TIMEOUT, gcomm->started,
                                "not done on all ranks after %.1f s", (double)waited_ns * 1e-9);
        gcomm_pause(&rounds);
    }
}

bool gcomm_close(struct gcomm *gcomm)
{
    if (!gcomm || gcomm->left_behind)
        return !gcomm;
    wait_for_all(gcomm);
    dismiss(gcomm);
    gcomm_log_state(gcomm, GCOMM_LEFT);
    return discard(gcomm);
}
