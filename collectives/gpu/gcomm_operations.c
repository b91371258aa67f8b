#include "base/hash.h"
#include "base/kernels/sum.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ all have in common */

static struct coll_signature signature_of(enum coll_kind kind, const struct coll_label *label)
{
    assert(kind > COLL_NONE && kind < COLL_KINDS);
    struct coll_signature signature;
    memset(&signature, 0, sizeof signature);
    signature.kind = kind;
    coll_signature_label(&signature, label);
    return signature;
}

/** Another bucket's spans. */
static void sign(struct coll_signature *signature, const struct gcomm *gcomm,
                 const struct coll_span *spans)
{
    signature->spans =
        base_hash64(spans, (size_t)gcomm->host->world * sizeof *spans, signature->spans);
    signature->variant++;
}

/** Whether blocks of one size follow each other in the order of ranks. */
static bool are_even(const struct gcomm *gcomm, const struct coll_span *spans)
{
    for (int rank = 1; rank < gcomm->host->world; rank++)
        if (spans[rank].count != spans[0].count ||
            spans[rank].offset != spans[0].offset + (size_t)rank * spans[0].count)
            return false;
    return true;
}

/** Whether memory is missing although some rank's span has elements. */
static bool is_missing(const struct gcomm *gcomm, const void *memory, const struct coll_span *spans)
{
    for (int rank = 0; rank < gcomm->host->world; rank++)
        if (!memory && spans[rank].count > 0)
            return true;
    return false;
}

/** An operation of a caller whose arguments can't be: the other ranks would wait for it. */
static zero_result refuse(struct gcomm *gcomm, const struct coll_signature *signature,
                          const char *why)
{
    char text[COLL_TEXT_BYTES];
    zero_result result = coll_failed(gcomm->host);
    if (result)
        return result;
    coll_signature_text(signature, gcomm->started + 1, text);
    coll_declare(gcomm->host, ZERO_E_INVALID, "rank %d: %s on %s: %s", gcomm->host->rank, text,
                 gcomm->where, why);
    return coll_failed(gcomm->host);
}

/** What an operation is made of: gives it to the transport, between its begin() and end(). */
typedef zero_result (*give_fn)(struct gcomm *gcomm, const void *op, struct base_error *error);

static zero_result enqueue(struct gcomm *gcomm, const struct coll_signature *signature,
                           uint64_t bytes, give_fn give, const void *op, uint64_t *ticket)
{
    assert(give && op);
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = coll_failed(gcomm->host);
    if (ticket)
        *ticket = 0;
    if (result)
        return result;
    result = gcomm->kind->enter(gcomm->number, &inner);
    if (result)
        return gcomm_fail(gcomm, result, gcomm->started, "%s", inner.message);
    result = gcomm_begin(gcomm, signature, bytes);
    if (!result) {
        zero_result given = gcomm->transport->begin(gcomm->link, &inner);
        if (!given) {
            given = give(gcomm, op, &inner);
            const zero_result ended = gcomm->transport->end(gcomm->link, given ? NULL : &inner);
            given = given ? given : ended;
        }
        result = gcomm_end(gcomm, given, &inner, ticket);
    }
    gcomm->kind->leave();
    return result;
}

static const char *at(const void *memory, size_t offset)
{
    return (const char *)memory + offset;
}

/* ------------------------------------------------------------------ all-gather */

static zero_result gather_unevenly(struct gcomm *gcomm, const struct gcomm_gathered *bucket,
                                   struct base_error *error)
{
    const struct gcomm_transport *transport = gcomm->transport;
    const int mine = gcomm->host->rank, world = gcomm->host->world;
    const struct coll_span *spans = bucket->spans;
    char *const own = (char *)bucket->whole + spans[mine].offset;
    zero_result result = ZERO_OK;
    if (own != bucket->source && spans[mine].count > 0)
        result = gcomm->kind->copy(own, bucket->source, spans[mine].count, gcomm->stream, error);
    // From the next rank on, so that not all begin with the same one.
    for (int k = 1; k < world && !result; k++) {
        const int to = (mine + k) % world, from = (mine + world - k) % world;
        if (spans[mine].count > 0)
            result = transport->send(gcomm->link, bucket->source, spans[mine].count, to,
                                     gcomm->stream, error);
        if (spans[from].count > 0 && !result)
            result = transport->receive(gcomm->link, (char *)bucket->whole + spans[from].offset,
                                        spans[from].count, from, gcomm->stream, error);
    }
    return result;
}

