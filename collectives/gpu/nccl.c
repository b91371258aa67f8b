#include "base/arena.h"
#include "collectives/gpu/gcomm_internal.h"
#include "collectives/gpu/nccl_library.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// How long a call may go on that was begun while its communicator was told that it is over.
enum { SETTLING_MS = 1000 };

_Static_assert(sizeof(ncclUniqueId) == GCOMM_ID_BYTES, "what is broadcast is the whole of it");

struct link {
    ncclComm_t comm;
    void *enrolled; // what ncclCommRegister() gave; NULL: nothing is
};

/* ------------------------------------------------------------------ errors */

/** A call's status as a result; in progress is not yet wrong. */
static zero_result done(ncclResult_t status, const char *call, ncclComm_t comm,
                        struct base_error *error)
{
    if (status == ncclSuccess || status == ncclInProgress)
        return ZERO_OK;
    const struct nccl_library *library = nccl_loaded();
    const char *last = library->last_error(comm);
    return zero_fail(error, status == ncclRemoteError ? ZERO_E_PEER : ZERO_E_DEVICE,
                     "%s: %s (%d)%s%s", call, library->error_text(status), (int)status,
                     last && *last ? ": " : "", last ? last : "");
}

/* ------------------------------------------------------------------ beginning and end */

static zero_result state_of(ncclComm_t comm, struct base_error *error);

/** Ours is not a part of it: sharing resources, which its owner may have chosen, would have the end
 * of ours end it, too; and where calls of its block, so would the split, for ever if a rank has
 * died. */
static zero_result check_given(const struct nccl_library *library,
                               const struct gcomm_config *config, struct base_error *error)
{
    ncclComm_t given = config->nccl_comm;
    int count = -1, rank = -1, number = -1;
    zero_result result = state_of(given, error);
    if (result == ZERO_AGAIN)
        return zero_fail(error, ZERO_E_INVALID,
                         "the ncclComm_t that was given is not ready: ncclCommGetAsyncError() says "
                         "ncclInProgress");
    if (!result)
        result = done(library->count(given, &count), "ncclCommCount", NULL, error);
    if (!result)
        result = done(library->rank(given, &rank), "ncclCommUserRank", NULL, error);
    if (!result)
        result = done(library->device(given, &number), "ncclCommCuDevice", NULL, error);
    if (result)
        return result;
    if (count != config->host->world || rank != config->host->rank || number != config->number)
        return zero_fail(error, ZERO_E_INVALID,
                         "the ncclComm_t that was given is rank %d of %d on GPU %d, and this is "
                         "rank %d of %d on GPU %d",
                         rank, count, number, config->host->rank, config->host->world,
                         config->number);
    return ZERO_OK;
}

/** Kernels of two communicators of a GPU may each wait for room that the other's has, on another
 * GPU, unless they are launched in one order. Whether theirs is used at all is not known. */
static void check_order(const struct gcomm_config *config)
{
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (!order || strcmp(order, "1") != 0)
        base_logf(config->log, ZERO_LOG_WARN, "coll",
                  "rank %d: an ncclComm_t was given, and NCCL_LAUNCH_ORDER_IMPLICIT is %s, not 1: "
                  "GPUs may wait for each other for ever if the program uses it while zero works; "
                  "set it before the first communicator is made",
                  config->host->rank, order ? order : "not set");
}

static zero_result nccl_prepare(const struct gcomm_config *config, struct base_error *error)
{
    const struct nccl_library *library;
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    if (blocking && strcmp(blocking, "1") == 0)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "NCCL_COMM_BLOCKING=1: a call that waits for a dead rank has no end");
    zero_result result = nccl_library(&library, error);
    if (!result && config->nccl_comm)
        result = check_given(library, config, error);
    if (!result && config->nccl_comm)
        check_order(config);
    return result;
}

static zero_result nccl_identify(unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    ncclUniqueId unique;
    const zero_result result =
        done(nccl_loaded()->unique_id(&unique), "ncclGetUniqueId", NULL, error);
    if (!result)
        memcpy(id, &unique, sizeof unique);
    return result;
}

