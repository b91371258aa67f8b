// A transport over the host's communicator: what is moved goes through the host's memory, and is
// there when the call returns. For ranks that share a device, which NCCL refuses, and where it is
// not.

#include "base/arena.h"
#include "base/kernels/sum.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <string.h>

enum {
    PLACE = 64, // of what begins in the staging memory
    LEAST_MOVES = 16,
};

enum move_kind { ALL_GATHER, SEND, RECEIVE, REDUCE_SCATTER, REDUCE };

struct move {
    enum move_kind kind;
    const char *from;
    char *to;
    size_t bytes; /**< of a block; of a sum its elements */
    zero_dtype dtype;
    int rank;  /**< root, or peer */
    size_t at; /**< in the staging memory */
    struct coll_request request;
};

struct link {
    struct coll_comm *host;
    const struct base_device *kind;
    void *stream;
    struct move *moves; /**< of the launch that is being given */
    size_t count, most;
    size_t drained;   /**< of them; while there are others the launch is in progress */
    pthread_t caller; /**< who gives it, and uses the host's communicator */
    char *staging;
    size_t bytes;
};

/* ------------------------------------------------------------------ beginning and end */

static zero_result staged_prepare(const struct gcomm_config *config, struct base_error *error)
{
    return config->nccl_comm
               ? zero_fail(error, ZERO_E_INVALID,
                           "transport host has no use for a communicator that is given")
               : ZERO_OK;
}

/** A move a bucket and peer each way, whose bytes begin at a place of their own; and the spans
 * that a gather has. */
static size_t staged_memory(int world, const struct gcomm_load *most)
{
    assert(world >= 1);
    const size_t moves = 2 * most->buckets * (size_t)world;
    const size_t spans = most->buckets * (size_t)world * sizeof(struct coll_span);
    const size_t listed = moves > LEAST_MOVES / 2 ? 2 * moves : LEAST_MOVES;
    return sizeof(struct link) + listed * sizeof(struct move) + most->sent + most->received +
           spans + moves * PLACE;
}

static zero_result staged_identify(unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    (void)id;
    (void)error;
    return ZERO_OK;
}

static zero_result staged_join(void **to, const struct gcomm_config *config,
                               const unsigned char id[GCOMM_ID_BYTES], struct base_error *error)
{
    struct link *link = base_calloc(1, sizeof *link);
    (void)id;
    *to = link;
    if (!link)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes", sizeof *link);
    link->host = config->host;
    link->kind = config->device;
    return ZERO_OK;
}

static zero_result staged_abort(const struct gcomm_abort *only, struct base_error *error)
{
    struct link *link = only->link;
    if (!link)
        return ZERO_OK;
    const zero_result result = link->staging ? link->kind->stream_sync(link->stream, error)
                                             : ZERO_OK; // which may be copying from there
    base_free(link->staging);
    base_free(link->moves);
    base_free(link);
    return result;
}

/* ------------------------------------------------------------------ a launch */

static size_t staged_bytes(const struct link *link, const struct move *move)
{
    const size_t world = (size_t)link->host->world;
    switch (move->kind) {
    case ALL_GATHER:
        return move->bytes * world + world * sizeof(struct coll_span);
    case REDUCE_SCATTER:
        return move->bytes * base_dtype_bytes(move->dtype) * world;
    case REDUCE:
        return move->bytes * base_dtype_bytes(move->dtype);
    default:
        return move->bytes;
    }
}

/** Where a move's bytes are, behind the spans that a gather has. */
static char *data_of(const struct link *link, const struct move *move)
{
    assert(link->staging && move->at + staged_bytes(link, move) <= link->bytes);
    const size_t world = (size_t)link->host->world;
    return link->staging + move->at +
           (move->kind == ALL_GATHER ? world * sizeof(struct coll_span) : 0);
}

/** A place in the staging memory for each move; that grows with the largest launch so far. */
static zero_result place(struct link *link, struct base_error *error)
{
    size_t bytes = 0;
    for (size_t i = 0; i < link->count; i++) {
        link->moves[i].at = bytes;
        bytes += (staged_bytes(link, &link->moves[i]) + PLACE - 1) / PLACE * PLACE;
    }
    if (bytes <= link->bytes)
        return ZERO_OK;
    const zero_result result =
        link->staging ? link->kind->stream_sync(link->stream, error) : ZERO_OK;
    if (result)
        return result;
    base_free(link->staging);
    link->staging = base_calloc(1, bytes);
    link->bytes = link->staging ? bytes : 0;
    return link->staging
               ? ZERO_OK
               : zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes on the host", bytes);
}