static zero_result give_all_gather(struct gcomm *gcomm, const void *op, struct base_error *error)
{
    const struct gcomm_all_gather *gather = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < gather->count && !result; i++) {
        const struct gcomm_gathered *bucket = &gather->buckets[i];
        if (!are_even(gcomm, bucket->spans))
            result = gather_unevenly(gcomm, bucket, error);
        else if (bucket->spans[0].count > 0)
            result = gcomm->transport->all_gather(gcomm->link, bucket->source,
                                                  (char *)bucket->whole + bucket->spans[0].offset,
                                                  bucket->spans[0].count, gcomm->stream, error);
    }
    return result;
}

static zero_result all_gather(struct gcomm *gcomm, const struct gcomm_all_gather *op,
                              enum coll_kind kind, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(kind, &op->label);
    uint64_t bytes = 0;
    for (size_t i = 0; i < op->count; i++) {
        const struct gcomm_gathered *bucket = &op->buckets[i];
        if (!coll_spans_fit(gcomm->host, bucket->spans, 1))
            return refuse(gcomm, &signature, COLL_SPANS_TOO_LONG);
        if (is_missing(gcomm, bucket->whole, bucket->spans) ||
            (!bucket->source && bucket->spans[gcomm->host->rank].count > 0))
            return refuse(gcomm, &signature, "no memory");
        sign(&signature, gcomm, bucket->spans);
        bytes += bucket->spans[gcomm->host->rank].count;
    }
    return enqueue(gcomm, &signature, bytes, give_all_gather, op, ticket);
}

zero_result gcomm_all_gather(struct gcomm *gcomm, const struct gcomm_all_gather *op,
                             uint64_t *ticket)
{
    return all_gather(gcomm, op, COLL_ALL_GATHER, ticket);
}

struct exchange {
    const void *mine;
    size_t bytes;
    void *all;
};

static zero_result give_exchange(struct gcomm *gcomm, const void *op, struct base_error *error)
{
    const struct exchange *exchange = op;
    return exchange->bytes > 0
               ? gcomm->transport->all_gather(gcomm->link, exchange->mine, exchange->all,
                                              exchange->bytes, gcomm->stream, error)
               : ZERO_OK;
}

zero_result gcomm_exchange(struct gcomm *gcomm, const void *mine, size_t bytes, void *all,
                           struct coll_label label, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(COLL_EXCHANGE, &label);
    signature.bytes = bytes;
    if (bytes > SIZE_MAX / 2 / (size_t)gcomm->host->world)
        return refuse(gcomm, &signature, COLL_SPANS_TOO_LONG);
    if (bytes > 0 && (!mine || !all))
        return refuse(gcomm, &signature, "no memory");
    return enqueue(gcomm, &signature, bytes, give_exchange, &(struct exchange){mine, bytes, all},
                   ticket);
}

/* ------------------------------------------------------------------ to the owners */

static zero_result scatter_bucket(struct gcomm *gcomm, const struct gcomm_scatter *op,
                                  const struct gcomm_scattered *bucket, struct base_error *error)
{
    assert(op->contributors >= 1 && op->contributors <= gcomm->host->world);
    const struct gcomm_transport *transport = gcomm->transport;
    const int mine = gcomm->host->rank, world = gcomm->host->world;
    const struct coll_span *spans = bucket->spans;
    zero_result result = ZERO_OK;
    for (int k = 1; k < world && !result; k++) {
        const int to = (mine + k) % world, from = (mine + world - k) % world;
        if (mine < op->contributors && spans[to].count > 0)
            result = transport->send(gcomm->link, at(bucket->source, spans[to].offset),
                                     spans[to].count, to, gcomm->stream, error);
        if (from < op->contributors && spans[mine].count > 0 && !result)
            result = transport->receive(gcomm->link,
                                        (char *)bucket->received + (size_t)from * bucket->stride,
                                        spans[mine].count, from, gcomm->stream, error);
    }
    return result;
}

static zero_result give_scatter(struct gcomm *gcomm, const void *op, struct base_error *error)
{
    const struct gcomm_scatter *scatter = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < scatter->count && !result; i++)
        result = scatter_bucket(gcomm, scatter, &scatter->buckets[i], error);
    return result;
}

