#include "base/hash.h"
#include "collectives/gpu/gcomm_internal.h"
#include "collectives/sum/sum.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ all have in common */

static struct coll_signature signature_of(const struct gcomm *device, enum coll_kind kind,
                                          const struct coll_label *label)
{
    struct coll_signature signature;
    memset(&signature, 0, sizeof signature);
    signature.kind = kind;
    signature.number = label->number;
    if (gcomm_is_group(device))
        signature.first = device->whole->started;
    if (label->what)
        memcpy(signature.what, label->what, strnlen(label->what, sizeof signature.what - 1));
    if (label->name)
        memcpy(signature.name, label->name, strnlen(label->name, sizeof signature.name - 1));
    return signature;
}

/** Another section's spans. */
static void sign(struct coll_signature *signature, const struct gcomm *device,
                 const struct coll_span *spans)
{
    signature->spans =
        base_hash64(spans, (size_t)device->host->world * sizeof *spans, signature->spans);
    signature->variant++;
}

/** Whether blocks of one size follow each other in the order of ranks. */
static bool are_even(const struct gcomm *device, const struct coll_span *spans)
{
    for (int rank = 1; rank < device->host->world; rank++)
        if (spans[rank].count != spans[0].count ||
            spans[rank].offset != spans[0].offset + (size_t)rank * spans[0].count)
            return false;
    return true;
}

/** Whether memory is missing for what belongs to anybody. */
static bool is_missing(const struct gcomm *device, const void *memory,
                       const struct coll_span *spans)
{
    for (int rank = 0; rank < device->host->world; rank++)
        if (!memory && spans[rank].count > 0)
            return true;
    return false;
}

/** An operation of a caller whose arguments can't be: the other ranks would wait for it. */
static zero_result refuse(struct gcomm *device, const struct coll_signature *signature,
                          const char *why)
{
    char text[COLL_TEXT_BYTES];
    zero_result result = coll_failed(device->host);
    if (result)
        return result;
    coll_signature_text(signature, device->started + 1, text);
    char message[COLL_MESSAGE_BYTES];
    const int used = gcomm_text_begin(device, message);
    snprintf(message + used, sizeof message - (size_t)used, "rank %d: %s on %s: %s",
             coll_root_rank(device->host, device->host->rank), text, device->where, why);
    coll_poison(device->host, ZERO_E_INVALID, message);
    return coll_failed(device->host);
}

/** What an operation is made of: gives it to the transport, between its begin() and end(). */
typedef zero_result (*give_fn)(struct gcomm *device, const void *op, struct base_error *error);

static zero_result enqueue(struct gcomm *device, const struct coll_signature *signature,
                           uint64_t bytes, give_fn give, const void *op, uint64_t *ticket)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = coll_failed(device->host);
    if (ticket)
        *ticket = 0;
    if (result)
        return result;
    result = device->kind->enter(device->number, &inner);
    if (result)
        return gcomm_fail(device, result, device->started, "%s", inner.message);
    result = gcomm_begin(device, signature, bytes);
    if (!result) {
        zero_result given = device->transport->begin(device->link, &inner);
        if (!given) {
            given = give(device, op, &inner);
            const zero_result ended = device->transport->end(device->link, given ? NULL : &inner);
            given = given ? given : ended;
        }
        result = gcomm_end(device, given, &inner, ticket);
    }
    device->kind->leave();
    return result;
}

static const char *at(const void *memory, size_t offset)
{
    return (const char *)memory + offset;
}

/* ------------------------------------------------------------------ all-gather */

static zero_result gather_unevenly(struct gcomm *device, const struct gcomm_gathered *section,
                                   struct base_error *error)
{
    const struct gcomm_transport *transport = device->transport;
    const int mine = device->host->rank, world = device->host->world;
    const struct coll_span *spans = section->spans;
    char *const own = (char *)section->whole + spans[mine].offset;
    zero_result result = ZERO_OK;
    if (own != section->source && spans[mine].count > 0)
        result = device->kind->copy(own, section->source, spans[mine].count, device->stream, error);
    // From the next rank on, so that not all begin with the same one.
    for (int k = 1; k < world && !result; k++) {
        const int to = (mine + k) % world, from = (mine + world - k) % world;
        if (spans[mine].count > 0)
            result = transport->send(device->link, section->source, spans[mine].count, to,
                                     device->stream, error);
        if (spans[from].count > 0 && !result)
            result = transport->receive(device->link, (char *)section->whole + spans[from].offset,
                                        spans[from].count, from, device->stream, error);
    }
    return result;
}

