#include "base/arena.h"
#include "base/hash.h"
#include "collectives/gpu/gcomm_internal.h"

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

zero_result gcomm_agree(struct coll_comm *host, size_t value, size_t **values, zero_result result,
                        const struct base_error *mine, struct base_error *error)
{
    *values = base_calloc((size_t)host->world, sizeof **values);
    if (*values)
        return coll_agree(host, value, *values, result, mine, error);
    coll_fail(host, ZERO_E_NOMEM, "rank %d: no memory for %zu bytes",
              coll_root_rank(host, host->rank), (size_t)host->world * sizeof **values);
    return coll_state(host, error);
}

/** The same, and all have given the same value, which is `what`. */
static zero_result agree(struct coll_comm *host, size_t value, const char *what, zero_result result,
                         const struct base_error *mine, struct base_error *error)
{
    size_t *values;
    result = gcomm_agree(host, value, &values, result, mine, error);
    for (int rank = 1; rank < host->world && !result; rank++)
        if (values[rank] != values[0])
            result = zero_fail(error, ZERO_E_INVALID,
                               "collectives of devices: ranks %d and %d differ in %s",
                               coll_root_rank(host, 0), coll_root_rank(host, rank), what);
    base_free(values);
    return result;
}

/** NULL: there is no memory. */
static struct gcomm *allocate(const struct gcomm_config *config, struct gcomm *whole)
{
    struct coll_comm *host = config->host;
    struct gcomm *device = base_calloc(1, sizeof *device);
    uint64_t *compared = base_calloc((size_t)host->world, sizeof *compared);
    if (!device || !compared) {
        base_free(device);
        base_free(compared);
        return NULL;
    }
    *device = (struct gcomm){
        .transport = find_transport(config->transport),
        .host = host,
        .whole = whole ? whole : device,
        .kind = config->device,
        .number = config->number,
        .timeout_ns = config->timeout_ns ? config->timeout_ns : host->comm_world->timeout_ns,
        .abort_timeout_ns = config->abort_timeout_ns ? config->abort_timeout_ns : GCOMM_ABORT_NS,
        .log = config->log,
        .compared = compared,
    };
    snprintf(device->where, sizeof device->where, "%s %d", config->device->name, config->number);
    snprintf(device->name, sizeof device->name, "%.16s/%s", host->name, config->transport);
    if (whole) {
        pthread_mutex_lock(&whole->mutex);
        atomic_fetch_add(&whole->groups, 1);
        pthread_cond_broadcast(&whole->news); // its watchdog is to look at times from now on
        pthread_mutex_unlock(&whole->mutex);
    }
    return device;
}

zero_result gcomm_make(struct gcomm **made, const struct gcomm_config *config, struct gcomm *whole,
                       struct base_error *error)
{
    zero_result result = check_config(config, error);
    if (result)
        return result;
    struct gcomm *device = *made = allocate(config, whole);
    if (!device)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes", sizeof *device);
    result = device->kind->enter(device->number, error);
    if (result)
        return result;
    result = device->transport->prepare(config, error);
    if (!result)
        result = gcomm_order_open(device, error);
    if (!result)
        result = gcomm_watchdog_start(device, error);
    device->kind->leave();
    return result;
}

/** Waits for the others as long as none of them has failed to come: ZERO_AGAIN if one has, which
 * has a message. */
static zero_result meet(struct gcomm *device, struct base_error *error)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    zero_result result;
    for (;;) {
        pthread_mutex_lock(&device->calls);
        result = coll_failed(device->host)
                     ? coll_state(device->host, error) // and the link may be gone
                     : device->transport->ready(device->link, error);
        pthread_mutex_unlock(&device->calls);
        if (result != ZERO_AGAIN)
            return result;
        for (int rank = 0; rank < device->host->world; rank++)
            if (atomic_load(&gcomm_call_log_of(device, rank)->state) == GCOMM_FAILED)
                return ZERO_AGAIN;
        const uint64_t waited_ns = coll_waited(&clock);
        if (waited_ns > device->timeout_ns)
            return zero_fail(error, ZERO_E_TIMEOUT, "%s: the ranks have not met within %.1f s",
                             device->transport->name, (double)waited_ns * 1e-9);
        gcomm_pause(&rounds);
    }
}

