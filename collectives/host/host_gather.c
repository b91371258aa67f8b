// The operations that copy: each rank brings the blocks that are for it to where they are wanted.

#include "collectives/host/host.h"
#include "collectives/host/host_publish.h"

#include <assert.h>

/** Brings what `rank` has for this rank, as far as it can. */
typedef zero_result (*take_fn)(struct coll_comm *comm, const struct coll_request *request,
                               int rank);

/** Takes from all ranks, in whatever order they come; with `spans` from those that have anything.
 */
static zero_result take_all(struct coll_comm *comm, struct coll_request *request,
                            const struct coll_span *spans, take_fn take)
{
    assert(request == comm->queue.first);
    unsigned char *met = coll_host_of(comm)->met;
    zero_result result = ZERO_OK;
    // Every rank starts with its own block and goes round, so that not all read the same one.
    for (int i = 0; i < comm->world; i++) {
        const int rank = (comm->rank + i) % comm->world;
        if (met[rank] == HOST_DONE || (spans && spans[rank].count == 0))
            continue;
        zero_result arrived = coll_host_meet(comm, request, rank);
        if (arrived == ZERO_OK)
            arrived = take(comm, request, rank);
        if (arrived < 0)
            return arrived;
        if (arrived == ZERO_OK)
            met[rank] = HOST_DONE;
        else
            result = ZERO_AGAIN;
    }
    return result;
}

static zero_result fetch(struct coll_comm *comm, const struct coll_request *request, int rank,
                         const struct host_place *place, size_t bytes, void *to)
{
    assert(rank >= 0 && rank < comm->world && (to || bytes == 0));
    coll_point(comm, request->kind, "read");
    const zero_result result =
        coll_host_fetch(comm, request, rank, place, bytes, to, &coll_host_of(comm)->fetched[rank]);
    if (result == ZERO_OK && rank != comm->rank)
        comm->comm_world->counters.gathered_bytes += bytes;
    return result;
}

/* ------------------------------------------------------------------ all-gather, broadcast */

static zero_result take_block(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    const struct coll_span *span = &op->spans[rank];
    const struct host_place *place = &coll_host_descriptor(comm, rank, request->sequence)->source;
    return fetch(comm, request, rank, place, span->count, (unsigned char *)op->recv + span->offset);
}

zero_result coll_host_all_gather(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    return coll_host_parted(request) ? coll_host_gather_together(comm, request)
                                     : take_all(comm, request, op->spans, take_block);
}

zero_result coll_host_broadcast(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_bulk_broadcast *op = &request->op.broadcast;
    assert(op->root >= 0 && op->root < comm->world);
    if (comm->rank == op->root)
        return ZERO_OK;
    const zero_result result = coll_host_meet(comm, request, op->root);
    if (result != ZERO_OK)
        return result;
    return fetch(comm, request, op->root,
                 &coll_host_descriptor(comm, op->root, request->sequence)->source, op->bytes,
                 op->data);
}

/* ------------------------------------------------------------------ all-to-all */

/** What a rank's table says of its block for this one. */
static const struct coll_span *sent_by(const struct coll_comm *comm, int rank, uint64_t table)
{
    const struct host_comm *host = coll_host_of(comm);
    const int places = host->far[rank] ? 1 : comm->world;
    return coll_host_table(host->blocks[rank], places, table % HOST_TABLES) +
           coll_host_index(comm, rank, comm->rank);
}

static zero_result fail_count(struct coll_comm *comm, const struct coll_request *request, int rank,
                              size_t sent, size_t wanted)
{
    char text[COLL_TEXT_BYTES];
    coll_signature_text(&coll_host_descriptor(comm, comm->rank, request->sequence)->signature,
                        request->sequence, text);
    return coll_fail(comm, ZERO_E_DIVERGED,
                     "%s: rank %d sends %zu bytes to rank %d, which expects %zu", text,
                     coll_root_rank(comm, rank), sent, coll_root_rank(comm, comm->rank), wanted);
}

static zero_result take_for_me(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    const struct coll_all_to_all *op = &request->op.all_to_all;
    const struct host_descriptor *posted = coll_host_descriptor(comm, rank, request->sequence);
    const struct coll_span *sent = sent_by(comm, rank, posted->target.at);
    const struct coll_span *wanted = &op->recv_spans[rank];
    if (sent->count != wanted->count)
        return fail_count(comm, request, rank, sent->count, wanted->count);
    if (wanted->count == 0)
        return ZERO_OK;
    const struct host_place place = {posted->source.at + sent->offset, sent->count,
                                     posted->source.arena};
    return fetch(comm, request, rank, &place, wanted->count,
                 (unsigned char *)op->recv + wanted->offset);
}

zero_result coll_host_all_to_all(struct coll_comm *comm, struct coll_request *request)
{
    return take_all(comm, request, NULL, take_for_me);
}
