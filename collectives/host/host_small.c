#include "collectives/host/host.h"

#include <assert.h>
#include <string.h>

/** The bytes of `rank` for a small operation. */
static const unsigned char *slot_of(struct coll_comm *comm, const struct coll_request *request,
                                    int rank)
{
    assert(coll_kind_is_small(request->kind));
    coll_point(comm, request->kind, "read");
    const struct host_descriptor *posted = coll_host_descriptor(comm, rank, request->sequence);
    return coll_host_inlined(request)
               ? posted->bytes
               : coll_host_of(comm)->blocks[rank]->slots[posted->source.at % COLL_SMALL_SLOTS];
}

zero_result coll_host_exchange(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    assert(small->bytes <= COLL_SMALL_BYTES);
    const zero_result result = coll_host_meet_all(comm, request, comm->world);
    if (result != ZERO_OK || small->bytes == 0)
        return result;
    for (int rank = 0; rank < comm->world; rank++)
        memcpy((unsigned char *)small->out + (size_t)rank * small->stride,
               slot_of(comm, request, rank), small->bytes);
    return ZERO_OK;
}

static double combine(double a, double b, enum base_op op)
{
    switch (op) {
    case BASE_SUM:
        return a + b;
    case BASE_MIN:
        return b < a || b != b ? b : a;
    case BASE_MAX:
        return b > a || b != b ? b : a;
    }
    return a;
}

zero_result coll_host_small_all_reduce(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    const zero_result result = coll_host_meet_all(comm, request, comm->world);
    if (result != ZERO_OK)
        return result;
    double *out = small->out;
    assert(small->bytes % sizeof *out == 0);
    const size_t count = small->bytes / sizeof *out;
    memcpy(out, slot_of(comm, request, 0), small->bytes);
    for (int rank = 1; rank < comm->world; rank++) {
        const double *theirs = (const double *)(const void *)slot_of(comm, request, rank);
        for (size_t i = 0; i < count; i++)
            out[i] = combine(out[i], theirs[i], small->op);
    }
    return ZERO_OK;
}

zero_result coll_host_small_broadcast(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    if (comm->rank == small->root)
        return ZERO_OK;
    const zero_result result = coll_host_meet(comm, request, small->root);
    if (result == ZERO_OK)
        memcpy(small->out, slot_of(comm, request, small->root), small->bytes);
    return result;
}
