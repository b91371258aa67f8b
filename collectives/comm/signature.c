#include "collectives/comm/signature.h"

#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char kind_names[COLL_KINDS][COLL_KIND_BYTES] = {
    [COLL_NONE] = "nothing",
    [COLL_ALL_GATHER] = "all-gather",
    [COLL_REDUCE_SCATTER] = "reduce-scatter",
    [COLL_ALL_REDUCE_BULK] = "all-reduce",
    [COLL_BROADCAST_BULK] = "broadcast",
    [COLL_ALL_TO_ALL] = "all-to-all",
    [COLL_EXCHANGE] = "exchange",
    [COLL_ALL_REDUCE] = "all-reduce",
    [COLL_BROADCAST] = "broadcast",
    [COLL_BARRIER] = "barrier",
    [COLL_SEND] = "send",
    [COLL_RECEIVE] = "receive",
};

const char *coll_kind_name(uint32_t kind)
{
    return kind_names[kind < COLL_KINDS ? kind : COLL_NONE];
}

/** Copies a text, cut where it does not fit, to zeros. */
static void sign_text(char *to, size_t size, const char *text)
{
    assert(size > 0);
    if (text)
        memcpy(to, text, strnlen(text, size - 1));
}

void coll_signature_label(struct coll_signature *signature, const struct coll_label *label)
{
    signature->number = label->number;
    sign_text(signature->what, sizeof signature->what, label->what);
    sign_text(signature->name, sizeof signature->name, label->name);
}

static void sign_bulk(struct coll_signature *signature, const struct coll_comm *comm,
                      const struct coll_span *spans, const struct coll_label *label)
{
    signature->spans = base_hash64(spans, (size_t)comm->world * sizeof *spans, 0);
    coll_signature_label(signature, label);
}

static void sign_small(struct coll_signature *signature, const struct coll_request *request)
{
    const struct coll_small *small = (const struct coll_small *)request;
    signature->bytes = small->bytes;
    signature->root = small->root;
    signature->variant = (uint32_t)small->op;
}

void coll_signature_make(struct coll_signature *signature, const struct coll_comm *comm,
                         const struct coll_request *request)
{
    assert(request->kind > COLL_NONE && request->kind < COLL_KINDS);
    memset(signature, 0, sizeof *signature);
    signature->kind = request->kind;
    if (request->kind == COLL_ALL_GATHER) {
        const struct coll_all_gather *op = &request->op.all_gather;
        sign_bulk(signature, comm, op->spans, &op->label);
        signature->variant = !op->recv;
        signature->together = op->together;
    } else if (request->kind == COLL_BROADCAST_BULK) {
        const struct coll_bulk_broadcast *op = &request->op.broadcast;
        signature->bytes = op->bytes;
        signature->root = op->root;
        coll_signature_label(signature, &op->label);
    } else if (request->kind == COLL_ALL_TO_ALL) {
        coll_signature_label(signature, &request->op.all_to_all.label);
    } else if (request->kind == COLL_REDUCE_SCATTER) {
        const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
        sign_bulk(signature, comm, op->spans, &op->label);
        signature->dtype = (uint32_t)op->dtype;
        signature->contributors = op->contributors;
        signature->together = op->together;
        if (op->sum_group > 1) {
            signature->variant = op->last;
            signature->sum_group = op->sum_group;
            signature->first = op->first;
        } else {
            signature->variant = op->store;
        }
    } else if (request->kind == COLL_ALL_REDUCE_BULK) {
        const struct coll_all_reduce *op = &request->op.all_reduce;
        signature->dtype = (uint32_t)op->dtype;
        signature->bytes = op->count;
        signature->variant = (uint32_t)op->op;
        coll_signature_label(signature, &op->label);
    } else if (coll_is_message(request)) {
        const struct coll_message *op = &request->op.message;
        signature->bytes = op->bytes;
        signature->root = coll_root_rank(comm, op->peer);
        coll_signature_label(signature, &op->label);
    } else {
        sign_small(signature, request);
    }
}

