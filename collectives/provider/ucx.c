// UCX, opened and closed: its connections, and the memory that is registered. It may not be told to
// stop writing to a target: it can only be ended, with all connections, so that is what halting is.
// Its own way to say that a peer is gone is an error of the endpoint, which breaks the copies from
// there. TCP tells why.

#include "collectives/provider/ucx_internal.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/forked.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    ADDRESS_BYTES = 16 * 1024,   /**< of a worker, at most */
    OWN_BYTES = 8 * 1024 * 1024, /**< what UCX 1.13 takes by TCP, as measured, */
    PEER_BYTES = 256 * 1024,     /**< and for each peer */
};

static zero_result failed(const struct ucx *ucx, ucs_status_t status, const char *call,
                          struct base_error *error)
{
    assert(status != UCS_OK);
    return zero_fail(error, status == UCS_ERR_NO_MEMORY ? ZERO_E_NOMEM : ZERO_E_IO, "%s: %s", call,
                     ucx->ucp->text(status));
}

/** Threads that UCX starts get no signals, which are for the program's own. */
static void block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* ------------------------------------------------------------------ peers */

static void ucx_engine(const struct coll_provided *provided, char text[COLL_ENGINE_BYTES])
{
    unsigned major, minor, release;
    ucx_of(provided)->ucp->version(&major, &minor, &release);
    snprintf(text, COLL_ENGINE_BYTES, "UCX %u.%u", major, minor);
}

static struct coll_blob ucx_address(const struct coll_provided *provided)
{
    return (struct coll_blob){ucx_of(provided)->address, ucx_of(provided)->address_bytes};
}

static zero_result ucx_connect(struct coll_provided *provided, int rank,
                               const struct coll_blob *address, struct base_error *error)
{
    struct ucx *ucx = ucx_of(provided);
    assert(rank >= 0 && rank < ucx->config.world && !ucx->peers[rank].endpoint);
    struct ucx_peer *peer = &ucx->peers[rank];
    peer->ucx = ucx;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = address->bytes,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {ucx_endpoint_failed, peer}};
    sigset_t before;
    ucx_lock(ucx);
    block_signals(&before);
    const ucs_status_t status = ucx->ucp->ep_create(ucx->worker, &params, &peer->endpoint);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ucx_unlock(ucx);
    if (status == UCS_OK)
        return ZERO_OK;
    peer->endpoint = NULL;
    return failed(ucx, status, "ucp_ep_create", error);
}

static void ucx_why(const struct coll_provided *provided, int rank, char *text, size_t size)
{
    const struct ucx *ucx = ucx_of(provided);
    const ucs_status_t status = ucx->peers[rank].failed;
    snprintf(text, size, "%s",
             status != UCS_OK ? ucx->ucp->text(status)
             : ucx->worker    ? "it is not known there"
                              : "it has ended");
}

/* ------------------------------------------------------------------ arenas */

/** Takes an arena back. With the lock. */
static void take_arena_back(struct ucx *ucx, uint32_t id)
{
    struct ucx_arena *arena = ucx->arenas[id];
    if (arena && ucx->context && arena->memory)
        ucx->ucp->mem_unmap(ucx->context, arena->memory);
    if (arena)
        arena->memory = NULL;
}

static void ucx_withdraw(struct coll_provided *provided, uint32_t id)
{
    struct ucx *ucx = ucx_of(provided);
    assert(id < ucx->config.arenas);
    ucx_lock(ucx);
    struct ucx_arena *arena = ucx->arenas[id];
    take_arena_back(ucx, id);
    ucx->arenas[id] = NULL;
    ucx_unlock(ucx);
    base_free(arena);
}

/** Registers memory. With the lock. */
static zero_result enroll(struct ucx *ucx, struct ucx_arena *arena, struct base_error *error)
{
    const ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                       UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                       UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                         .address = arena->begin,
                                         .length = arena->bytes,
                                         .memory_type = UCS_MEMORY_TYPE_HOST};
    const ucs_status_t status = ucx->ucp->mem_map(ucx->context, &params, &arena->memory);
    if (status == UCS_OK)
        return ZERO_OK;
    arena->memory = NULL;
    return failed(ucx, status,
                  "ucp_mem_map (`ulimit -l` is the limit for memory that a network reads)", error);
}

