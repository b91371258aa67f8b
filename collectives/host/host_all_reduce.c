// The all-reduce of long vectors: each rank reduces its share of all of them. Where every rank can
// write into every result that is one pass over memory: the rank writes its share everywhere.
// Else it writes it to its own result, and when all have done so each fetches the others' shares;
// a source that is the result as well is overwritten only then.

#include "collectives/host/host.h"

#include <assert.h>
#include <fenv.h>

enum { GRANULE = 1024 /* elements: ranks don't share a cache line */ };

/** direct->at: this rank's share is reduced. */
#define REDUCED SIZE_MAX

/** The elements that a rank reduces. */
static struct coll_span share_of(const struct coll_comm *comm, const struct coll_all_reduce *op,
                                 int rank)
{
    assert(rank >= 0 && rank < comm->world);
    const size_t granules = op->count / GRANULE + (op->count % GRANULE != 0);
    const size_t world = (size_t)comm->world, me = (size_t)rank;
    const size_t each = granules / world, more = granules % world;
    const size_t first = (each * me + (me < more ? me : more)) * GRANULE;
    const size_t most = (each + (me < more)) * GRANULE;
    if (first >= op->count)
        return (struct coll_span){0, 0};
    return (struct coll_span){first, op->count - first < most ? op->count - first : most};
}

/** Whether every rank can write into every result. All ranks find the same: where ranks are on
 * several hosts each has far ones. */
static bool open_to_all(const struct coll_comm *comm, const struct coll_request *request)
{
    if (coll_host_of(comm)->far_count > 0)
        return false;
    for (int rank = 0; rank < comm->world && coll_host_of(comm)->shared; rank++) {
        const struct host_descriptor *posted = coll_host_descriptor(comm, rank, request->sequence);
        if (posted->source.arena == HOST_UNREGISTERED || posted->target.arena == HOST_UNREGISTERED)
            return false;
    }
    return true;
}

/** Lists the results to write to: every rank's, or this one's: direct->targets. Those in an arena
 * that is there once may be the same. Returns how many, and whether one of them is its rank's
 * source. */
static int list_targets(const struct coll_comm *comm, const struct coll_request *request,
                        bool everywhere, bool *in_place)
{
    const struct coll_all_reduce *op = &request->op.all_reduce;
    void **targets = coll_host_of(comm)->targets;
    int count = 1;
    targets[0] = op->result;
    *in_place = op->result == op->source;
    for (int i = 1; i < comm->world && everywhere; i++) {
        const int rank = (comm->rank + i) % comm->world;
        const struct host_descriptor *posted = coll_host_descriptor(comm, rank, request->sequence);
        void *target = coll_host_address(comm, rank, &posted->target);
        *in_place |= target == coll_host_address(comm, rank, &posted->source);
        if (target != targets[count - 1])
            targets[count++] = target;
    }
    assert(count >= 1 && count <= comm->world);
    return count;
}

/** Reduces the elements first .. first+count-1 of the vector, which direct->sources show. Lines
 * that a result has in common with a source are in the cache already. */
static void reduce_piece(struct coll_comm *comm, const struct coll_request *request, size_t first,
                         size_t count, bool everywhere)
{
    assert(count > 0 && first + count <= request->op.all_reduce.count);
    const struct coll_all_reduce *op = &request->op.all_reduce;
    const struct host_comm *host = coll_host_of(comm);
    const size_t size = base_dtype_bytes(op->dtype);
    // This rank reads a share of every source and writes it to every result.
    const bool large = op->count > host->core_bytes / size / 2;
    bool in_place;
    const int targets = list_targets(comm, request, everywhere, &in_place);
    struct base_pass pass = {
        .op = op->op,
        .sources = host->sources,
        .count = comm->world,
        .store = true,
        .far = large,
        .to = everywhere && large && !in_place ? BASE_SUM_MEMORY : BASE_SUM_CACHE,
        .also = host->targets,
        .also_count = targets,
        .narrow = base_accumulator_dtype(op->dtype) != op->dtype,
    };
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    for (size_t at = 0; at < count; at += BASE_SUM_TILE) {
        coll_point(comm, COLL_ALL_REDUCE_BULK, "read");
        pass.first = at;
        pass.also_first = first + at;
        pass.n = count - at < BASE_SUM_TILE ? count - at : BASE_SUM_TILE;
        host->kernels->sum[op->dtype](&pass);
    }
    fesetenv(&environment);
    if (pass.to == BASE_SUM_MEMORY)
        base_sum_fence();
}

