#include "collectives/host/host.h"
#include "collectives/host/host_publish.h"

#include <assert.h>
#include <string.h>

/** Whether the next all-to-all finds a table. */
static bool has_table(const struct coll_comm *comm, const struct coll_request *request)
{
    for (int rank = 0; rank < comm->world && request->kind == COLL_ALL_TO_ALL; rank++)
        if (!coll_host_has_room(comm, request, rank))
            return false;
    return true;
}

/** Whether all ranks have room. The caller looks at their counters about once in a round of the
 * ring: a small operation shall not fetch lines for what it hardly needs to know. */
static bool has_room_everywhere(struct coll_comm *comm, uint64_t sequence)
{
    struct host_comm *host = coll_host_of(comm);
    if (sequence < host->post_limit)
        return true;
    uint64_t least = HOST_GONE - HOST_RING;
    for (int rank = 0; rank < comm->world; rank++) {
        const uint64_t consumed =
            atomic_load_explicit(&host->blocks[rank]->consumed, memory_order_acquire);
        const uint64_t known = coll_host_sent(comm, rank); // another thread counts on
        least = consumed < least ? consumed : least;
        least = known < least ? known : least;
    }
    host->post_limit = least + HOST_RING;
    return sequence < host->post_limit;
}

/** From the start of a vector to the end of its last span. */
static size_t spans_end(const struct coll_comm *comm, const struct coll_span *spans)
{
    size_t end = 0;
    for (int rank = 0; rank < comm->world; rank++)
        if (spans[rank].count > 0 && spans[rank].offset + spans[rank].count > end)
            end = spans[rank].offset + spans[rank].count;
    return end;
}

/** Posts the blocks of an all-to-all in the next table, whose number it returns. */
static uint64_t post_blocks(const struct coll_comm *comm, const struct coll_request *request)
{
    assert(request->kind == COLL_ALL_TO_ALL);
    struct host_comm *host = coll_host_of(comm);
    const uint64_t table = host->all_to_alls++ % HOST_TABLES;
    host->tables[table] = request->sequence + 1;
    memcpy(coll_host_table(coll_host_own(comm), comm->world, table), request->op.all_to_all.send,
           (size_t)comm->world * sizeof(struct coll_span));
    return table;
}

/** Where the request's memory lies, for the others. */
static void describe_memory(struct host_descriptor *own, const struct coll_comm *comm,
                            const struct coll_request *request)
{
    struct host_place source = {.arena = HOST_UNREGISTERED}, target = {.arena = HOST_UNREGISTERED};
    switch ((enum coll_kind)request->kind) {
    case COLL_ALL_GATHER: {
        const struct coll_all_gather *op = &request->op.all_gather;
        source = op->recv ? coll_host_place(comm, op->source, op->spans[comm->rank].count)
                          : coll_host_published(comm, request);
        if (op->together)
            target = coll_host_place(comm, op->recv, spans_end(comm, op->spans));
        break;
    }
    case COLL_BROADCAST_BULK:
        source = coll_host_place(comm, request->op.broadcast.data, request->op.broadcast.bytes);
        break;
    case COLL_ALL_TO_ALL: {
        const struct coll_all_to_all *op = &request->op.all_to_all;
        source = coll_host_place(comm, op->source, spans_end(comm, op->send));
        target.at = post_blocks(comm, request);
        break;
    }
    case COLL_REDUCE_SCATTER:
        source = coll_host_place(comm, request->op.reduce_scatter.source,
                                 spans_end(comm, request->op.reduce_scatter.spans) *
                                     base_dtype_bytes(request->op.reduce_scatter.dtype));
        target = coll_host_partial_slot(comm, request);
        break;
    case COLL_ALL_REDUCE_BULK: {
        const struct coll_all_reduce *op = &request->op.all_reduce;
        const size_t bytes = op->count * base_dtype_bytes(op->dtype);
        source = coll_host_place(comm, op->source, bytes);
        target = coll_host_place(comm, op->result, bytes);
        break;
    }
    default: {
        const struct coll_small *small = (const struct coll_small *)request;
        assert(coll_kind_is_small(request->kind) && small->slot >= 0 &&
               small->slot < COLL_SMALL_SLOTS);
        source.at = (uint64_t)small->slot;
        if (small->in)
            memcpy(coll_host_inlined(request) ? own->bytes
                                              : coll_host_own(comm)->slots[small->slot],
                   small->in, small->bytes);
    }
    }
    own->source = source;
    own->target = target;
}