static zero_result give_all_gather(struct gcomm *device, const void *op, struct base_error *error)
{
    const struct gcomm_all_gather *gather = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < gather->count && !result; i++) {
        const struct gcomm_gathered *section = &gather->sections[i];
        if (!are_even(device, section->spans))
            result = gather_unevenly(device, section, error);
        else if (section->spans[0].count > 0)
            result = device->transport->all_gather(
                device->link, section->source, (char *)section->whole + section->spans[0].offset,
                section->spans[0].count, device->stream, error);
    }
    return result;
}

static zero_result all_gather(struct gcomm *device, const struct gcomm_all_gather *op,
                              enum coll_kind kind, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(device, kind, &op->label);
    uint64_t bytes = 0;
    for (size_t i = 0; i < op->count; i++) {
        const struct gcomm_gathered *section = &op->sections[i];
        if (!coll_spans_fit(device->host, section->spans, 1))
            return refuse(device, &signature, COLL_SPANS_TOO_LONG);
        if (is_missing(device, section->whole, section->spans) ||
            (!section->source && section->spans[device->host->rank].count > 0))
            return refuse(device, &signature, "no memory");
        sign(&signature, device, section->spans);
        bytes += section->spans[device->host->rank].count;
    }
    return enqueue(device, &signature, bytes, give_all_gather, op, ticket);
}

zero_result gcomm_all_gather(struct gcomm *device, const struct gcomm_all_gather *op,
                             uint64_t *ticket)
{
    return all_gather(device, op, COLL_ALL_GATHER, ticket);
}

struct exchange {
    const void *mine;
    size_t bytes;
    void *all;
};

static zero_result give_exchange(struct gcomm *device, const void *op, struct base_error *error)
{
    const struct exchange *exchange = op;
    return exchange->bytes > 0
               ? device->transport->all_gather(device->link, exchange->mine, exchange->all,
                                               exchange->bytes, device->stream, error)
               : ZERO_OK;
}

zero_result gcomm_exchange(struct gcomm *device, const void *mine, size_t bytes, void *all,
                           struct coll_label label, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(device, COLL_EXCHANGE, &label);
    signature.bytes = bytes;
    if (bytes > SIZE_MAX / 2 / (size_t)device->host->world)
        return refuse(device, &signature, COLL_SPANS_TOO_LONG);
    if (bytes > 0 && (!mine || !all))
        return refuse(device, &signature, "no memory");
    return enqueue(device, &signature, bytes, give_exchange, &(struct exchange){mine, bytes, all},
                   ticket);
}

/* ------------------------------------------------------------------ to the owners */

static zero_result scatter_section(struct gcomm *device, const struct gcomm_scatter *op,
                                   const struct gcomm_scattered *section, struct base_error *error)
{
    const struct gcomm_transport *transport = device->transport;
    const int mine = device->host->rank, world = device->host->world;
    const struct coll_span *spans = section->spans;
    zero_result result = ZERO_OK;
    for (int k = 1; k < world && !result; k++) {
        const int to = (mine + k) % world, from = (mine + world - k) % world;
        if (mine < op->contributors && spans[to].count > 0)
            result = transport->send(device->link, at(section->source, spans[to].offset),
                                     spans[to].count, to, device->stream, error);
        if (from < op->contributors && spans[mine].count > 0 && !result)
            result = transport->receive(device->link,
                                        (char *)section->received + (size_t)from * section->stride,
                                        spans[mine].count, from, device->stream, error);
    }
    return result;
}

static zero_result give_scatter(struct gcomm *device, const void *op, struct base_error *error)
{
    const struct gcomm_scatter *scatter = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < scatter->count && !result; i++)
        result = scatter_section(device, scatter, &scatter->sections[i], error);
    return result;
}

static const char *scatter_trouble(const struct gcomm *device, const struct gcomm_scatter *op,
                                   const struct gcomm_scattered *section)
{
    const size_t own = section->spans[device->host->rank].count;
    if (!coll_spans_fit(device->host, section->spans, 1))
        return COLL_SPANS_TOO_LONG;
    if ((own > 0 && !section->received && device->host->world > 1) ||
        (device->host->rank < op->contributors &&
         is_missing(device, section->source, section->spans)))
        return "no memory";
    if (own > section->stride)
        return "the stride is less than what a rank owns";
    return NULL;
}

