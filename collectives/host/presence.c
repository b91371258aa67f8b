#include "collectives/host/host.h"
#include "collectives/host/host_publish.h"

#include <assert.h>

/** Whether `reader` reads what `owner` has posted for the request. */
static bool reads(const struct coll_request *request, int reader, int owner)
{
    assert(request->kind > COLL_NONE && request->kind < COLL_KINDS);
    switch ((enum coll_kind)request->kind) {
    case COLL_ALL_GATHER:
        return request->op.all_gather.spans[owner].count > 0;
    case COLL_REDUCE_SCATTER:
        return owner < request->op.reduce_scatter.contributors &&
               request->op.reduce_scatter.spans[reader].count > 0;
    case COLL_BROADCAST_BULK:
        return owner == request->op.broadcast.root;
    case COLL_BROADCAST:
        return owner == ((const struct coll_small *)request)->root;
    case COLL_SEND:
    case COLL_RECEIVE:
        return false;
    default:
        return true;
    }
}

static bool is_publication(const struct coll_request *request)
{
    return request->kind == COLL_ALL_GATHER && !request->op.all_gather.recv;
}

/** Whether another rank reads this one's source. */
static bool reads_here(const struct coll_comm *comm, const struct coll_request *request, int rank)
{
    if (request->kind == COLL_REDUCE_SCATTER && rank != comm->rank &&
        !coll_host_of(comm)->far[rank] &&
        coll_host_partial_reads(comm, &request->op.reduce_scatter, comm->rank))
        return true;
    return rank != comm->rank && reads(request, rank, comm->rank) &&
           (!coll_host_parted(request) || coll_host_of(comm)->far[rank]);
}

bool coll_host_drained(const struct coll_comm *comm, const struct coll_request *request)
{
    // The descriptor's bytes are safe until its turn in the ring comes again. A long all-reduce is
    // complete when no rank reads any more.
    if (coll_host_inlined(request) || request->kind == COLL_ALL_REDUCE_BULK ||
        (is_publication(request) && coll_host_published(comm, request).bytes == 0))
        return true;
    for (int rank = 0; rank < comm->world; rank++)
        if (reads_here(comm, request, rank) && !coll_host_consumed(comm, rank, request->sequence))
            return false;
    return true;
}

/** Whether a rank's result needs another one to have made the call. */
static bool needs(const struct coll_comm *comm, const struct coll_request *request, int owner)
{
    if (reads(request, comm->rank, owner))
        return true;
    if (request->kind != COLL_REDUCE_SCATTER)
        return false;
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    return (op->spans[comm->rank].count > 0 && coll_host_needs_all(comm, op)) ||
           coll_host_partial_reads(comm, op, owner);
}

/** Whether the oldest request, of which this rank has done its steps, waits for another one's. What
 * a rank of this host leaves undone of a block is done by those that stay. */
static bool is_late(const struct coll_comm *comm, const struct coll_request *oldest, int rank)
{
    const struct host_comm *host = coll_host_of(comm);
    if (coll_host_parted(oldest))
        return !host->far[rank] && (host->far_count > 0 || !is_publication(oldest)) &&
               coll_host_behind(comm, rank) && !coll_host_retired(comm, rank);
    if (oldest->kind == COLL_REDUCE_SCATTER)
        return coll_host_partial_waits(comm, oldest, rank);
    return oldest->kind == COLL_ALL_REDUCE_BULK && coll_host_behind(comm, rank);
}

/** Whether memory of the host is filled when this rank of it has made the call, too. */
static bool shares_target(const struct coll_comm *comm, const struct coll_request *oldest, int rank)
{
    return coll_host_parted(oldest) && !is_publication(oldest) && !coll_host_of(comm)->far[rank];
}

/** Whether the oldest request waits for a rank. */
static bool holds_up(const struct coll_comm *comm, int rank)
{
    const struct coll_request *oldest = comm->queue.first;
    assert(oldest);
    return is_late(comm, oldest, rank) ||
           ((needs(comm, oldest, rank) || shares_target(comm, oldest, rank)) &&
            (!coll_host_posted(comm, rank, oldest->sequence) ||
             coll_host_read_pending(comm, rank)));
}

/** Whether a rank is waited for. */
static bool is_absent(const struct coll_comm *comm, const struct coll_request *request,
                      enum coll_goal goal, int rank)
{
    if (coll_is_message(request))
        return rank == request->op.message.peer && coll_host_message_absent(comm, request);
    switch (goal) {
    case COLL_GOAL_COMPLETE:
        return holds_up(comm, rank);
    case COLL_GOAL_DRAINED:
        return reads_here(comm, request, rank) &&
               !coll_host_consumed(comm, rank, request->sequence);
    case COLL_GOAL_ROOM:
        break;
    }
    return !coll_host_has_room(comm, request, rank) ||
           (!coll_host_has_room(comm, request, comm->rank) && holds_up(comm, rank));
}

enum coll_presence coll_host_presence(const struct coll_comm *comm,
                                      const struct coll_request *request, enum coll_goal goal,
                                      int rank)
{
    // What was asked of a rank comes for as long as it is in the comm world, whatever group it has
    // left. A rank that leaves says so after everything else: what it says first is looked at last.
    const bool asking = coll_host_read_pending(comm, rank);
    const bool left = coll_host_left(comm, rank);
    const bool left_all = coll_host_left(comm->comm_world->root, coll_root_rank(comm, rank));
    if (!is_absent(comm, request, goal, rank))
        return COLL_PRESENT;
    return (asking ? left_all : left) ? COLL_LEFT : COLL_ABSENT;
}
