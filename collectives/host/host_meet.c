// Which operations another rank has posted, knows of, and is done with; and whether it has called
// what this rank has called.

#include "collectives/host/host.h"

#include <assert.h>

struct host_descriptor *coll_host_descriptor(const struct coll_comm *comm, int rank,
                                             uint64_t sequence)
{
    assert(rank >= 0 && rank < comm->world);
    return &coll_host_of(comm)->blocks[rank]->ring[sequence % HOST_RING];
}

bool coll_host_posted(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    return atomic_load_explicit(&coll_host_descriptor(comm, rank, sequence)->posted,
                                memory_order_acquire) > sequence;
}

bool coll_host_consumed(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    struct host_comm *host = coll_host_of(comm);
    if (host->consumed[rank] <= sequence)
        host->consumed[rank] =
            atomic_load_explicit(&host->blocks[rank]->consumed, memory_order_acquire);
    return host->consumed[rank] > sequence;
}

uint64_t coll_host_sent(const struct coll_comm *comm, int rank)
{
    const struct host_comm *host = coll_host_of(comm);
    return host->far[rank] ? atomic_load_explicit(&host->blocks[rank]->sent, memory_order_acquire)
                           : HOST_GONE;
}

bool coll_host_has_room(const struct coll_comm *comm, const struct coll_request *request, int rank)
{
    const uint64_t sequence = request->sequence;
    const struct host_comm *host = coll_host_of(comm);
    if (request->kind == COLL_ALL_TO_ALL) {
        const uint64_t last = host->tables[host->all_to_alls % HOST_TABLES];
        if (last > 0 && !coll_host_consumed(comm, rank, last - 1))
            return false;
    }
    return sequence < HOST_RING || (coll_host_consumed(comm, rank, sequence - HOST_RING) &&
                                    coll_host_sent(comm, rank) > sequence - HOST_RING);
}

/** Whether this rank and another one have not done the same up to an operation of which both still
 * have the descriptors. */
static bool differ(const struct coll_comm *comm, int rank, uint64_t sequence)
{
    const struct host_descriptor *mine = coll_host_descriptor(comm, comm->rank, sequence);
    const struct host_descriptor *theirs = coll_host_descriptor(comm, rank, sequence);
    return atomic_load_explicit(&mine->posted, memory_order_relaxed) == sequence + 1 &&
           atomic_load_explicit(&theirs->posted, memory_order_acquire) == sequence + 1 &&
           mine->history != theirs->history;
}

static zero_result fail_diverged(struct coll_comm *comm, const struct coll_request *request,
                                 int rank)
{
    uint64_t first = request->sequence;
    while (first > 0 && differ(comm, rank, first - 1))
        first--;
    char message[COLL_MESSAGE_BYTES];
    coll_signatures_text(coll_root_rank(comm, comm->rank),
                         &coll_host_descriptor(comm, comm->rank, first)->signature,
                         coll_root_rank(comm, rank),
                         &coll_host_descriptor(comm, rank, first)->signature, first, message);
    return coll_fail(comm, ZERO_E_DIVERGED, "%s", message);
}

zero_result coll_host_meet(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    assert(request == comm->queue.first);
    struct host_comm *host = coll_host_of(comm);
    if (host->met[rank] != HOST_NOT_MET)
        return ZERO_OK;
    if (!coll_host_posted(comm, rank, request->sequence))
        return ZERO_AGAIN;
    if (coll_host_descriptor(comm, comm->rank, request->sequence)->history !=
        coll_host_descriptor(comm, rank, request->sequence)->history)
        return fail_diverged(comm, request, rank);
    coll_point(comm, request->kind, "meet");
    host->met[rank] = HOST_MET;
    return ZERO_OK;
}

zero_result coll_host_meet_all(struct coll_comm *comm, const struct coll_request *request,
                               int count)
{
    assert(count >= 0 && count <= comm->world);
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < count && result >= 0; rank++) {
        const zero_result met = coll_host_meet(comm, request, rank);
        if (met != ZERO_OK)
            result = met;
    }
    return result;
}
