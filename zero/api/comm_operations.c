// Operations of <zero/collectives.h>: a thin layer over collectives/comm/comm.h that checks
// arguments.

#include "zero/api/public_comm.h"

_Static_assert(sizeof(struct coll_request) <= sizeof(zero_request), "a request fits");
_Static_assert(sizeof(struct coll_span) == sizeof(zero_span) &&
                   offsetof(struct coll_span, count) == offsetof(zero_span, count),
               "a span is a span");
_Static_assert(BASE_SUM == (int)ZERO_SUM && BASE_MIN == (int)ZERO_MIN && BASE_MAX == (int)ZERO_MAX,
               "an operation is an operation");

/* ------------------------------------------------------------------ waiting */

static struct coll_request *inner(zero_request *request)
{
    return (struct coll_request *)(void *)request;
}

zero_result zero_comm_wait(zero_comm *comm, zero_request *request)
{
    if (!comm)
        return eng_comm_refuse_null("zero_comm_wait");
    if (!request)
        return eng_comm_decline(comm, ZERO_E_INVALID, "zero_comm_wait: the request is NULL");
    return eng_comm_finish(comm, coll_drain(comm->comm, inner(request)));
}

zero_result zero_comm_test(zero_comm *comm, zero_request *request)
{
    if (!comm)
        return eng_comm_refuse_null("zero_comm_test");
    if (!request)
        return eng_comm_decline(comm, ZERO_E_INVALID, "zero_comm_test: the request is NULL");
    const zero_result result = coll_progress(comm->comm);
    if (result)
        return eng_comm_finish(comm, result);
    if (!coll_drained(comm->comm, inner(request)))
        return ZERO_AGAIN;
    return eng_comm_finish(comm, coll_drain(comm->comm, inner(request)));
}

/* ------------------------------------------------------------------ operations */

static const struct coll_span *inner_spans(const zero_span *spans)
{
    return (const struct coll_span *)(const void *)spans;
}

/** Elements, or bytes, in all spans: 0 only if there are none. */
static bool has_any(const zero_comm *comm, const zero_span *spans)
{
    for (int rank = 0; rank < coll_world(comm->comm); rank++)
        if (spans[rank].count > 0)
            return true;
    return false;
}

static bool is_dtype(zero_dtype dtype)
{
    return dtype >= ZERO_F32 && dtype <= ZERO_I64;
}

/** Waits for what a _start call has started. */
static zero_result wait_started(zero_comm *comm, zero_result started, zero_request *request)
{
    return started ? started : zero_comm_wait(comm, request);
}

zero_result zero_comm_barrier(zero_comm *comm)
{
    if (!comm)
        return eng_comm_refuse_null("zero_comm_barrier");
    return eng_comm_finish(comm, coll_barrier(comm->comm));
}

zero_result zero_comm_all_gather_start(zero_comm *comm, const void *source, void *recv,
                                       const zero_span *spans, zero_request *request)
{
    static const char call[] = "zero_comm_all_gather";
    if (!comm || !spans || !request)
        return eng_comm_refuse(comm, call, "%s is NULL", spans ? "request" : "spans");
    if (!recv && has_any(comm, spans))
        return eng_comm_refuse(comm, call, "recv is NULL");
    // Where there are no bytes any address is as good; without one it is another operation.
    const struct coll_all_gather op = {
        .source = source, .recv = recv ? recv : comm, .spans = inner_spans(spans)};
    return eng_comm_finish(comm, coll_all_gather_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_all_gather(zero_comm *comm, const void *source, void *recv,
                                 const zero_span *spans)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_all_gather_start(comm, source, recv, spans, &request),
                        &request);
}

zero_result zero_comm_reduce_scatter_start(zero_comm *comm, const void *source, void *result,
                                           zero_dtype dtype, const zero_span *spans,
                                           zero_request *request)
{
    static const char call[] = "zero_comm_reduce_scatter";
    if (!comm || !spans || !request)
        return eng_comm_refuse(comm, call, "%s is NULL", spans ? "request" : "spans");
    if (!is_dtype(dtype))
        return eng_comm_refuse(comm, call, "%d is no dtype", (int)dtype);
    if (!source && has_any(comm, spans))
        return eng_comm_refuse(comm, call, "source is NULL");
    // Where there are no elements any address is as good.
    const struct coll_reduce_scatter op = {.source = source ? source : comm,
                                           .dtype = dtype,
                                           .spans = inner_spans(spans),
                                           .accumulator = result,
                                           .contributors = coll_world(comm->comm),
                                           .store = true};
    return eng_comm_finish(comm, coll_reduce_scatter_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_reduce_scatter(zero_comm *comm, const void *source, void *result,
                                     zero_dtype dtype, const zero_span *spans)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_reduce_scatter_start(comm, source, result, dtype, spans, &request),
        &request);
}

