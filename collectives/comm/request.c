#include "collectives/comm/comm_internal.h"
#include "collectives/comm/signature.h"

#include <assert.h>
#include <stdio.h>

zero_result coll_refuse(struct coll_comm *comm, const struct coll_request *request,
                        enum coll_kind kind, const char *why)
{
    struct coll_request shown = *request;
    struct coll_signature signature;
    char text[COLL_TEXT_BYTES];
    shown.kind = kind;
    // What is in the op of a request that is under way may be of another kind.
    if (request->state == COLL_IDLE) {
        coll_signature_make(&signature, comm, &shown);
        coll_signature_text(&signature, comm->sequence, text);
    } else {
        snprintf(text, sizeof text, "%s", coll_kind_name(kind));
    }
    return coll_fail(comm, ZERO_E_INVALID, "rank %d, %s: %s", coll_root_rank(comm, comm->rank),
                     text, why);
}

static struct coll_queue *queue_of(struct coll_comm *comm, const struct coll_request *request)
{
    return coll_is_message(request) ? &comm->messages : &comm->queue;
}

static void enqueue(struct coll_queue *queue, struct coll_request *request)
{
    assert(!request->next && !queue->first == !queue->last);
    if (queue->last)
        queue->last->next = request;
    else
        queue->first = request;
    queue->last = request;
}

/** The number a request gets: in the order of all operations, or of the messages between two ranks.
 */
static uint64_t *next_sequence(struct coll_comm *comm, const struct coll_request *request)
{
    if (!coll_is_message(request))
        return &comm->sequence;
    const int peer = request->op.message.peer;
    assert(peer >= 0 && peer < comm->world);
    return request->kind == COLL_SEND ? &comm->sends[peer] : &comm->receives[peer];
}

zero_result coll_start(struct coll_comm *comm, struct coll_request *request, enum coll_kind kind)
{
    const zero_result result = coll_begin(comm, request, kind);
    coll_wake_peers(comm);
    return result;
}

zero_result coll_begin(struct coll_comm *comm, struct coll_request *request, enum coll_kind kind)
{
    zero_result result = coll_stop(comm);
    if (result != ZERO_OK)
        return result;
    assert(kind > COLL_NONE && kind < COLL_KINDS && request->state != COLL_STARTED);
    request->comm = comm;
    request->kind = kind;
    request->sequence = *next_sequence(comm, request);
    request->moved = 0;
    request->next = NULL;
    coll_record_begin(comm, request);
    coll_point(comm, kind, "post");
    result = comm->transport->start(comm, request);
    if (result == ZERO_AGAIN) {
        result = coll_wait_for(comm, request, COLL_GOAL_ROOM);
        if (result == ZERO_OK)
            result = comm->transport->start(comm, request);
    }
    if (result != ZERO_OK)
        return result;
    ++*next_sequence(comm, request);
    request->state = COLL_STARTED;
    enqueue(queue_of(comm, request), request);
    return ZERO_OK;
}

static void dequeue(struct coll_queue *queue, struct coll_request *request)
{
    assert(queue->first && queue->last);
    struct coll_request *before = NULL;
    if (queue->first == request) {
        queue->first = request->next;
    } else {
        for (before = queue->first; before->next != request;)
            before = before->next;
        before->next = request->next;
    }
    if (queue->last == request)
        queue->last = before;
    request->next = NULL;
}

void coll_retire(struct coll_comm *comm, struct coll_request *request)
{
    assert(request->state == COLL_STARTED && request->comm == comm);
    dequeue(queue_of(comm, request), request);
    request->state = COLL_COMPLETE;
    coll_record_end(comm, request);
}

zero_result coll_progress(struct coll_comm *comm)
{
    for (struct coll_comm *each = comm->comm_world->comms; each && !comm->comm_world->stopped;
         each = each->next)
        each->transport->progress(each);
    coll_wake_peers(comm);
    return coll_stop(comm);
}

/** A request knows better where it belongs than who waits for it. */
static struct coll_comm *comm_of(struct coll_comm *comm, const struct coll_request *request)
{
    return request->state == COLL_IDLE ? comm : request->comm;
}

zero_result coll_wait(struct coll_comm *comm, struct coll_request *request)
{
    return coll_wait_for(comm_of(comm, request), request, COLL_GOAL_COMPLETE);
}

/** Whether neither this rank nor a peer uses it any more. */
static bool is_over(const struct coll_request *request)
{
    return request->state == COLL_IDLE ||
           (request->state == COLL_COMPLETE &&
            request->comm->transport->drained(request->comm, request));
}

zero_result coll_drain(struct coll_comm *comm, struct coll_request *request)
{
    comm = comm_of(comm, request);
    zero_result result = ZERO_OK;
    if (comm->comm_world->stopped || !is_over(request))
        result = coll_wait_for(comm, request, COLL_GOAL_COMPLETE);
    if (result == ZERO_OK && !is_over(request))
        result = coll_wait_for(comm, request, COLL_GOAL_DRAINED);
    if (result == ZERO_OK)
        request->state = COLL_IDLE;
    return result;
}

bool coll_complete(const struct coll_request *request)
{
    return request->state == COLL_IDLE || request->state == COLL_COMPLETE;
}

bool coll_drained(const struct coll_comm *comm, const struct coll_request *request)
{
    return is_over(request) || coll_failed(comm) != ZERO_OK;
}
