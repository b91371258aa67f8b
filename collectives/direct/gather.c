#include "collectives/direct/direct.h"

/** Copies a rank's block to its place, as far as it can. */
static zero_result fetch(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    const struct coll_span *span = &op->spans[rank];
    coll_point(comm, request->kind, "read");
    if (!op->recv)
        return ZERO_OK;
    const struct direct_place *source =
        &coll_direct_descriptor(comm, rank, request->sequence)->source;
    const zero_result result = coll_direct_fetch(comm, request, rank, source, span->count,
                                                 (unsigned char *)op->recv + span->offset,
                                                 &coll_direct_of(comm)->fetched[rank]);
    if (result == ZERO_OK && rank != comm->rank)
        comm->family->counters.gathered_bytes += span->count;
    return result;
}

zero_result coll_direct_all_gather(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    unsigned char *met = coll_direct_of(comm)->met;
    zero_result result = ZERO_OK;
    // Everybody starts with its own block and goes round, so that not all read the same one.
    for (int i = 0; i < comm->world; i++) {
        const int rank = (comm->rank + i) % comm->world;
        if (met[rank] == DIRECT_DONE || op->spans[rank].count == 0)
            continue;
        zero_result arrived = coll_direct_meet(comm, request, rank);
        if (arrived == ZERO_OK)
            arrived = fetch(comm, request, rank);
        if (arrived < 0)
            return arrived;
        if (arrived == ZERO_OK)
            met[rank] = DIRECT_DONE;
        else
            result = ZERO_AGAIN;
    }
    return result;
}
