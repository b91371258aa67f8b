// Sends and receives: their arguments.

#include "collectives/comm/comm_internal.h"

#include <assert.h>

static zero_result start(struct coll_comm *comm, const struct coll_message *op,
                         struct coll_request *request, enum coll_kind kind)
{
    assert(kind == COLL_SEND || kind == COLL_RECEIVE);
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, kind, "the request is not drained");
    if (op->peer < 0 || op->peer >= comm->world)
        return coll_fail(comm, ZERO_E_INVALID, "rank %d: a message to or from rank %d of %d",
                         coll_root_rank(comm, comm->rank), op->peer, comm->world);
    request->op.message = *op;
    if (op->bytes > 0 && !op->data)
        return coll_refuse(comm, request, kind, "there is no memory");
    return coll_start(comm, request, kind);
}

zero_result coll_send_start(struct coll_comm *comm, const struct coll_message *op,
                            struct coll_request *request)
{
    return start(comm, op, request, COLL_SEND);
}

zero_result coll_receive_start(struct coll_comm *comm, const struct coll_message *op,
                               struct coll_request *request)
{
    return start(comm, op, request, COLL_RECEIVE);
}