/** This rank's part of what a move reads, to the host's memory. */
static zero_result bring(const struct link *link, const struct move *move, struct base_error *error)
{
    assert(move->kind <= REDUCE);
    char *to = data_of(link, move);
    size_t bytes = staged_bytes(link, move);
    if (move->kind == ALL_GATHER) {
        bytes = move->bytes;
        to += (size_t)link->host->rank * bytes;
    }
    if (move->kind == RECEIVE)
        return ZERO_OK;
    return link->kind->copy(to, move->from, bytes, link->stream, error);
}

/** What a gather has brought. Its own part of it is where it was, if it was there: others may be
 * reading that. */
static zero_result return_gather(const struct link *link, const struct move *move,
                                 struct base_error *error)
{
    assert(move->kind == ALL_GATHER);
    const char *from = data_of(link, move);
    char *to = move->to;
    const size_t all = move->bytes * (size_t)link->host->world;
    const size_t own = move->bytes * (size_t)link->host->rank, behind = own + move->bytes;
    if (move->from != to + own)
        return link->kind->copy(to, from, all, link->stream, error);
    const zero_result r = own > 0 ? link->kind->copy(to, from, own, link->stream, error) : ZERO_OK;
    return r || behind == all
               ? r
               : link->kind->copy(to + behind, from + behind, all - behind, link->stream, error);
}

/** What a move writes, back. */
static zero_result return_it(const struct link *link, const struct move *move,
                             struct base_error *error)
{
    const char *from = data_of(link, move);
    const size_t world = (size_t)link->host->world, rank = (size_t)link->host->rank;
    size_t bytes = staged_bytes(link, move);
    if (move->kind == SEND || (move->kind == REDUCE && move->rank != link->host->rank))
        return ZERO_OK;
    if (move->kind == ALL_GATHER)
        return return_gather(link, move, error);
    if (move->kind == REDUCE_SCATTER) {
        bytes /= world;
        from += rank * bytes;
    }
    return link->kind->copy(move->to, from, bytes, link->stream, error);
}

static zero_result start_gather(struct link *link, struct move *move)
{
    assert(move->kind == ALL_GATHER);
    struct coll_span *spans = (struct coll_span *)(void *)(link->staging + move->at);
    char *const data = data_of(link, move);
    for (int rank = 0; rank < link->host->world; rank++)
        spans[rank] = (struct coll_span){(size_t)rank * move->bytes, move->bytes};
    const struct coll_all_gather op = {
        .source = data + spans[link->host->rank].offset, .recv = data, .spans = spans};
    return coll_all_gather_start(link->host, &op, &move->request);
}

static zero_result start_sum(struct link *link, struct move *move)
{
    assert(move->kind == REDUCE_SCATTER || move->kind == REDUCE);
    char *const data = data_of(link, move);
    const size_t blocks = move->kind == REDUCE_SCATTER ? (size_t)link->host->world : 1;
    const struct coll_all_reduce op = {.source = data,
                                       .result = data,
                                       .count = move->bytes * blocks,
                                       .dtype = move->dtype,
                                       .op = BASE_SUM};
    return coll_all_reduce_start(link->host, &op, &move->request);
}

static zero_result start(struct link *link, struct move *move)
{
    char *const data = data_of(link, move);
    switch (move->kind) {
    case ALL_GATHER:
        return start_gather(link, move);
    case REDUCE_SCATTER:
    case REDUCE:
        return start_sum(link, move);
    case SEND:
    case RECEIVE:
        break;
    }
    const struct coll_message message = {.data = data, .bytes = move->bytes, .peer = move->rank};
    return move->kind == SEND ? coll_send_start(link->host, &message, &move->request)
                              : coll_receive_start(link->host, &message, &move->request);
}

static zero_result staged_begin(void *of, struct base_error *error)
{
    struct link *link = of;
    (void)error;
    link->count = link->drained = 0;
    link->caller = pthread_self();
    return ZERO_OK;
}