/** Reduces this rank's share as far as its sources are there. */
static zero_result reduce_share(struct coll_comm *comm, const struct coll_request *request,
                                bool everywhere)
{
    const struct coll_all_reduce *op = &request->op.all_reduce;
    struct host_comm *host = coll_host_of(comm);
    const struct coll_span share = share_of(comm, op, comm->rank);
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t most = coll_host_piece(comm, request, comm->world, size);
    assert(most > 0 && host->at <= share.count);
    while (host->at < share.count) {
        const size_t left = share.count - host->at, count = left < most ? left : most;
        const size_t next = left - count < most ? left - count : most;
        const size_t first = share.offset + host->at;
        const zero_result result =
            coll_host_view_all(comm, request, comm->world, first * size, count * size);
        if (result != ZERO_OK)
            return result;
        coll_host_view_ahead(comm, request, comm->world, (first + count) * size, next * size);
        reduce_piece(comm, request, first, count, everywhere);
        host->at += count;
    }
    comm->comm_world->counters.reduced_bytes += (uint64_t)(comm->world - 1) * share.count * size;
    return ZERO_OK;
}

/** Copies the others' shares from their results to this rank's. */
static zero_result fetch_shares(struct coll_comm *comm, const struct coll_request *request)
{
    const struct coll_all_reduce *op = &request->op.all_reduce;
    const size_t size = base_dtype_bytes(op->dtype);
    zero_result result = ZERO_OK;
    for (int i = 1; i < comm->world; i++) {
        const int rank = (comm->rank + i) % comm->world;
        const struct coll_span share = share_of(comm, op, rank);
        struct host_place from = coll_host_descriptor(comm, rank, request->sequence)->target;
        from.at += share.offset * size;
        size_t *done = &coll_host_of(comm)->fetched[rank];
        assert(*done <= share.count * size);
        if (*done == share.count * size)
            continue;
        const zero_result fetched =
            coll_host_fetch(comm, request, rank, &from, share.count * size,
                            (unsigned char *)op->result + share.offset * size, done);
        if (fetched < 0)
            return fetched;
        if (fetched == ZERO_OK)
            comm->comm_world->counters.gathered_bytes += share.count * size;
        else
            result = fetched;
    }
    return result;
}

void coll_host_count_steps(struct coll_comm *comm, uint64_t steps)
{
    assert(steps == 1 || steps == 2);
    _Atomic uint64_t *written = &coll_host_own(comm)->written;
    const uint64_t before = atomic_load_explicit(written, memory_order_relaxed);
    atomic_store_explicit(written, before + steps, memory_order_release);
    comm->must_wake_peers = true;
}

bool coll_host_behind(const struct coll_comm *comm, int rank)
{
    const uint64_t mine = atomic_load_explicit(&coll_host_own(comm)->written, memory_order_relaxed);
    return atomic_load_explicit(&coll_host_of(comm)->blocks[rank]->written, memory_order_acquire) <
           mine;
}

static bool any_behind(const struct coll_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (coll_host_behind(comm, rank))
            return true;
    return false;
}

zero_result coll_host_all_reduce(struct coll_comm *comm, struct coll_request *request)
{
    if (request->op.all_reduce.count == 0)
        return ZERO_OK;
    zero_result result = coll_host_meet_all(comm, request, comm->world);
    if (result != ZERO_OK)
        return result;
    const struct host_block *own = coll_host_own(comm);
    if (coll_host_of(comm)->at != REDUCED) {
        assert(atomic_load(&own->written) % 2 == 0);
        const bool everywhere = open_to_all(comm, request);
        result = reduce_share(comm, request, everywhere);
        if (result != ZERO_OK)
            return result;
        coll_host_of(comm)->at = REDUCED;
        coll_host_count_steps(comm, everywhere ? 2 : 1);
    }
    if (any_behind(comm))
        return ZERO_AGAIN;
    if (atomic_load_explicit(&own->written, memory_order_relaxed) % 2 == 0)
        return ZERO_OK;
    result = fetch_shares(comm, request);
    if (result != ZERO_OK)
        return result;
    coll_host_count_steps(comm, 1);
    return any_behind(comm) ? ZERO_AGAIN : ZERO_OK;
}
