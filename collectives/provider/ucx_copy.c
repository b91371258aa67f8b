// How UCX copies. The reader posts where a message of a tag that is its own belongs, and asks the
// owner, whose worker sends it from where it lies: over networks that read memory by themselves UCX
// has the reader's card fetch it. UCX's own gets would do the same, but for networks that don't,
// such as TCP, for which it ends the owner's process where a reader has died before it is answered.
//
// Each rank has one worker, which its own thread and the thread of this file work on in turns, by a
// lock. So peers are answered while the rank computes.
//
// Points of base/fault.h: ucx.thread (its creation), ucx.get (each copy).

#include "collectives/provider/ucx_internal.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/thread.h"

#include <assert.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    TURNS = 64,    /**< of progress while the lock is held */
    LOOK_MS = 100, /**< the thread looks at UCX at least so often, as its timers want it */
    STACK_BYTES = 1024 * 1024,
};

void ucx_lock(struct ucx *ucx)
{
    atomic_fetch_add(&ucx->wanted, 1);
    pthread_mutex_lock(&ucx->lock);
    atomic_fetch_sub(&ucx->wanted, 1);
}

void ucx_unlock(struct ucx *ucx)
{
    const bool ended = ucx->ended;
    ucx->ended = false;
    pthread_mutex_unlock(&ucx->lock);
    if (ended)
        ucx->config.ended(ucx->config.user);
}

/* ------------------------------------------------------------------ copies */

static void add_copy(struct ucx *ucx, struct coll_copy *copy)
{
    copy->next = ucx->copies;
    copy->link = &ucx->copies;
    if (copy->next)
        copy->next->link = &copy->next;
    ucx->copies = copy;
}

void ucx_end_copy(struct ucx *ucx, struct coll_copy *copy, bool here)
{
    assert(copy->link && *copy->link == copy);
    *copy->link = copy->next;
    if (copy->next)
        copy->next->link = copy->link;
    copy->link = NULL;
    ucx->ended = true;
    atomic_store_explicit(&copy->state, here ? COLL_COPY_HERE : COLL_COPY_BROKEN,
                          memory_order_release);
}

/** A part of a copy has ended, and with the last one the copy; `to` is written by one of them. */
static void end_part(struct ucx *ucx, struct coll_copy *copy)
{
    assert(copy->parts > 0);
    if (--copy->parts == 0)
        ucx_end_copy(ucx, copy, copy->own[0] == 0);
}

/** Takes back what a copy has posted, if that is still to come. */
static void cancel(struct ucx *ucx, struct coll_copy *copy)
{
    void *request = copy->request;
    copy->request = NULL;
    if (request)
        ucx->ucp->cancel(ucx->worker, request);
}

static void note_failure(struct ucx *ucx, int rank, ucs_status_t status)
{
    if (ucx->peers[rank].failed == UCS_OK)
        ucx->peers[rank].failed = status;
}

static void ask_ended(void *request, ucs_status_t status, void *user)
{
    struct coll_copy *copy = user;
    struct ucx *ucx = ucx_of(copy->provided);
    ucx->ucp->request_free(request);
    if (status != UCS_OK) {
        note_failure(ucx, copy->rank, status);
        cancel(ucx, copy);
    }
    end_part(ucx, copy);
}

static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *user)
{
    struct coll_copy *copy = user;
    struct ucx *ucx = ucx_of(copy->provided);
    struct ucx_ask ask;
    memcpy(&ask, copy->own, sizeof ask);
    ucx->ucp->request_free(request);
    copy->request = NULL;
    if (status == UCS_OK && info->length == ask.bytes)
        copy->own[0] = 0; // a tag is never 0
    else
        note_failure(ucx, copy->rank, status == UCS_OK ? UCS_ERR_MESSAGE_TRUNCATED : status);
    end_part(ucx, copy);
}