static zero_result staged_end(void *of, struct base_error *error)
{
    struct link *link = of;
    zero_result result = link->count > 0 ? place(link, error) : ZERO_OK;
    for (size_t i = 0; i < link->count && !result; i++)
        result = bring(link, &link->moves[i], error);
    if (!result && link->count > 0)
        result = link->kind->stream_sync(link->stream, error);
    if (result)
        return result;
    for (size_t i = 0; i < link->count && !result; i++)
        result = start(link, &link->moves[i]);
    return result ? coll_state(link->host, error) : ZERO_OK;
}

static zero_result staged_ready(void *of, struct base_error *error)
{
    struct link *link = of;
    zero_result result = ZERO_OK;
    assert(link->drained <= link->count);
    if (link->drained == link->count || !pthread_equal(link->caller, pthread_self()))
        return ZERO_OK;
    if (coll_progress(link->host) != ZERO_OK)
        return coll_state(link->host, error);
    while (link->drained < link->count &&
           coll_drained(link->host, &link->moves[link->drained].request))
        link->drained++;
    if (coll_failed(link->host)) // whereupon everything counts as drained
        return coll_state(link->host, error);
    if (link->drained < link->count)
        return ZERO_AGAIN;
    for (size_t i = 0; i < link->count && !result; i++)
        result = return_it(link, &link->moves[i], error);
    return result;
}

/* ------------------------------------------------------------------ what it is made of */

static zero_result add(struct link *link, const struct move *move, void *stream,
                       struct base_error *error)
{
    assert(link->count <= link->most && link->drained == 0);
    if (link->count == link->most) {
        const size_t most = link->most ? 2 * link->most : LEAST_MOVES;
        struct move *moves = base_calloc(most, sizeof *moves);
        if (!moves)
            return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes", most * sizeof *moves);
        if (link->moves)
            memcpy(moves, link->moves, link->count * sizeof *moves);
        base_free(link->moves);
        link->moves = moves;
        link->most = most;
    }
    link->stream = stream;
    link->moves[link->count++] = *move;
    return ZERO_OK;
}

static zero_result staged_all_gather(void *of, const void *from, void *to, size_t bytes,
                                     void *stream, struct base_error *error)
{
    const struct move move = {.kind = ALL_GATHER, .from = from, .to = to, .bytes = bytes};
    return add(of, &move, stream, error);
}

static zero_result staged_send(void *of, const void *from, size_t bytes, int peer, void *stream,
                               struct base_error *error)
{
    const struct move move = {.kind = SEND, .from = from, .bytes = bytes, .rank = peer};
    return add(of, &move, stream, error);
}

static zero_result staged_receive(void *of, void *to, size_t bytes, int peer, void *stream,
                                  struct base_error *error)
{
    const struct move move = {.kind = RECEIVE, .to = to, .bytes = bytes, .rank = peer};
    return add(of, &move, stream, error);
}

static zero_result staged_reduce_scatter(void *of, const void *from, void *to, size_t count,
                                         zero_dtype dtype, void *stream, struct base_error *error)
{
    const struct move move = {
        .kind = REDUCE_SCATTER, .from = from, .to = to, .bytes = count, .dtype = dtype};
    return add(of, &move, stream, error);
}

static zero_result staged_reduce(void *of, const void *from, void *to, size_t count,
                                 zero_dtype dtype, int root, void *stream, struct base_error *error)
{
    const struct move move = {
        .kind = REDUCE, .from = from, .to = to, .bytes = count, .dtype = dtype, .rank = root};
    return add(of, &move, stream, error);
}

const struct gcomm_transport gcomm_transport_host = {
    .size = sizeof(struct gcomm_transport),
    .name = "host",
    .lends = true,
    .memory = staged_memory,
    .prepare = staged_prepare,
    .identify = staged_identify,
    .join = staged_join,
    .ready = staged_ready,
    .abort = staged_abort,
    .begin = staged_begin,
    .end = staged_end,
    .all_gather = staged_all_gather,
    .send = staged_send,
    .receive = staged_receive,
    .reduce_scatter = staged_reduce_scatter,
    .reduce = staged_reduce,
};
