#include "collectives/direct/direct.h"

#include <string.h>

/** Copies a peer's block to its place. */
static void fetch(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    const struct coll_span *span = &op->spans[rank];
    const struct direct_descriptor *posted = coll_direct_descriptor(comm, rank, request->sequence);
    const unsigned char *from = coll_direct_address(comm, rank, &posted->source);
    unsigned char *to = (unsigned char *)op->recv + span->offset;
    if (from != to)
        memcpy(to, from, span->count);
    if (rank != comm->rank)
        comm->family->counters.gathered_bytes += span->count;
}

zero_result coll_direct_all_gather(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    unsigned char *met = coll_direct_of(comm)->met;
    zero_result result = ZERO_OK;
    // Everybody starts with its own block and goes round, so that not all read the same one.
    for (int i = 0; i < comm->world; i++) {
        const int rank = (comm->rank + i) % comm->world;
        const struct coll_span *span = &op->spans[rank];
        if (met[rank] == DIRECT_DONE || span->count == 0)
            continue;
        const zero_result arrived = coll_direct_meet(comm, request, rank);
        if (arrived < 0)
            return arrived;
        if (arrived == ZERO_AGAIN) {
            result = ZERO_AGAIN;
            continue;
        }
        coll_point(comm, request->kind, "read");
        if (op->recv)
            fetch(comm, request, rank);
        met[rank] = DIRECT_DONE;
    }
    return result;
}