static const char *scatter_trouble(const struct gcomm *gcomm, const struct gcomm_scatter *op,
                                   const struct gcomm_scattered *bucket)
{
    const size_t own = bucket->spans[gcomm->host->rank].count;
    if (!coll_spans_fit(gcomm->host, bucket->spans, 1))
        return COLL_SPANS_TOO_LONG;
    if ((own > 0 && !bucket->received && gcomm->host->world > 1) ||
        (gcomm->host->rank < op->contributors && is_missing(gcomm, bucket->source, bucket->spans)))
        return "no memory";
    if (own > bucket->stride)
        return "the stride is less than what a rank owns";
    return NULL;
}

zero_result gcomm_scatter(struct gcomm *gcomm, const struct gcomm_scatter *op, uint64_t *ticket)
{
    struct coll_signature signature = signature_of(COLL_ALL_TO_ALL, &op->label);
    uint64_t bytes = 0;
    signature.contributors = op->contributors;
    if (op->contributors < 1 || op->contributors > gcomm->host->world)
        return refuse(gcomm, &signature, "there are not so many contributors");
    for (size_t i = 0; i < op->count; i++) {
        const char *trouble = scatter_trouble(gcomm, op, &op->buckets[i]);
        if (trouble)
            return refuse(gcomm, &signature, trouble);
        sign(&signature, gcomm, op->buckets[i].spans);
        bytes += op->buckets[i].spans[gcomm->host->rank].count;
    }
    return enqueue(gcomm, &signature, bytes, give_scatter, op, ticket);
}

/* ------------------------------------------------------------------ sums */

static zero_result reduce_bucket(struct gcomm *gcomm, const struct gcomm_reduce_scatter *op,
                                 const struct gcomm_reduced *bucket, struct base_error *error)
{
    const struct gcomm_transport *transport = gcomm->transport;
    const struct coll_span *spans = bucket->spans;
    const size_t size = base_dtype_bytes(op->dtype);
    assert(size > 0);
    zero_result result = ZERO_OK;
    if (are_even(gcomm, spans))
        return spans[0].count == 0
                   ? ZERO_OK
                   : transport->reduce_scatter(
                         gcomm->link, at(bucket->source, spans[0].offset * size), bucket->sum,
                         spans[0].count, op->dtype, gcomm->stream, error);
    for (int rank = 0; rank < gcomm->host->world && !result; rank++)
        if (spans[rank].count > 0)
            result = transport->reduce(gcomm->link, at(bucket->source, spans[rank].offset * size),
                                       rank == gcomm->host->rank ? bucket->sum : NULL,
                                       spans[rank].count, op->dtype, rank, gcomm->stream, error);
    return result;
}

static zero_result give_reduce_scatter(struct gcomm *gcomm, const void *op,
                                       struct base_error *error)
{
    const struct gcomm_reduce_scatter *reduce = op;
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < reduce->count && !result; i++)
        result = reduce_bucket(gcomm, reduce, &reduce->buckets[i], error);
    return result;
}

zero_result gcomm_reduce_scatter(struct gcomm *gcomm, const struct gcomm_reduce_scatter *op,
                                 uint64_t *ticket)
{
    struct coll_signature signature = signature_of(COLL_REDUCE_SCATTER, &op->label);
    const size_t size = base_dtype_bytes(op->dtype);
    uint64_t bytes = 0;
    signature.dtype = (uint32_t)op->dtype;
    if (size == 0)
        return refuse(gcomm, &signature, "no such dtype");
    for (size_t i = 0; i < op->count; i++) {
        const struct gcomm_reduced *bucket = &op->buckets[i];
        const size_t own = bucket->spans[gcomm->host->rank].count;
        if (!coll_spans_fit(gcomm->host, bucket->spans, size))
            return refuse(gcomm, &signature, COLL_SPANS_TOO_LONG);
        if (is_missing(gcomm, bucket->source, bucket->spans) || (!bucket->sum && own > 0))
            return refuse(gcomm, &signature, "no memory");
        sign(&signature, gcomm, bucket->spans);
        bytes += own * size;
    }
    return enqueue(gcomm, &signature, bytes, give_reduce_scatter, op, ticket);
}
