#include "collectives/host/host.h"

#include <assert.h>
#include <string.h>

/** Copies that are small leave the caches alone. */
enum { LEAST_PAST = 256 * 1024 };

/** What all ranks together read and write in an operation, nearly. */
static size_t footprint(const struct coll_comm *comm, const struct coll_request *request)
{
    const size_t world = (size_t)comm->world;
    const struct coll_span *spans = request->kind == COLL_ALL_GATHER ? request->op.all_gather.spans
                                    : request->kind == COLL_ALL_TO_ALL
                                        ? request->op.all_to_all.recv_spans
                                        : NULL;
    size_t bytes = request->kind == COLL_BROADCAST_BULK ? request->op.broadcast.bytes
                   : coll_is_message(request)           ? request->op.message.bytes
                                                        : 0;
    for (size_t rank = 0; rank < world && spans; rank++)
        bytes += spans[rank].count;
    return bytes > SIZE_MAX / (world + 1) ? SIZE_MAX : bytes * (world + 1);
}

/** Copies; past the caches what doesn't fit into them. */
static void copy(const struct coll_comm *comm, const struct coll_request *request, void *to,
                 const void *from, size_t bytes)
{
    const struct host_comm *host = coll_host_of(comm);
    const uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    if (a == b)
        return;
    if (a < b + bytes && b < a + bytes) {
        memmove(to, from, bytes);
    } else if (bytes < LEAST_PAST || footprint(comm, request) < host->cache_bytes) {
        memcpy(to, from, bytes);
    } else {
        host->kernels->copy(to, from, bytes, BASE_SUM_MEMORY);
        base_sum_fence();
    }
}

zero_result coll_host_fetch(struct coll_comm *comm, const struct coll_request *request, int rank,
                            const struct host_place *place, size_t bytes, void *to, size_t *done)
{
    assert(*done <= bytes);
    if (!coll_host_addressable(comm, rank, place))
        return coll_host_read(comm, request, rank, place, bytes, to, done);
    if (bytes > *done)
        copy(comm, request, to, coll_host_address(comm, rank, place), bytes);
    *done = bytes;
    return ZERO_OK;
}