void coll_signature_end(struct coll_signature *signature)
{
    signature->what[sizeof signature->what - 1] = '\0';
    signature->name[sizeof signature->name - 1] = '\0';
}

uint64_t coll_signature_digest(const struct coll_signature *signature)
{
    // All that small operations can differ in fits: bytes in 24 bits, root in 24, the others in 8.
    assert(!coll_kind_is_small(signature->kind) ||
           (signature->bytes >> 24 == 0 && signature->root >= 0 && signature->root >> 24 == 0));
    if (coll_kind_is_small(signature->kind))
        return (uint64_t)signature->kind << 56 | (uint64_t)signature->variant << 48 |
               (uint64_t)(uint32_t)signature->root << 24 | signature->bytes;
    return base_hash64(signature, sizeof *signature, 0) | UINT64_C(1) << 63;
}

void coll_signature_text(const struct coll_signature *signature, uint64_t sequence,
                         char text[COLL_TEXT_BYTES])
{
    int used =
        snprintf(text, COLL_TEXT_BYTES, "%s #%" PRIu64, coll_kind_name(signature->kind), sequence);
    if (signature->kind == COLL_SEND || signature->kind == COLL_RECEIVE)
        used += snprintf(text + used, COLL_TEXT_BYTES - (size_t)used, " of %" PRIu64 " bytes %s %d",
                         signature->bytes, signature->kind == COLL_SEND ? "to" : "from",
                         signature->root);
    if (signature->what[0])
        used += snprintf(text + used, COLL_TEXT_BYTES - (size_t)used, ", %s %" PRIu32,
                         signature->what, signature->number);
    assert(used > 0 && used < COLL_TEXT_BYTES);
    if (signature->name[0])
        snprintf(text + used, COLL_TEXT_BYTES - (size_t)used, " (%s)", signature->name);
}

/** A number that two calls may give differently. */
struct field {
    const char *name;
    int64_t a, b;
};

/** "": the texts of the two differ already. */
static void difference_text(const struct coll_signature *a, const struct coll_signature *b,
                            char text[COLL_DIFFERENCE_BYTES])
{
    const struct field fields[] = {
        {"size", (int64_t)a->bytes, (int64_t)b->bytes},
        {"root", a->root, b->root},
        {"dtype", a->dtype, b->dtype},
        {"number of contributors", a->contributors, b->contributors},
        {"sum_group", a->sum_group, b->sum_group},
        {"first contribution", (int64_t)a->first, (int64_t)b->first},
        {"variant", a->variant, b->variant},
    };
    text[0] = '\0';
    if (a->kind != b->kind || a->number != b->number ||
        memcmp(a->what, b->what, sizeof a->what) != 0 ||
        memcmp(a->name, b->name, sizeof a->name) != 0)
        return;
    if (a->spans != b->spans) {
        snprintf(text, COLL_DIFFERENCE_BYTES, ", with other spans");
        return;
    }
    if (a->together != b->together) {
        snprintf(text, COLL_DIFFERENCE_BYTES,
                 a->kind == COLL_ALL_GATHER
                     ? ", and only one of them into memory of its host"
                     : ", and only one of them waits for all ranks, as in a fused step");
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].a == fields[i].b)
            continue;
        snprintf(text, COLL_DIFFERENCE_BYTES, ", with another %s: %" PRId64 " and %" PRId64,
                 fields[i].name, fields[i].a, fields[i].b);
        return;
    }
    snprintf(text, COLL_DIFFERENCE_BYTES, ", after something else");
}

void coll_signatures_text(int rank, const struct coll_signature *mine, int peer,
                          const struct coll_signature *theirs, uint64_t sequence,
                          char text[COLL_MESSAGE_BYTES])
{
    char own[COLL_TEXT_BYTES], other[COLL_TEXT_BYTES], difference[COLL_DIFFERENCE_BYTES];
    coll_signature_text(mine, sequence, own);
    coll_signature_text(theirs, sequence, other);
    difference_text(mine, theirs, difference);
    snprintf(text, COLL_MESSAGE_BYTES, "rank %d called %s, rank %d called %s%s", rank, own, peer,
             other, difference);
}