/** A history with one operation more. Ranks that don't need each other in an operation compare
 * nothing there; if they differ in it the next one in which they do shows it. */
static uint64_t lengthen(uint64_t history, const struct coll_signature *signature)
{
    const uint64_t mixed =
        (history ^ coll_signature_digest(signature)) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 32;
}

zero_result coll_host_start(struct coll_comm *comm, struct coll_request *request)
{
    if (coll_is_message(request)) {
        struct coll_signature signature;
        coll_signature_make(&signature, comm, request);
        coll_host_record_call(comm, &signature, request->sequence);
        coll_host_message_start(comm, request);
        return ZERO_OK;
    }
    if (!has_room_everywhere(comm, request->sequence) || !has_table(comm, request))
        return ZERO_AGAIN;
    struct host_comm *host = coll_host_of(comm);
    struct host_descriptor *own = coll_host_descriptor(comm, comm->rank, request->sequence);
    assert(atomic_load(&coll_host_own(comm)->posted) == request->sequence);
    coll_signature_make(&own->signature, comm, request);
    own->history = host->history = lengthen(host->history, &own->signature);
    if (comm->root_ranks)
        coll_host_record_call(comm, &own->signature, request->sequence);
    describe_memory(own, comm, request);
    atomic_store_explicit(&own->posted, request->sequence + 1, memory_order_release);
    atomic_store_explicit(&coll_host_own(comm)->posted, request->sequence + 1,
                          memory_order_release);
    comm->must_wake_peers = true;
    return ZERO_OK;
}

static zero_result (*const advance[COLL_KINDS])(struct coll_comm *comm,
                                                struct coll_request *request) = {
    [COLL_ALL_GATHER] = coll_host_all_gather,
    [COLL_REDUCE_SCATTER] = coll_host_reduce_scatter,
    [COLL_ALL_REDUCE_BULK] = coll_host_all_reduce,
    [COLL_BROADCAST_BULK] = coll_host_broadcast,
    [COLL_ALL_TO_ALL] = coll_host_all_to_all,
    [COLL_EXCHANGE] = coll_host_exchange,
    [COLL_ALL_REDUCE] = coll_host_small_all_reduce,
    [COLL_BROADCAST] = coll_host_small_broadcast,
    [COLL_BARRIER] = coll_host_exchange,
};

/** A bulk operation is complete: what was read of it in pieces is of no use any more. */
static void forget_pieces(struct coll_comm *comm)
{
    memset(coll_host_of(comm)->fetched, 0, (size_t)comm->world * sizeof(size_t));
    coll_host_forget_views(comm);
}

zero_result coll_host_progress(struct coll_comm *comm)
{
    zero_result result = comm->messages.first ? coll_host_messages(comm) : ZERO_AGAIN;
    if (result < 0)
        return result;
    if (comm == comm->comm_world->root && coll_host_serve(comm))
        result = ZERO_OK;
    while (comm->queue.first) {
        struct coll_request *request = comm->queue.first;
        assert(request->state == COLL_STARTED && advance[request->kind]);
        assert(atomic_load(&coll_host_own(comm)->consumed) == request->sequence);
        const zero_result advanced = advance[request->kind](comm, request);
        if (advanced < 0)
            return advanced;
        if (advanced == ZERO_AGAIN)
            break;
        coll_point(comm, request->kind, "done");
        coll_retire(comm, request);
        coll_host_of(comm)->at = 0;
        if (request->kind < COLL_EXCHANGE)
            forget_pieces(comm);
        memset(coll_host_of(comm)->met, HOST_NOT_MET, (size_t)comm->world);
        atomic_store_explicit(&coll_host_own(comm)->consumed, request->sequence + 1,
                              memory_order_release);
        comm->must_wake_peers = true;
        result = ZERO_OK;
    }
    return coll_host_piece_taken(comm) ? ZERO_OK : result;
}