void ucx_endpoint_failed(void *user, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    struct ucx_peer *peer = user;
    struct ucx *ucx = peer->ucx;
    const int rank = (int)(peer - ucx->peers);
    note_failure(ucx, rank, status);
    for (struct coll_copy *copy = ucx->copies; copy;) {
        const bool lost = copy->rank == rank && copy->request;
        if (lost)
            cancel(ucx, copy);
        copy = lost ? ucx->copies : copy->next; // the list has changed
    }
}

/** This rank's registered memory that bytes lie in; NULL: none. */
static ucp_mem_h registered(const struct ucx *ucx, const unsigned char *at, size_t bytes)
{
    for (uint32_t id = 0; id < ucx->arenas_end; id++) {
        const struct ucx_arena *arena = ucx->arenas[id];
        if (arena && arena->memory && at >= arena->begin && bytes <= arena->bytes &&
            (size_t)(at - arena->begin) <= arena->bytes - bytes)
            return arena->memory;
    }
    return NULL;
}

/** How bytes of this rank's are sent or received. */
static ucp_request_param_t param_of(const struct ucx *ucx, const void *at, size_t bytes, void *user)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .user_data = user,
                                 .memory_type = UCS_MEMORY_TYPE_HOST,
                                 .memh = registered(ucx, at, bytes)};
    if (param.memh)
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    return param;
}

/** Asks for what was posted. */
static void send_ask(struct ucx *ucx, struct coll_copy *copy)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_AM_SEND_FLAG_EAGER,
                                       .cb.send = ask_ended,
                                       .user_data = copy};
    copy->parts++;
    void *request = ucx->ucp->ask(ucx->peers[copy->rank].endpoint, UCX_ASK, copy->own,
                                  sizeof(struct ucx_ask), NULL, 0, &param);
    if (UCS_PTR_IS_PTR(request))
        return;
    if (UCS_PTR_IS_ERR(request)) {
        note_failure(ucx, copy->rank, UCS_PTR_STATUS(request));
        cancel(ucx, copy);
    }
    end_part(ucx, copy);
}

/** Whether a copy is begun; false: it can't be. */
static bool begin_copy(struct ucx *ucx, const struct coll_remote *from, void *to,
                       struct coll_copy *copy)
{
    const struct ucx_peer *peer = &ucx->peers[from->rank];
    const struct ucx_arena *arena = ucx->worker ? ucx->arenas[from->arena] : NULL;
    if (!arena || from->bytes > arena->parts[from->rank] || !peer->endpoint ||
        peer->failed != UCS_OK || base_fault("ucx.get"))
        return false;
    const struct ucx_ask ask = {++ucx->tags, from->at, from->bytes, from->arena, ucx->config.rank};
    ucp_request_param_t param = param_of(ucx, to, from->bytes, copy);
    param.cb.recv = received;
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    void *request = ucx->ucp->receive(ucx->worker, to, from->bytes, ask.tag, UINT64_MAX, &param);
    if (UCS_PTR_IS_ERR(request)) {
        note_failure(ucx, from->rank, UCS_PTR_STATUS(request));
        return false;
    }
    assert(request && sizeof ask == sizeof copy->own);
    memcpy(copy->own, &ask, sizeof ask);
    copy->request = request;
    copy->parts = 1;
    send_ask(ucx, copy);
    return true;
}

void ucx_start(struct coll_provided *provided, const struct coll_remote *from, void *to,
               struct coll_copy *copy)
{
    struct ucx *ucx = ucx_of(provided);
    assert(from->rank >= 0 && from->rank < ucx->config.world && from->arena < ucx->config.arenas);
    assert(atomic_load(&copy->state) != COLL_COPY_UNDER_WAY);
    copy->provided = provided;
    copy->rank = from->rank;
    copy->request = NULL;
    ucx_lock(ucx);
    atomic_store_explicit(&copy->state, COLL_COPY_UNDER_WAY, memory_order_relaxed);
    add_copy(ucx, copy);
    if (!begin_copy(ucx, from, to, copy))
        ucx_end_copy(ucx, copy, false);
    ucx_unlock(ucx);
}