static zero_result ucx_publish(struct coll_provided *provided, uint32_t id, void *memory,
                               size_t bytes, struct coll_blob *key, struct base_error *error)
{
    struct ucx *ucx = ucx_of(provided);
    assert(id < ucx->config.arenas && !ucx->arenas[id]);
    struct ucx_arena *arena =
        base_calloc(1, sizeof *arena + (size_t)ucx->config.world * sizeof *arena->parts);
    *key = (struct coll_blob){NULL, 0};
    if (!arena)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for keys of %d ranks", ucx->config.world);
    arena->begin = memory;
    arena->bytes = bytes;
    ucx_lock(ucx);
    ucx->arenas[id] = arena;
    ucx->arenas_end = id < ucx->arenas_end ? ucx->arenas_end : id + 1;
    zero_result result = ucx->worker ? ZERO_OK : zero_fail(error, ZERO_E_IO, "UCX has ended");
    if (result == ZERO_OK && bytes > 0)
        result = enroll(ucx, arena, error);
    ucx_unlock(ucx);
    if (bytes > 0)
        *key = (struct coll_blob){&arena->bytes, sizeof arena->bytes};
    return result;
}

static zero_result ucx_learn(struct coll_provided *provided, uint32_t id, int rank,
                             const struct coll_blob *key, struct base_error *error)
{
    struct ucx *ucx = ucx_of(provided);
    assert(id < ucx->config.arenas && ucx->arenas[id]);
    uint64_t *part = &ucx->arenas[id]->parts[rank];
    if (key->count != sizeof *part)
        return zero_fail(error, ZERO_E_IO, "a key of %zu bytes", key->count);
    memcpy(part, key->bytes, sizeof *part);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ the end */

/** Moves nothing any more. */
static void stop(struct ucx *ucx)
{
    if (ucx->started) {
        atomic_store(&ucx->leaving, true);
        eventfd_write(ucx->doorbell, 1);
        pthread_join(ucx->thread, NULL);
        ucx->started = false;
    }
    ucx_lock(ucx);
    ucx->paused = true;
    ucx_unlock(ucx);
}

/** Ends all connections at once, without a word to the peers. With the lock. */
static void disconnect(struct ucx *ucx)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    for (int rank = 0; rank < ucx->config.world; rank++) {
        struct ucx_peer *peer = &ucx->peers[rank];
        void *request = peer->endpoint ? ucx->ucp->ep_close(peer->endpoint, &force) : NULL;
        peer->endpoint = NULL;
        // What is left of it is done as the worker ends: there is no progress any more.
        if (UCS_PTR_IS_PTR(request))
            ucx->ucp->request_free(request);
    }
}

void ucx_halt(struct coll_provided *provided)
{
    struct ucx *ucx = ucx_of(provided);
    stop(ucx);
    ucx_lock(ucx);
    if (ucx->worker) {
        disconnect(ucx);
        if (ucx->address)
            ucx->ucp->release_address(ucx->worker, ucx->address);
        ucx->address = NULL;
        ucx->ucp->worker_destroy(ucx->worker);
        ucx->worker = NULL;
    }
    // The worker has ended what it was sending from them.
    for (uint32_t id = 0; ucx->arenas && id < ucx->config.arenas; id++)
        take_arena_back(ucx, id);
    if (ucx->context)
        ucx->ucp->cleanup(ucx->context);
    ucx->context = NULL;
    // UCX forgets a copy without a word if its owner has not answered yet.
    while (ucx->copies)
        ucx_end_copy(ucx, ucx->copies, false);
    ucx_unlock(ucx);
}

static void ucx_close(struct coll_provided *provided)
{
    struct ucx *ucx = ucx_of(provided);
    if (ucx->generation == base_generation())
        ucx_halt(provided);
    for (uint32_t id = 0; ucx->arenas && id < ucx->config.arenas; id++)
        base_free(ucx->arenas[id]);
    if (ucx->doorbell >= 0)
        close(ucx->doorbell);
    base_free(ucx->arenas);
    base_free(ucx);
}

// UCX 1.13 ends the process where a connection is closed that is being made. So all of it stays.
static void ucx_abandon(struct coll_provided *provided)
{
    stop(ucx_of(provided));
}

/* ------------------------------------------------------------------ the beginning */

/** What UCX is to do otherwise than by itself: a user's own UCX_ variables count. It says nothing,
 * and looks for no GPU. */
static void configure(const struct ucx_library *ucp, ucp_config_t *config)
{
    if (!getenv("UCX_LOG_LEVEL"))
        ucp->config_modify(config, "LOG_LEVEL", "fatal");
    if (!getenv("UCX_TLS"))
        ucp->config_modify(config, "TLS", "^cuda,rocm");
}

/** UCX's TCP is slower than ours. So it is for hosts with a card that reads memory by itself, and
 * for users who have told UCX what to do. */
static const char *ucx_declines(void)
{
    if (getenv("UCX_TLS") || getenv("UCX_NET_DEVICES"))
        return NULL;
    DIR *devices = opendir("/sys/class/infiniband");
    bool found = false;
    for (const struct dirent *entry; devices && (entry = readdir(devices));)
        found |= entry->d_name[0] != '.';
    if (devices)
        closedir(devices);
    return found ? NULL : "no network but TCP is here for UCX (/sys/class/infiniband is empty)";
}