static zero_result nccl_join(void **to, const struct gcomm_config *config,
                             const unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    assert(config->host->rank >= 0 && config->host->rank < config->host->world);
    const int rank = config->host->rank;
    ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    struct link *link = base_calloc(1, sizeof *link);
    *to = link;
    if (!link)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes", sizeof *link);
    settings.blocking = 0;
    memcpy(&unique, id, sizeof unique);
    return done(nccl_loaded()->init(&link->comm, config->host->world, unique, rank, &settings),
                "ncclCommInitRankConfig", NULL, error);
}

/** What the communicator says of itself. ZERO_AGAIN: it is in progress. */
static zero_result state_of(ncclComm_t comm, struct base_error *error)
{
    ncclResult_t status = ncclSuccess;
    const zero_result result =
        done(nccl_loaded()->async_error(comm, &status), "ncclCommGetAsyncError", comm, error);
    if (result)
        return result;
    return status == ncclInProgress ? ZERO_AGAIN : done(status, "NCCL", comm, error);
}

static zero_result nccl_ready(void *of, struct base_error *error)
{
    const struct link *link = of;
    return state_of(link->comm, error);
}

/** In a group, which nccl_abort() ends: what is aborted there is told at once, by memory that its
 * kernels read, and freed at the group's end, for which its GPU has to be at rest. But each abort
 * waits for what its own communicator still does on the host, such as connecting ranks: that gives
 * up when it is told, unless it is in a call of the driver that waits for kernels of one whose turn
 * comes later. The thread that closes has a limit for that. */
static zero_result nccl_halt(void *of, struct base_error *error)
{
    const struct link *link = of;
    const zero_result result = done(nccl_loaded()->group_start(), "ncclGroupStart", NULL, error);
    if (result || !link->comm)
        return result;
    return done(nccl_loaded()->abort(link->comm), "ncclCommAbort", NULL, error);
}