void gcomm_wait_for_meeting(const struct gcomm *device, struct coll_comm *host,
                            const struct coll_arena *arena)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    for (int rank = 0; rank < host->world;) {
        const struct gcomm_call_log *call_log = coll_arena_peer(arena, coll_root_rank(host, rank));
        const uint64_t state = call_log ? atomic_load(&call_log->state) : GCOMM_JOINED;
        if (state == GCOMM_JOINED || state == GCOMM_FAILED)
            rank++;
        else if (coll_progress(host) == ZERO_OK &&
                 coll_waited(&clock) < device->timeout_ns + device->abort_timeout_ns)
            gcomm_pause(&rounds);
        else
            return;
    }
}

/** The link is there for others when there is something in it to end. */
static zero_result make_link(struct gcomm *device, const struct gcomm_config *config,
                             const unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    void *link = NULL;
    pthread_mutex_lock(&device->calls);
    const zero_result result = coll_failed(device->host)
                                   ? coll_state(device->host, error)
                                   : device->transport->join(&link, config, id, error);
    pthread_mutex_lock(&device->mutex);
    device->link = link;
    pthread_mutex_unlock(&device->mutex);
    pthread_mutex_unlock(&device->calls);
    return result;
}

static zero_result join(struct gcomm *device, const struct gcomm_config *config,
                        struct base_error *error)
{
    struct base_error mine = {.result = ZERO_OK};
    unsigned char id[GCOMM_ID_BYTES] = {0};
    zero_result result = ZERO_OK;
    if (device->host->rank == 0)
        result = device->transport->identify(id, &mine);
    result = agree(device->host, config->native != NULL,
                   "whether they give a communicator of their own", result, &mine, error);
    if (!result && coll_broadcast(device->host, id, sizeof id, 0) != ZERO_OK)
        result = coll_state(device->host, error);
    if (result)
        return result;
    gcomm_log_state(device, GCOMM_JOINING);
    result = device->kind->enter(device->number, &mine);
    if (!result) {
        result = make_link(device, config, id, &mine);
        if (!result)
            result = meet(device, &mine);
        device->kind->leave();
    }
    gcomm_log_state(device, result ? GCOMM_FAILED : GCOMM_JOINED);
    gcomm_wait_for_meeting(device, device->host, device->arena);
    return agree(device->host, 0, "nothing", result < 0 ? result : ZERO_OK, &mine, error);
}

static zero_result enroll_own(struct gcomm *device, const struct gcomm_config *config,
                              struct base_error *error)
{
    zero_result result = device->kind->enter(device->number, error);
    if (result)
        return result;
    pthread_mutex_lock(&device->calls);
    result = coll_failed(device->host)
                 ? coll_state(device->host, error)
                 : device->transport->enroll(device->link, config->memory, config->bytes, error);
    pthread_mutex_unlock(&device->calls);
    device->kind->leave();
    return result;
}

/** With a link that is well and has nothing to do. */
static void dismiss(struct gcomm *device)
{
    struct base_error error = {.result = ZERO_OK};
    if (!device->transport->dismiss)
        return;
    if (device->kind->enter(device->number, &error) == ZERO_OK) {
        pthread_mutex_lock(&device->calls);
        if (device->link && !coll_failed(device->host))
            device->transport->dismiss(device->link, &error);
        pthread_mutex_unlock(&device->calls);
        device->kind->leave();
    }
    gcomm_watchdog_log(device, &error);
}

/** Registers memory: where one rank has not, the others may not give theirs either. */
static zero_result enroll(struct gcomm *device, const struct gcomm_config *config,
                          struct base_error *error)
{
    struct base_error mine = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    if (config->memory && device->transport->enroll)
        result = enroll_own(device, config, &mine);
    const size_t what = !config->memory ? 0 : config->must_register ? 1 : 2;
    result = agree(device->host, what, "whether memory is registered", result, &mine, error);
    if (!result) {
        device->memory = config->memory;
        device->bytes = config->bytes;
        device->must_register = config->must_register;
        return ZERO_OK;
    }
    dismiss(device);
    if (what != 2 || result == ZERO_E_INVALID || coll_failed(device->host))
        return result;
    base_logf(device->log, ZERO_LOG_WARN, "coll", "%s: no rank registers memory: %s",
              device->transport->name, error->message);
    base_error_clear(error);
    return ZERO_OK;
}