static zero_result open_context(struct ucx *ucx, struct base_error *error)
{
    const ucp_params_t params = {.field_mask =
                                     UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = (size_t)ucx->config.world};
    ucp_config_t *config;
    ucs_status_t status = ucx->ucp->config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return failed(ucx, status, "ucp_config_read", error);
    configure(ucx->ucp, config);
    status = ucx->ucp->init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    ucx->ucp->config_release(config);
    if (status != UCS_OK) {
        ucx->context = NULL;
        return failed(ucx, status, "ucp_init", error);
    }
    return ZERO_OK;
}

static zero_result open_worker(struct ucx *ucx, struct base_error *error)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucx->ucp->worker_create(ucx->context, &params, &ucx->worker);
    if (status != UCS_OK) {
        ucx->worker = NULL;
        return failed(ucx, status, "ucp_worker_create", error);
    }
    const ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                          UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                            .id = UCX_ASK,
                                            .cb = ucx_asked,
                                            .arg = ucx};
    status = ucx->ucp->set_handler(ucx->worker, &handler);
    if (status != UCS_OK)
        return failed(ucx, status, "ucp_worker_set_am_recv_handler", error);
    status = ucx->ucp->worker_fd(ucx->worker, &ucx->fd);
    if (status != UCS_OK)
        return failed(ucx, status, "ucp_worker_get_efd", error);
    status = ucx->ucp->worker_address(ucx->worker, &ucx->address, &ucx->address_bytes);
    if (status != UCS_OK) {
        ucx->address = NULL;
        return failed(ucx, status, "ucp_worker_get_address", error);
    }
    return ucx->address_bytes <= ADDRESS_BYTES
               ? ZERO_OK
               : zero_fail(error, ZERO_E_IO, "UCX: an address of %zu bytes", ucx->address_bytes);
}

static zero_result open_all(struct ucx *ucx, struct base_error *error)
{
    sigset_t before;
    ucx->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ucx->doorbell < 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno, "UCX: a descriptor");
    block_signals(&before);
    zero_result result = open_context(ucx, error);
    if (result == ZERO_OK)
        result = open_worker(ucx, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result != ZERO_OK)
        return result;
    const int errnum = ucx_start_thread(ucx);
    ucx->started = errnum == 0;
    return errnum == 0 ? ZERO_OK : zero_fail_errno(error, ZERO_E_NOMEM, errnum, "UCX: a thread");
}

static zero_result ucx_open(struct coll_provided **provided,
                            const struct coll_provider_config *config, struct base_error *error)
{
    const struct ucx_library *library;
    *provided = NULL;
    const int unwatched = base_forked_watch();
    if (unwatched)
        return zero_fail_errno(error, ZERO_E_NOMEM, unwatched, "UCX: pthread_atfork");
    const zero_result loaded = ucx_library(&library, error);
    if (loaded != ZERO_OK)
        return loaded;
    struct ucx *ucx = base_calloc(1, sizeof *ucx + (size_t)config->world * sizeof *ucx->peers);
    if (!ucx)
        return zero_fail(error, ZERO_E_NOMEM, "UCX: no memory for %d ranks", config->world);
    *ucx = (struct ucx){.provided.ops = &coll_provider_ucx,
                        .ucp = library,
                        .config = *config,
                        .generation = base_generation(),
                        .fd = -1,
                        .doorbell = -1,
                        .arenas = base_calloc(config->arenas, sizeof *ucx->arenas)};
    pthread_mutex_init(&ucx->lock, NULL);
    const zero_result result =
        ucx->arenas
            ? open_all(ucx, error)
            : zero_fail(error, ZERO_E_NOMEM, "UCX: no memory for %u arenas", config->arenas);
    if (result != ZERO_OK) {
        ucx_close(&ucx->provided);
        return result;
    }
    *provided = &ucx->provided;
    return ZERO_OK;
}

static size_t ucx_memory(int peers)
{
    return OWN_BYTES + (size_t)peers * PEER_BYTES;
}

const struct coll_provider coll_provider_ucx = {
    .size = sizeof(struct coll_provider),
    .name = "ucx",
    .memory = ucx_memory,
    .declines = ucx_declines,
    .open = ucx_open,
    .engine = ucx_engine,
    .address = ucx_address,
    .connect = ucx_connect,
    .publish = ucx_publish,
    .learn = ucx_learn,
    .withdraw = ucx_withdraw,
    .start = ucx_start,
    .progress = ucx_progress,
    .settle = ucx_settle,
    .abandon = ucx_abandon,
    .halt = ucx_halt,
    .why = ucx_why,
    .close = ucx_close,
};
