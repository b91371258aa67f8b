#include "collectives/comm.h"

#include "base/arena.h"
#include "collectives/internal.h"
#include "collectives/signature.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ life */

static zero_result check_config(const struct coll_config *config, struct base_error *error)
{
    if (!config->transport || !config->name || config->world < 1 || config->rank < 0 ||
        config->rank >= config->world || config->timeout_ns == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "communicator: transport %s, name %s, rank %d, world %d, time-out %.3f s",
                         config->transport ? config->transport : "missing",
                         config->name ? config->name : "missing", config->rank, config->world,
                         (double)config->timeout_ns * 1e-9);
    if (strlen(config->name) >= COLL_NAME_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "communicator: a name of %zu bytes, at most %d fit",
                         strlen(config->name), COLL_NAME_BYTES - 1);
    return ZERO_OK;
}

zero_result coll_open(struct coll_comm **comm, const struct coll_config *config,
                      struct base_error *error)
{
    *comm = NULL;
    zero_result result = check_config(config, error);
    if (result != ZERO_OK)
        return result;
    const struct coll_transport *transport = coll_transport_find(config->transport);
    if (!transport)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "communicator: this build has no transport %s",
                         config->transport);
    struct coll_comm *opened = base_calloc(1, sizeof *opened);
    if (!opened)
        return zero_fail(error, ZERO_E_NOMEM, "communicator: no memory for %zu bytes",
                         sizeof *opened);
    opened->transport = transport;
    opened->rank = config->rank;
    opened->world = config->world;
    opened->timeout_ns = config->timeout_ns;
    opened->log = config->log;
    snprintf(opened->name, sizeof opened->name, "%s", config->name);
    opened->counters.memory_bytes = sizeof *opened;
    for (int slot = 0; slot < COLL_SMALL_SLOTS; slot++)
        opened->small[slot].slot = slot;

    result = transport->open(opened, config, error);
    if (result != ZERO_OK) {
        coll_close(opened);
        return result;
    }
    base_logf(opened->log, ZERO_LOG_DEBUG, "coll", "%s: rank %d of %d by %s", opened->name,
              opened->rank, opened->world, transport->name);
    *comm = opened;
    return ZERO_OK;
}

static void free_arena(struct coll_arena *arena)
{
    arena->comm->transport->arena_free(arena->comm, arena);
    base_free(arena->peers);
    base_free(arena->peer_bytes);
    base_free(arena);
}

void coll_close(struct coll_comm *comm)
{
    if (!comm)
        return;
    for (uint32_t id = 0; id < comm->arena_count; id++)
        free_arena(comm->arenas[id]);
    comm->transport->close(comm);
    base_free(comm);
}

int coll_rank(const struct coll_comm *comm)
{
    return comm->rank;
}

int coll_world(const struct coll_comm *comm)
{
    return comm->world;
}

const char *coll_transport_name(const struct coll_comm *comm)
{
    return comm->transport->name;
}

void coll_counters(const struct coll_comm *comm, struct coll_counters *counters)
{
    *counters = comm->counters;
}

/* ------------------------------------------------------------------ memory */

struct verdict {
    size_t bytes;
    int32_t result;
    char message[COLL_MESSAGE_BYTES];
};

/**
 * Tells the others how this rank's part went and fills in arena->peer_bytes. All ranks return the
 * failure of the lowest rank that has one, or the communicator's.
 */
static zero_result agree(struct coll_comm *comm, struct coll_arena *arena, zero_result result,
                         const struct base_error *mine, struct base_error *error)
{
    struct verdict verdict = {.bytes = arena->bytes, .result = result};
    if (result != ZERO_OK)
        snprintf(verdict.message, sizeof verdict.message, "rank %d: %.*s", comm->rank,
                 COLL_MESSAGE_BYTES - 32, mine->message);
    struct verdict *all = base_calloc((size_t)comm->world, sizeof *all);
    if (!all) {
        coll_fail(comm, ZERO_E_NOMEM, "rank %d: no memory for %zu bytes", comm->rank,
                  (size_t)comm->world * sizeof *all);
        return coll_state(comm, error);
    }
    result = coll_exchange(comm, &verdict, sizeof verdict, all);
    if (result != ZERO_OK)
        coll_state(comm, error);
    for (int rank = 0; rank < comm->world && result == ZERO_OK; rank++) {
        arena->peer_bytes[rank] = all[rank].bytes;
        if (all[rank].result != ZERO_OK)
            result = zero_fail(error, (zero_result)all[rank].result, "%s", all[rank].message);
    }
    base_free(all);
    return result;
}

static zero_result arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error)
{
    if (comm->arena_count == COLL_ARENAS_MAX)
        return zero_fail(error, ZERO_E_LIMIT, "arena: %d is the most a communicator can have",
                         COLL_ARENAS_MAX);
    return comm->transport->arena_alloc(comm, arena, error);
}

zero_result coll_arena_create(struct coll_comm *comm, size_t bytes, struct coll_arena **arena,
                              struct base_error *error)
{
    *arena = NULL;
    if (coll_stop(comm) != ZERO_OK)
        return coll_state(comm, error);
    struct coll_arena *created = base_calloc(1, sizeof *created);
    const unsigned char **peers = base_calloc((size_t)comm->world, sizeof *peers);
    size_t *peer_bytes = base_calloc((size_t)comm->world, sizeof *peer_bytes);
    if (!created || !peers || !peer_bytes) {
        base_free(created);
        base_free(peers);
        base_free(peer_bytes);
        coll_fail(comm, ZERO_E_NOMEM, "rank %d: no memory for an arena's tables", comm->rank);
        return coll_state(comm, error);
    }
    *created = (struct coll_arena){.comm = comm,
                                   .id = comm->arena_count,
                                   .bytes = bytes,
                                   .peers = peers,
                                   .peer_bytes = peer_bytes};
    struct base_error mine = {0};
    zero_result result = arena_alloc(comm, created, &mine);
    result = agree(comm, created, result, &mine, error);
    if (result == ZERO_OK) {
        result = comm->transport->arena_share(comm, created, &mine);
        result = agree(comm, created, result, &mine, error);
    }
    if (result != ZERO_OK) {
        free_arena(created);
        return result;
    }
    comm->arenas[comm->arena_count++] = created;
    *arena = created;
    return ZERO_OK;
}

