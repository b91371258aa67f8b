#include "collectives/direct/direct.h"

#include <fenv.h>

/** Names the contributors whose part of a tile is not finite, each for the first time only. */
static void report_nonfinite(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                             size_t first, size_t count)
{
    struct direct *direct = coll_direct_of(comm);
    for (int rank = 0; rank < op->contributors; rank++) {
        if (direct->met[rank] == DIRECT_DONE)
            continue;
        const size_t found = coll_sum_nonfinite(op->dtype, direct->sources[rank], first, count);
        if (found == first + count)
            continue;
        direct->met[rank] = DIRECT_DONE;
        op->nonfinite(op->user, rank, found);
    }
}

static void sum_span(struct coll_comm *comm, const struct coll_reduce_scatter *op, size_t length)
{
    const struct direct *direct = coll_direct_of(comm);
    for (size_t first = 0; first < length; first += COLL_SUM_TILE) {
        coll_point(comm, COLL_REDUCE_SCATTER, "read");
        const size_t left = length - first;
        const size_t count = left < COLL_SUM_TILE ? left : COLL_SUM_TILE;
        float *sum = (float *)op->accumulator + first;
        const bool finite = coll_sum_tile(direct->kernels, op->dtype, sum, direct->sources,
                                          op->contributors, first, count, op->store);
        if (!finite && op->nonfinite)
            report_nonfinite(comm, op, first, count);
        if (op->tile)
            op->tile(op->user, first, count, sum);
    }
}

zero_result coll_direct_reduce_scatter(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct coll_span *span = &op->spans[comm->rank];
    if (span->count == 0)
        return ZERO_OK;
    const zero_result result = coll_direct_meet_all(comm, request, op->contributors);
    if (result != ZERO_OK)
        return result;
    const size_t size = op->dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
    for (int rank = 0; rank < op->contributors; rank++)
        coll_direct_of(comm)->sources[rank] =
            coll_direct_address(comm, rank,
                                &coll_direct_descriptor(comm, rank, request->sequence)->source) +
            span->offset * size;

    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    sum_span(comm, op, span->count);
    fesetenv(&environment);

    const int peers = op->contributors - (comm->rank < op->contributors);
    comm->family->counters.reduced_bytes += (uint64_t)peers * span->count * size;
    return ZERO_OK;
}