/** Until NCCL's own thread has done what it was given by a thread that did not know yet. */
static void let_settle(const struct link *link)
{
    for (int i = 0; i < SETTLING_MS && state_of(link->comm, NULL) == ZERO_AGAIN; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static zero_result nccl_abort(const struct gcomm_abort *first, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (const struct gcomm_abort *one = first; one; one = one->next) {
        const struct link *link = one->link;
        if (one->was_in_use && link && link->comm)
            let_settle(link);
    }
    for (const struct gcomm_abort *one = first; one; one = one->next)
        if (one->link) {
            const zero_result ended = done(nccl_loaded()->group_end(), "ncclGroupEnd of aborts",
                                           NULL, result ? NULL : error);
            result = result ? result : ended;
        }
    for (const struct gcomm_abort *one = first; one; one = one->next)
        base_free(one->link);
    return result;
}

/* ------------------------------------------------------------------ memory */

static zero_result nccl_alloc(void **memory, size_t bytes, struct base_error *error)
{
    const struct nccl_library *library;
    const zero_result result = nccl_library(&library, error);
    char call[48];
    *memory = NULL;
    if (result)
        return result;
    const ncclResult_t status = library->mem_alloc(memory, bytes ? bytes : 1);
    if (status == ncclSuccess)
        return ZERO_OK;
    *memory = NULL; // an address may have been reserved
    const char *last = library->last_error(NULL);
    if (last && strstr(last, "out of memory")) // which no status of NCCL's says
        return zero_fail(error, ZERO_E_NOMEM, "ncclMemAlloc, %zu bytes: %s", bytes, last);
    snprintf(call, sizeof call, "ncclMemAlloc, %zu bytes", bytes);
    return done(status, call, NULL, error);
}

static zero_result nccl_free(void *memory, struct base_error *error)
{
    return done(nccl_loaded()->mem_free(memory), "ncclMemFree", NULL, error);
}

static zero_result nccl_enroll(void *of, void *memory, size_t bytes, struct base_error *error)
{
    struct link *link = of;
    assert(!link->enrolled);
    const zero_result result =
        done(nccl_loaded()->enroll(link->comm, memory, bytes, &link->enrolled), "ncclCommRegister",
             link->comm, error);
    if (result || link->enrolled)
        return result;
    return zero_fail(error, ZERO_E_UNSUPPORTED,
                     "ncclCommRegister registers nothing: NCCL_LOCAL_REGISTER or "
                     "NCCL_P2P_USE_CUDA_MEMCPY forbids it");
}

static zero_result nccl_dismiss(void *of, struct base_error *error)
{
    struct link *link = of;
    void *const enrolled = link->enrolled;
    link->enrolled = NULL;
    return enrolled ? done(nccl_loaded()->dismiss(link->comm, enrolled), "ncclCommDeregister",
                           link->comm, error)
                    : ZERO_OK;
}

/* ------------------------------------------------------------------ operations */

static zero_result nccl_begin(void *of, struct base_error *error)
{
    const struct link *link = of;
    assert(link && link->comm);
    return done(nccl_loaded()->group_start(), "ncclGroupStart", link->comm, error);
}

static zero_result nccl_end(void *of, struct base_error *error)
{
    const struct link *link = of;
    return done(nccl_loaded()->group_end(), "ncclGroupEnd", link->comm, error);
}

static zero_result nccl_all_gather(void *of, const void *from, void *to, size_t bytes, void *stream,
                                   struct base_error *error)
{
    const struct link *link = of;
    return done(nccl_loaded()->all_gather(from, to, bytes, ncclUint8, link->comm, stream),
                "ncclAllGather", link->comm, error);
}

static zero_result nccl_send(void *of, const void *from, size_t bytes, int peer, void *stream,
                             struct base_error *error)
{
    const struct link *link = of;
    return done(nccl_loaded()->send(from, bytes, ncclUint8, peer, link->comm, stream), "ncclSend",
                link->comm, error);
}

static zero_result nccl_receive(void *of, void *to, size_t bytes, int peer, void *stream,
                                struct base_error *error)
{
    const struct link *link = of;
    return done(nccl_loaded()->receive(to, bytes, ncclUint8, peer, link->comm, stream), "ncclRecv",
                link->comm, error);
}

static ncclDataType_t type_of(zero_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16,
        [ZERO_F64] = ncclFloat64, [ZERO_I32] = ncclInt32,     [ZERO_I64] = ncclInt64,
    };
    assert((size_t)dtype < sizeof types / sizeof *types);
    return types[dtype];
}

static zero_result nccl_reduce_scatter(void *of, const void *from, void *to, size_t count,
                                       zero_dtype dtype, void *stream, struct base_error *error)
{
    const struct link *link = of;
    return done(
        nccl_loaded()->reduce_scatter(from, to, count, type_of(dtype), ncclSum, link->comm, stream),
        "ncclReduceScatter", link->comm, error);
}

static zero_result nccl_reduce(void *of, const void *from, void *to, size_t count, zero_dtype dtype,
                               int root, void *stream, struct base_error *error)
{
    const struct link *link = of;
    return done(
        nccl_loaded()->reduce(from, to, count, type_of(dtype), ncclSum, root, link->comm, stream),
        "ncclReduce", link->comm, error);
}

const struct gcomm_transport gcomm_transport_nccl = {
    .size = sizeof(struct gcomm_transport),
    .name = "nccl",
    .device = "cuda",
    .entangled = true,
    .alloc = nccl_alloc,
    .free = nccl_free,
    .prepare = nccl_prepare,
    .identify = nccl_identify,
    .join = nccl_join,
    .ready = nccl_ready,
    .halt = nccl_halt,
    .abort = nccl_abort,
    .enroll = nccl_enroll,
    .dismiss = nccl_dismiss,
    .begin = nccl_begin,
    .end = nccl_end,
    .all_gather = nccl_all_gather,
    .send = nccl_send,
    .receive = nccl_receive,
    .reduce_scatter = nccl_reduce_scatter,
    .reduce = nccl_reduce,
};