void *coll_arena_base(const struct coll_arena *arena)
{
    return arena->bytes > 0 ? arena->base : NULL;
}

size_t coll_arena_size(const struct coll_arena *arena)
{
    return arena->bytes;
}

/* ------------------------------------------------------------------ requests */

/** Refuses a call: fatal, because this rank will be missed. */
static zero_result refuse(struct coll_comm *comm, const struct coll_request *request,
                          enum coll_kind kind, const char *why)
{
    struct coll_request shown = *request;
    struct coll_signature signature;
    char text[COLL_TEXT_BYTES];
    shown.kind = kind;
    coll_signature_make(&signature, comm, &shown);
    coll_signature_text(&signature, comm->sequence, text);
    return coll_fail(comm, ZERO_E_INVALID, "rank %d, %s: %s", comm->rank, text, why);
}

zero_result coll_start(struct coll_comm *comm, struct coll_request *request, enum coll_kind kind)
{
    zero_result result = coll_stop(comm);
    if (result != ZERO_OK)
        return result;
    request->kind = kind;
    request->sequence = comm->sequence;
    request->next = NULL;
    result = comm->transport->start(comm, request);
    if (result == ZERO_AGAIN) {
        result = coll_wait_for(comm, request, COLL_GOAL_ROOM);
        if (result == ZERO_OK)
            result = comm->transport->start(comm, request);
    }
    if (result != ZERO_OK)
        return result;
    comm->sequence++;
    request->state = COLL_STARTED;
    if (comm->last)
        comm->last->next = request;
    else
        comm->first = request;
    comm->last = request;
    return ZERO_OK;
}

void coll_retire(struct coll_comm *comm)
{
    struct coll_request *request = comm->first;
    comm->first = request->next;
    if (!comm->first)
        comm->last = NULL;
    request->next = NULL;
    request->state = COLL_COMPLETE;
}

zero_result coll_progress(struct coll_comm *comm)
{
    if (!comm->stopped)
        comm->transport->progress(comm);
    return coll_stop(comm);
}

zero_result coll_wait(struct coll_comm *comm, struct coll_request *request)
{
    return coll_wait_for(comm, request, COLL_GOAL_COMPLETE);
}

zero_result coll_drain(struct coll_comm *comm, struct coll_request *request)
{
    zero_result result = coll_wait_for(comm, request, COLL_GOAL_COMPLETE);
    if (result == ZERO_OK && request->state == COLL_COMPLETE)
        result = coll_wait_for(comm, request, COLL_GOAL_DRAINED);
    if (result == ZERO_OK)
        request->state = COLL_IDLE;
    return result;
}

bool coll_drained(const struct coll_comm *comm, const struct coll_request *request)
{
    return request->state == COLL_IDLE || coll_failed(comm) != ZERO_OK ||
           (request->state == COLL_COMPLETE && comm->transport->drained(comm, request));
}

/* ------------------------------------------------------------------ bulk operations */

/** Whether `bytes` bytes from `offset` on lie in this rank's part of the arena. */
static bool within(const struct coll_comm *comm, const struct coll_arena *arena, size_t offset,
                   size_t bytes)
{
    return arena && arena->comm == comm && offset <= arena->bytes && bytes <= arena->bytes - offset;
}

zero_result coll_all_gather_start(struct coll_comm *comm, const struct coll_all_gather *op,
                                  struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return refuse(comm, request, COLL_ALL_GATHER, "the request is not drained");
    request->op.all_gather = *op;
    const size_t mine = op->spans[comm->rank].count;
    if (mine > 0 && !within(comm, op->arena, op->offset, mine))
        return refuse(comm, request, COLL_ALL_GATHER, "the block is not inside an arena");
    return coll_start(comm, request, COLL_ALL_GATHER);
}

static const char *check_reduce_scatter(const struct coll_comm *comm,
                                        const struct coll_reduce_scatter *op)
{
    if (op->dtype != ZERO_F32 && op->dtype != ZERO_BF16)
        return "the dtype is neither f32 nor bf16";
    if (op->contributors < 1 || op->contributors > comm->world)
        return "contributors is not in 1 .. world";
    if (op->offset % sizeof(float) != 0)
        return "the offset is not a multiple of 4";
    if (op->spans[comm->rank].count > 0 && !op->accumulator)
        return "there is no accumulator";
    if (comm->rank >= op->contributors)
        return NULL;
    const size_t size = op->dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
    const size_t most = SIZE_MAX / size;
    for (int rank = 0; rank < comm->world; rank++) {
        const struct coll_span *span = &op->spans[rank];
        if (span->count > 0 &&
            (span->count > most || span->offset > most - span->count ||
             !within(comm, op->arena, op->offset, (span->offset + span->count) * size)))
            return "the contribution is not inside an arena";
    }
    return NULL;
}

zero_result coll_reduce_scatter_start(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                                      struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return refuse(comm, request, COLL_REDUCE_SCATTER, "the request is not drained");
    request->op.reduce_scatter = *op;
    const char *why = check_reduce_scatter(comm, op);
    if (why)
        return refuse(comm, request, COLL_REDUCE_SCATTER, why);
    return coll_start(comm, request, COLL_REDUCE_SCATTER);
}