/** What is there is still used, and stays as it is. */
static void leave_behind(struct gcomm *device)
{
    if (!device->has_lost) // which has been told of
        base_logf(device->log, ZERO_LOG_ERROR, "coll",
                  "%s: what rank %d has under way on %s can't be ended within %.1f s, and is left "
                  "behind",
                  device->transport->name, coll_root_rank(device->host, device->host->rank),
                  device->where, (double)device->abort_timeout_ns * 1e-9);
    device->left_behind = true;
    if (!device->has_threads)
        return;
    pthread_mutex_lock(&device->mutex);
    device->log = NULL; // its owner goes on
    pthread_mutex_unlock(&device->mutex);
}

zero_result gcomm_join(struct gcomm *device, struct coll_arena *arena,
                       const struct gcomm_config *config, struct base_error *error)
{
    device->arena = arena;
    device->call_log = coll_arena_base(arena);
    zero_result result = join(device, config, error);
    if (!result)
        result = enroll(device, config, error);
    if (result)
        gcomm_log_state(device, GCOMM_FAILED); // nobody need wait for it
    return result;
}

/** The end of a group's link waits for what the whole and other groups have under way: here there
 * is no limit for that, but their own. */
static void wait_for_others(struct gcomm *device)
{
    unsigned rounds = 0;
    if (coll_failed(device->host) || device->kind->enter(device->number, NULL) != ZERO_OK)
        return;
    device->has_given = true;
    if (device->kind->event_record(device->behind, device->stream, NULL) == ZERO_OK)
        while (device->kind->event_query(device->behind, NULL) == ZERO_AGAIN &&
               coll_progress(device->host) == ZERO_OK)
            gcomm_pause(&rounds);
    device->kind->leave();
}

bool gcomm_discard(struct gcomm *device)
{
    if (!device)
        return true;
    struct gcomm *const whole = device->whole;
    if (gcomm_is_group(device) && device->call_log) // it may have a link
        wait_for_others(device);
    bool ended = (!device->has_threads || gcomm_watchdog_stop(device)) && !device->has_lost;
    if (ended && device->kind->enter(device->number, NULL) == ZERO_OK) {
        ended = gcomm_order_close(device);
        device->kind->leave();
    }
    if (!ended) {
        leave_behind(device);
        whole->has_lost = true; // whose stream it may use
        return false;
    }
    if (gcomm_is_group(device))
        atomic_fetch_sub(&whole->groups, 1);
    base_free(device->compared);
    base_free(device);
    return true;
}

zero_result gcomm_open(struct gcomm **opened, const struct gcomm_config *config,
                       struct base_error *error)
{
    struct gcomm *device = NULL;
    struct coll_arena *arena;
    struct base_error mine = {.result = ZERO_OK};
    *opened = NULL;
    if (!config->host)
        return zero_fail(error, ZERO_E_INVALID, "collectives of devices: without a host's");
    if (config->host->root_ranks)
        return zero_fail(error, ZERO_E_INVALID,
                         "collectives of devices: communicator %s is a group, whose devices "
                         "gcomm_split() joins",
                         config->host->name);
    zero_result result = gcomm_make(&device, config, NULL, &mine);
    const size_t name = device ? base_hash64(config->transport, strlen(config->transport), 0) : 0;
    result = agree(config->host, name, "their transports", result, &mine, error);
    if (!result && device)
        result = coll_arena_create(config->host, sizeof *device->call_log, &arena, error);
    if (!result && device)
        result = gcomm_join(device, arena, config, error);
    if (!result || (device && !gcomm_discard(device)))
        *opened = device;
    return result;
}

/* ------------------------------------------------------------------ end */

/** What this rank has given to the others is used by them until they have finished it as well. */
static void wait_for_all(struct gcomm *device)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    zero_result result = gcomm_wait(device, device->started);
    while (!result && !gcomm_log_finished(device, device->started)) {
        const uint64_t waited_ns = coll_waited(&clock);
        result = coll_progress(device->host); // somebody may wait for that before it comes to it
        if (!result && waited_ns > device->timeout_ns)
            result = gcomm_fail(device, ZERO_E_TIMEOUT, device->started,
                                "not done on all ranks after %.1f s", (double)waited_ns * 1e-9);
        gcomm_pause(&rounds);
    }
}

bool gcomm_close(struct gcomm *device)
{
    if (!device || device->left_behind)
        return !device;
    wait_for_all(device);
    if (gcomm_is_group(device))
        wait_for_others(device);
    dismiss(device);
    gcomm_log_state(device, GCOMM_LEFT);
    return gcomm_discard(device);
}
