// The bulk operations that move bytes: their arguments.

#include "collectives/comm/comm_internal.h"

#include <assert.h>

bool coll_spans_fit(const struct coll_comm *comm, const struct coll_span *spans, size_t size)
{
    assert(size > 0);
    const size_t most = SIZE_MAX / size;
    for (int rank = 0; rank < comm->world; rank++)
        if (spans[rank].count > most || spans[rank].offset > most - spans[rank].count)
            return false;
    return true;
}

/** Whether recv has all blocks, and lies in a shared arena. */
static bool is_of_host(const struct coll_comm *comm, const struct coll_all_gather *op)
{
    size_t end = 0, offset;
    for (int rank = 0; rank < comm->world; rank++)
        if (op->spans[rank].offset + op->spans[rank].count > end)
            end = op->spans[rank].offset + op->spans[rank].count;
    const struct coll_arena *arena = coll_arena_of(comm, op->recv, end, &offset);
    return end == 0 || (arena && arena->shared);
}

zero_result coll_all_gather_start(struct coll_comm *comm, const struct coll_all_gather *op,
                                  struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_ALL_GATHER, "the request is not drained");
    request->op.all_gather = *op;
    if (op->recv && !op->source && op->spans[comm->rank].count > 0)
        return coll_refuse(comm, request, COLL_ALL_GATHER, "there is no source");
    if (!coll_spans_fit(comm, op->spans, 1))
        return coll_refuse(comm, request, COLL_ALL_GATHER, COLL_SPANS_TOO_LONG);
    if (op->together && !is_of_host(comm, op))
        return coll_refuse(comm, request, COLL_ALL_GATHER,
                           "the ranks of a host together, but not into a shared arena");
    return coll_start(comm, request, COLL_ALL_GATHER);
}

zero_result coll_broadcast_start(struct coll_comm *comm, const struct coll_bulk_broadcast *op,
                                 struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_BROADCAST_BULK, "the request is not drained");
    request->op.broadcast = *op;
    if (op->root < 0 || op->root >= comm->world)
        return coll_refuse(comm, request, COLL_BROADCAST_BULK, "the root is not in 0 .. world-1");
    if (!op->data && op->bytes > 0)
        return coll_refuse(comm, request, COLL_BROADCAST_BULK, "there is no data");
    return coll_start(comm, request, COLL_BROADCAST_BULK);
}

static const char *check_all_to_all(const struct coll_comm *comm, const struct coll_all_to_all *op)
{
    if (!coll_spans_fit(comm, op->send, 1) || !coll_spans_fit(comm, op->recv_spans, 1))
        return COLL_SPANS_TOO_LONG;
    for (int rank = 0; rank < comm->world; rank++) {
        if (op->send[rank].count > 0 && !op->source)
            return "there is no source";
        if (op->recv_spans[rank].count > 0 && !op->recv)
            return "there is nowhere to receive";
    }
    return NULL;
}

zero_result coll_all_to_all_start(struct coll_comm *comm, const struct coll_all_to_all *op,
                                  struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_ALL_TO_ALL, "the request is not drained");
    request->op.all_to_all = *op;
    const char *why = check_all_to_all(comm, op);
    if (why)
        return coll_refuse(comm, request, COLL_ALL_TO_ALL, why);
    return coll_start(comm, request, COLL_ALL_TO_ALL);
}