zero_result gcomm_scatter(struct gcomm *device, const struct gcomm_scatter *op, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(device, COLL_ALL_TO_ALL, &op->label);
    uint64_t bytes = 0;
    signature.contributors = op->contributors;
    if (op->contributors < 1 || op->contributors > device->host->world)
        return refuse(device, &signature, "so many contributors there are not");
    for (size_t i = 0; i < op->count; i++) {
        const char *trouble = scatter_trouble(device, op, &op->sections[i]);
        if (trouble)
            return refuse(device, &signature, trouble);
        sign(&signature, device, op->sections[i].spans);
        bytes += op->sections[i].spans[device->host->rank].count;
    }
    return enqueue(device, &signature, bytes, give_scatter, op, ticket);
}

/* ------------------------------------------------------------------ sums */

static zero_result reduce_section(struct gcomm *device, const struct gcomm_reduce_scatter *op,
                                  const struct gcomm_reduced *section, struct base_error *error)
{
    const struct gcomm_transport *transport = device->transport;
    const struct coll_span *spans = section->spans;
    const size_t size = coll_dtype_bytes(op->dtype);
    zero_result result = ZERO_OK;
    if (are_even(device, spans))
        return spans[0].count == 0
                   ? ZERO_OK
                   : transport->reduce_scatter(
                         device->link, at(section->source, spans[0].offset * size), section->sum,
                         spans[0].count, op->dtype, device->stream, error);
    for (int rank = 0; rank < device->host->world && !result; rank++)
        if (spans[rank].count > 0)
            result = transport->reduce(device->link, at(section->source, spans[rank].offset * size),
                                       rank == device->host->rank ? section->sum : NULL,
                                       spans[rank].count, op->dtype, rank, device->stream, error);
    return result;
}

static zero_result give_reduce_scatter(struct gcomm *device, const void *op,
                                       struct base_error *error)
{
    const struct gcomm_reduce_scatter *reduce = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < reduce->count && !result; i++)
        result = reduce_section(device, reduce, &reduce->sections[i], error);
    return result;
}

zero_result gcomm_reduce_scatter(struct gcomm *device, const struct gcomm_reduce_scatter *op,
                                 uint64_t *ticket)
{
    struct coll_signature signature = signature_of(device, COLL_REDUCE_SCATTER, &op->label);
    const size_t size = coll_dtype_bytes(op->dtype);
    uint64_t bytes = 0;
    signature.dtype = (uint32_t)op->dtype;
    if (size == 0)
        return refuse(device, &signature, "no such dtype");
    for (size_t i = 0; i < op->count; i++) {
        const struct gcomm_reduced *section = &op->sections[i];
        const size_t own = section->spans[device->host->rank].count;
        if (!coll_spans_fit(device->host, section->spans, size))
            return refuse(device, &signature, COLL_SPANS_TOO_LONG);
        if (is_missing(device, section->source, section->spans) || (!section->sum && own > 0))
            return refuse(device, &signature, "no memory");
        sign(&signature, device, section->spans);
        bytes += own * size;
    }
    return enqueue(device, &signature, bytes, give_reduce_scatter, op, ticket);
}

/* ------------------------------------------------------------------ broadcast */

struct broadcast {
    void *data;
    size_t bytes;
    int root;
};

static zero_result give_broadcast(struct gcomm *device, const void *op, struct base_error *error)
{
    const struct broadcast *broadcast = op;
    return broadcast->bytes > 0
               ? device->transport->broadcast(device->link, broadcast->data, broadcast->bytes,
                                              broadcast->root, device->stream, error)
               : ZERO_OK;
}

zero_result gcomm_broadcast(struct gcomm *device, void *data, size_t bytes, int root,
                            struct coll_label label, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(device, COLL_BROADCAST_BULK, &label);
    signature.bytes = bytes;
    signature.root = root;
    if (root < 0 || root >= device->host->world)
        return refuse(device, &signature, "there is no such root");
    if (bytes > 0 && !data)
        return refuse(device, &signature, "no memory");
    return enqueue(device, &signature, bytes, give_broadcast,
                   &(struct broadcast){data, bytes, root}, ticket);
}
