// A sender puts a p2p slot into its own block, the receiver fetches the bytes and counts the p2p
// slot in its own. Messages between two ranks come in order; those that find no room wait in the
// queue.

#include "collectives/host/host.h"

#include <assert.h>
#include <string.h>

/** What `owner` has posted to and received from `other`. */
static struct host_p2p_queue *p2p_queue_of(const struct coll_comm *comm, int owner, int other)
{
    return &coll_host_of(comm)->blocks[owner]->p2p_queues[coll_host_index(comm, owner, other)];
}

/** How many messages of this rank `peer` has taken, and has posted to it. */
static uint64_t taken_by(const struct coll_comm *comm, int peer)
{
    return atomic_load(&p2p_queue_of(comm, peer, comm->rank)->received);
}

static uint64_t posted_by(const struct coll_comm *comm, int peer)
{
    return atomic_load(&p2p_queue_of(comm, peer, comm->rank)->posted);
}

/** Posts a send whose turn it is, if there is room. ZERO_AGAIN: it isn't, or there is none. */
static zero_result post(struct coll_comm *comm, const struct coll_request *request)
{
    assert(request->kind == COLL_SEND);
    const struct coll_message *op = &request->op.message;
    struct host_p2p_queue *own = p2p_queue_of(comm, comm->rank, op->peer);
    const uint64_t posted = atomic_load_explicit(&own->posted, memory_order_relaxed);
    if (posted != request->sequence || posted - taken_by(comm, op->peer) >= HOST_P2P_SLOTS)
        return ZERO_AGAIN;
    struct host_p2p_slot *slot = &own->slots[posted % HOST_P2P_SLOTS];
    coll_signature_make(&slot->signature, comm, request);
    slot->source = coll_host_place(comm, op->data, op->bytes);
    atomic_store(&own->posted, posted + 1);
    coll_host_wake_rank(comm, op->peer);
    return ZERO_OK;
}

void coll_host_message_start(struct coll_comm *comm, const struct coll_request *request)
{
    assert(coll_is_message(request));
    if (request->kind == COLL_SEND)
        post(comm, request);
}

static zero_result advance_send(struct coll_comm *comm, struct coll_request *request)
{
    if (taken_by(comm, request->op.message.peer) <= request->sequence)
        return post(comm, request);
    coll_point(comm, COLL_SEND, "done");
    coll_retire(comm, request);
    return ZERO_OK;
}

static zero_result fail_size(struct coll_comm *comm, const struct coll_request *request,
                             const struct host_p2p_slot *slot)
{
    struct coll_signature mine;
    char message[COLL_MESSAGE_BYTES];
    coll_signature_make(&mine, comm, request);
    coll_signatures_text(coll_root_rank(comm, comm->rank), &mine,
                         coll_root_rank(comm, request->op.message.peer), &slot->signature,
                         request->sequence, message);
    return coll_fail(comm, ZERO_E_DIVERGED, "%s", message);
}

static zero_result advance_receive(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_message *op = &request->op.message;
    struct host_p2p_queue *own = p2p_queue_of(comm, comm->rank, op->peer);
    // What was not there when the message before was looked at may be there now.
    if (atomic_load_explicit(&own->received, memory_order_relaxed) != request->sequence ||
        posted_by(comm, op->peer) <= request->sequence)
        return ZERO_AGAIN;
    const struct host_p2p_slot *slot =
        &p2p_queue_of(comm, op->peer, comm->rank)->slots[request->sequence % HOST_P2P_SLOTS];
    if (slot->signature.bytes != op->bytes)
        return fail_size(comm, request, slot);
    coll_point(comm, COLL_RECEIVE, "meet");
    coll_point(comm, COLL_RECEIVE, "read");
    assert(request->moved <= op->bytes);
    const zero_result result = coll_host_fetch(comm, request, op->peer, &slot->source, op->bytes,
                                               op->data, &request->moved);
    if (result != ZERO_OK)
        return result;
    if (op->peer != comm->rank)
        comm->comm_world->counters.gathered_bytes += op->bytes;
    coll_point(comm, COLL_RECEIVE, "done");
    atomic_store(&own->received, request->sequence + 1);
    coll_host_wake_rank(comm, op->peer);
    coll_retire(comm, request);
    return ZERO_OK;
}

zero_result coll_host_messages(struct coll_comm *comm)
{
    zero_result result = ZERO_AGAIN;
    for (struct coll_request *request = comm->messages.first, *next; request; request = next) {
        next = request->next;
        const zero_result advanced = request->kind == COLL_SEND ? advance_send(comm, request)
                                                                : advance_receive(comm, request);
        if (advanced < 0)
            return advanced;
        if (advanced == ZERO_OK)
            result = ZERO_OK;
    }
    return result;
}

bool coll_host_message_absent(const struct coll_comm *comm, const struct coll_request *request)
{
    const int peer = request->op.message.peer;
    if (request->state != COLL_STARTED)
        return false;
    if (request->kind == COLL_SEND)
        return taken_by(comm, peer) <= request->sequence;
    return posted_by(comm, peer) <= request->sequence || coll_host_read_pending(comm, peer);
}
