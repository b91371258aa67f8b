// The small operations: cut into chunks that fit the transport's slots, one after the other.

#include "collectives/comm/comm_internal.h"

#include <assert.h>
#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Runs one chunk and waits for its result. The slots are used in turn, so that a slow reader of
 * one chunk does not hold up the next. */
static zero_result run_chunk(struct coll_comm *comm, enum coll_kind kind,
                             const struct coll_small *chunk)
{
    assert(comm->next_small < COLL_SMALL_SLOTS && chunk->bytes <= COLL_SMALL_BYTES);
    struct coll_small *small = &comm->small[comm->next_small];
    zero_result result = ZERO_OK;
    if (!coll_drained(comm, &small->request))
        result = coll_drain(comm, &small->request);
    if (result != ZERO_OK)
        return result;
    small->slot = (int)comm->next_small;
    small->in = chunk->in;
    small->out = chunk->out;
    small->bytes = chunk->bytes;
    small->stride = chunk->stride;
    small->root = chunk->root;
    small->op = chunk->op;
    comm->next_small = (comm->next_small + 1) % COLL_SMALL_SLOTS;
    result = coll_begin(comm, &small->request, kind);
    return result == ZERO_OK ? coll_wait(comm, &small->request) : result;
}

zero_result coll_exchange(struct coll_comm *comm, const void *mine, size_t bytes, void *all)
{
    zero_result result = coll_stop(comm);
    for (size_t done = 0; done < bytes && result == ZERO_OK; done += COLL_SMALL_BYTES) {
        const struct coll_small chunk = {.in = (const unsigned char *)mine + done,
                                         .out = (unsigned char *)all + done,
                                         .bytes = smaller(bytes - done, COLL_SMALL_BYTES),
                                         .stride = bytes};
        result = run_chunk(comm, COLL_EXCHANGE, &chunk);
    }
    return bytes == 0 && result == ZERO_OK ? coll_barrier(comm) : result;
}

zero_result coll_all_reduce(struct coll_comm *comm, double *values, size_t count, enum base_op op)
{
    const size_t most = COLL_SMALL_BYTES / sizeof *values;
    zero_result result = coll_stop(comm);
    for (size_t done = 0; done < count && result == ZERO_OK; done += most) {
        const struct coll_small chunk = {.in = values + done,
                                         .out = values + done,
                                         .bytes = smaller(count - done, most) * sizeof *values,
                                         .op = op};
        result = run_chunk(comm, COLL_ALL_REDUCE, &chunk);
    }
    return result;
}

zero_result coll_broadcast(struct coll_comm *comm, void *data, size_t bytes, int root)
{
    if (root < 0 || root >= comm->world)
        return coll_fail(comm, ZERO_E_INVALID, "rank %d: a broadcast from rank %d of %d",
                         coll_root_rank(comm, comm->rank), root, comm->world);
    zero_result result = coll_stop(comm);
    for (size_t done = 0; done < bytes && result == ZERO_OK; done += COLL_SMALL_BYTES) {
        unsigned char *at = (unsigned char *)data + done;
        const struct coll_small chunk = {.in = comm->rank == root ? at : NULL,
                                         .out = at,
                                         .bytes = smaller(bytes - done, COLL_SMALL_BYTES),
                                         .root = root};
        result = run_chunk(comm, COLL_BROADCAST, &chunk);
    }
    return result;
}

zero_result coll_barrier(struct coll_comm *comm)
{
    const struct coll_small chunk = {0};
    return run_chunk(comm, COLL_BARRIER, &chunk);
}
