// The bulk operations: their arguments.

#include "collectives/internal.h"

zero_result coll_all_gather_start(struct coll_comm *comm, const struct coll_all_gather *op,
                                  struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_ALL_GATHER, "the request is not drained");
    request->op.all_gather = *op;
    if (op->recv && !op->source && op->spans[comm->rank].count > 0)
        return coll_refuse(comm, request, COLL_ALL_GATHER, "there is no source");
    return coll_start(comm, request, COLL_ALL_GATHER);
}

static const char *check_reduce_scatter(const struct coll_comm *comm,
                                        const struct coll_reduce_scatter *op)
{
    if (op->dtype != ZERO_F32 && op->dtype != ZERO_BF16)
        return "the dtype is neither f32 nor bf16";
    if (op->contributors < 1 || op->contributors > comm->world)
        return "contributors is not in 1 .. world";
    if (op->spans[comm->rank].count > 0 && !op->accumulator)
        return "there is no accumulator";
    if (comm->rank < op->contributors && !op->source)
        return "there is no source";
    const size_t most = SIZE_MAX / (op->dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t));
    for (int rank = 0; rank < comm->world; rank++)
        if (op->spans[rank].count > most || op->spans[rank].offset > most - op->spans[rank].count)
            return "a span has more than the memory there is";
    return NULL;
}

zero_result coll_reduce_scatter_start(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                                      struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_REDUCE_SCATTER, "the request is not drained");
    request->op.reduce_scatter = *op;
    const char *why = check_reduce_scatter(comm, op);
    if (why)
        return coll_refuse(comm, request, COLL_REDUCE_SCATTER, why);
    return coll_start(comm, request, COLL_REDUCE_SCATTER);
}