zero_result zero_comm_all_reduce_start(zero_comm *comm, const void *source, void *result,
                                       size_t count, zero_dtype dtype, zero_op op,
                                       zero_request *request)
{
    static const char call[] = "zero_comm_all_reduce";
    if (!comm || !is_dtype(dtype))
        return eng_comm_refuse(comm, call, "%d is no dtype", (int)dtype);
    if (op < ZERO_SUM || op > ZERO_MAX)
        return eng_comm_refuse(comm, call, "%d is no operation", (int)op);
    if (!request || (count > 0 && (!source || !result)))
        return eng_comm_refuse(comm, call, "source, result or request is NULL");
    const struct coll_all_reduce all_reduce = {
        .source = source, .result = result, .count = count, .dtype = dtype, .op = (enum base_op)op};
    return eng_comm_finish(comm, coll_all_reduce_start(comm->comm, &all_reduce, inner(request)));
}

zero_result zero_comm_all_reduce(zero_comm *comm, const void *source, void *result, size_t count,
                                 zero_dtype dtype, zero_op op)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_all_reduce_start(comm, source, result, count, dtype, op, &request),
        &request);
}

/** Refuses a peer that is none, and bytes that are nowhere. */
static zero_result check_peer(zero_comm *comm, const char *call, const void *data, size_t bytes,
                              int32_t rank, const zero_request *request)
{
    const int world = comm ? coll_world(comm->comm) : 0;
    if (rank < 0 || rank >= world)
        return eng_comm_refuse(comm, call, "there is no rank %d, there are %d", (int)rank, world);
    if (!request || (bytes > 0 && !data))
        return eng_comm_refuse(comm, call, "%s is NULL", request ? "data" : "request");
    return ZERO_OK;
}

zero_result zero_comm_broadcast_start(zero_comm *comm, void *data, size_t bytes, int32_t root,
                                      zero_request *request)
{
    static const char call[] = "zero_comm_broadcast";
    const zero_result refused = check_peer(comm, call, data, bytes, root, request);
    if (refused)
        return refused;
    const struct coll_bulk_broadcast op = {.data = data, .bytes = bytes, .root = root};
    return eng_comm_finish(comm, coll_broadcast_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_broadcast(zero_comm *comm, void *data, size_t bytes, int32_t root)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_broadcast_start(comm, data, bytes, root, &request),
                        &request);
}

zero_result zero_comm_all_to_all_start(zero_comm *comm, const void *source, const zero_span *send,
                                       void *recv, const zero_span *receive, zero_request *request)
{
    static const char call[] = "zero_comm_all_to_all";
    if (!comm || !send || !receive || !request)
        return eng_comm_refuse(comm, call, "send, receive or request is NULL");
    if ((!source && has_any(comm, send)) || (!recv && has_any(comm, receive)))
        return eng_comm_refuse(comm, call, "%s is NULL", recv ? "source" : "recv");
    const struct coll_all_to_all op = {.source = source,
                                       .recv = recv,
                                       .send = inner_spans(send),
                                       .recv_spans = inner_spans(receive)};
    return eng_comm_finish(comm, coll_all_to_all_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_all_to_all(zero_comm *comm, const void *source, const zero_span *send,
                                 void *recv, const zero_span *receive)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_all_to_all_start(comm, source, send, recv, receive, &request), &request);
}

zero_result zero_comm_send_start(zero_comm *comm, const void *data, size_t bytes, int32_t to,
                                 zero_request *request)
{
    static const char call[] = "zero_comm_send";
    const zero_result refused = check_peer(comm, call, data, bytes, to, request);
    if (refused)
        return refused;
    const struct coll_message op = {.data = (void *)(uintptr_t)data, .bytes = bytes, .peer = to};
    return eng_comm_finish(comm, coll_send_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_send(zero_comm *comm, const void *data, size_t bytes, int32_t to)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_send_start(comm, data, bytes, to, &request), &request);
}

zero_result zero_comm_receive_start(zero_comm *comm, void *data, size_t bytes, int32_t from,
                                    zero_request *request)
{
    static const char call[] = "zero_comm_receive";
    const zero_result refused = check_peer(comm, call, data, bytes, from, request);
    if (refused)
        return refused;
    const struct coll_message op = {.data = data, .bytes = bytes, .peer = from};
    return eng_comm_finish(comm, coll_receive_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_receive(zero_comm *comm, void *data, size_t bytes, int32_t from)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_receive_start(comm, data, bytes, from, &request), &request);
}