/* ------------------------------------------------------------------ answers */

static void answered(void *request, ucs_status_t status, void *user)
{
    (void)status; // the reader has died, perhaps: TCP tells
    const struct ucx *ucx = user;
    ucx->ucp->request_free(request);
}

ucs_status_t ucx_asked(void *user, const void *header, size_t header_bytes, void *data,
                       size_t bytes, const ucp_am_recv_param_t *recv_param)
{
    (void)data;
    (void)bytes;
    (void)recv_param;
    struct ucx *ucx = user;
    struct ucx_ask ask;
    if (header_bytes != sizeof ask)
        return UCS_OK;
    memcpy(&ask, header, sizeof ask);
    const struct ucx_arena *arena = ask.arena < ucx->config.arenas ? ucx->arenas[ask.arena] : NULL;
    if (ask.rank < 0 || ask.rank >= ucx->config.world || !arena || ask.at > arena->bytes ||
        ask.bytes > arena->bytes - ask.at)
        return UCS_OK; // nonsense, of no rank of this job
    const struct ucx_peer *peer = &ucx->peers[ask.rank];
    if (!peer->endpoint || peer->failed != UCS_OK)
        return UCS_OK;
    ucp_request_param_t param = param_of(ucx, arena->begin + ask.at, ask.bytes, ucx);
    param.cb.send = answered;
    const ucs_status_ptr_t request =
        ucx->ucp->send(peer->endpoint, arena->begin + ask.at, ask.bytes, ask.tag, &param);
    if (UCS_PTR_IS_ERR(request))
        note_failure(ucx, ask.rank, UCS_PTR_STATUS(request));
    return UCS_OK;
}

static bool is_under_way(const struct coll_copy *copy)
{
    return atomic_load_explicit(&copy->state, memory_order_acquire) == COLL_COPY_UNDER_WAY;
}

/* ------------------------------------------------------------------ progress */

/** Returns whether there may be more to do. With the lock. */
static bool advance_worker(struct ucx *ucx)
{
    for (int turn = 0; turn < TURNS; turn++)
        if (ucx->ucp->progress(ucx->worker) == 0)
            return false;
    return true;
}

void ucx_progress(struct coll_provided *provided)
{
    struct ucx *ucx = ucx_of(provided);
    if (pthread_mutex_trylock(&ucx->lock) != 0)
        return; // another thread is at it
    if (ucx->worker && !ucx->paused)
        advance_worker(ucx);
    ucx_unlock(ucx);
}

static void *run_worker(void *argument)
{
    struct ucx *ucx = argument;
    struct pollfd events[] = {{.fd = ucx->fd, .events = POLLIN},
                              {.fd = ucx->doorbell, .events = POLLIN}};
    prctl(PR_SET_NAME, "zero-ucx");
    while (!atomic_load(&ucx->leaving)) {
        pthread_mutex_lock(&ucx->lock);
        const bool busy = advance_worker(ucx);
        const ucs_status_t armed = busy ? UCS_ERR_BUSY : ucx->ucp->arm(ucx->worker);
        ucx_unlock(ucx);
        if (armed == UCS_OK)
            poll(events, 2, LOOK_MS);
        else if (armed != UCS_ERR_BUSY)
            poll(events + 1, 1, 1); // it has no event to wait for
        else if (atomic_load(&ucx->wanted) > 0)
            sched_yield();
    }
    return NULL;
}

void ucx_settle(struct coll_provided *provided, struct coll_copy *copy)
{
    const uint64_t began = base_clock_ns();
    while (is_under_way(copy) && base_clock_ns() - began < ucx_patience_ns) {
        ucx_progress(provided);
        sched_yield();
    }
    if (is_under_way(copy))
        ucx_halt(provided);
    assert(!is_under_way(copy));
}

int ucx_start_thread(struct ucx *ucx)
{
    return base_thread_start(&ucx->thread, "ucx.thread", STACK_BYTES, run_worker, ucx);
}
