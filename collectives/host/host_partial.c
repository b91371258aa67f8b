// Partial sums: see host_partial.h.

#include "collectives/host/host.h"

#include "collectives/comm/partial_sums.h"

#include <assert.h>
#include <fenv.h>
#include <string.h>

/* ------------------------------------------------------------------ who makes what */

/** Whether the blocks of a call are such that sums of them can travel. All ranks find the same. */
static bool suits(const struct coll_comm *comm, const struct coll_reduce_scatter *op)
{
    const struct coll_comm_world *comm_world = comm->comm_world;
    return comm == comm_world->root && comm_world->partial_sums &&
           coll_partial_sums_travel(comm->world, comm_world->ranks_a_host, op->sum_group,
                                    op->dtype) &&
           op->first % op->sum_group == 0 &&
           (op->last || (uint32_t)op->contributors % op->sum_group == 0);
}

static size_t slot_bytes(const struct coll_comm *comm)
{
    return comm->comm_world->partial_sums->bytes / COLL_PARTIAL_SLOTS / HOST_LINE * HOST_LINE;
}

/** Elements from one sum in a slot to the next; 0: contributions travel. */
static size_t stride_of(const struct coll_comm *comm, const struct coll_reduce_scatter *op)
{
    if (!suits(comm, op))
        return 0;
    const size_t bytes = coll_partial_sums_bytes(comm->world, comm->comm_world->ranks_a_host,
                                                 op->sum_group, op->dtype, op->spans);
    return bytes / COLL_PARTIAL_SLOTS <= slot_bytes(comm)
               ? coll_partial_sums_stride(comm->world, op->spans)
               : 0;
}

/** The number of a rank's host. */
static int host_of(const struct coll_comm *comm, int rank)
{
    assert(comm->comm_world->ranks_a_host > 0);
    return rank / comm->comm_world->ranks_a_host;
}

/** Blocks of whole rounds on each host. */
static int blocks_a_host(const struct coll_comm *comm, const struct coll_reduce_scatter *op)
{
    return comm->comm_world->ranks_a_host / (int)op->sum_group;
}

/** How many contributions the block has that begins with that of `first`. */
static int length_of(const struct coll_reduce_scatter *op, int first)
{
    const int most = (int)op->sum_group, left = op->contributors - first;
    return left < most ? left : most;
}

/** The rank that makes the sum of a block of a host for `owner`, who is on another one. Those of an
 * owner have different makers, and each maker has as many owners as the others. */
static int maker_of(const struct coll_comm *comm, int host, int block, int owner)
{
    const int each = comm->comm_world->ranks_a_host;
    assert(block < each && host != host_of(comm, owner));
    return host * each + (owner + block) % each;
}

/** The block of its host of which `maker` makes the sum for `owner`; -1: none. */
static int block_made(const struct coll_comm *comm, const struct coll_reduce_scatter *op, int maker,
                      int owner)
{
    const int each = comm->comm_world->ranks_a_host;
    const int block = (maker % each + each - owner % each) % each;
    return block < blocks_a_host(comm, op) ? block : -1;
}

/** Where in a slot the sum of a block is, in bytes. */
static size_t offset_of(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                        int host, int block, int owner, size_t stride)
{
    const int owners_host = host_of(comm, owner);
    const size_t before = (size_t)(owners_host - (owners_host > host));
    return (before * (size_t)blocks_a_host(comm, op) + (size_t)block) * stride * sizeof(float);
}

struct host_place coll_host_partial_slot(const struct coll_comm *comm,
                                         const struct coll_request *request)
{
    const struct host_place nothing = {.arena = HOST_UNREGISTERED};
    struct host_comm *host = coll_host_of(comm);
    assert(request->kind == COLL_REDUCE_SCATTER);
    if (stride_of(comm, &request->op.reduce_scatter) == 0)
        return nothing;
    const uint64_t slot = host->partial.started++ % COLL_PARTIAL_SLOTS;
    return (struct host_place){slot * slot_bytes(comm), slot_bytes(comm),
                               comm->comm_world->partial_sums->id};
}

/* ------------------------------------------------------------------ making sums */

/** Where this rank makes its sums of a request. */
static unsigned char *own_slot(const struct coll_comm *comm, const struct coll_request *request,
                               size_t *number)
{
    const struct host_place *place =
        &coll_host_descriptor(comm, comm->rank, request->sequence)->target;
    assert(place->arena == comm->comm_world->partial_sums->id);
    *number = place->at / slot_bytes(comm);
    return (unsigned char *)comm->comm_world->partial_sums->base + place->at;
}

/** Whether a far rank can still read what a slot has of an older reduction. */
static bool still_reads(const struct coll_comm *comm, size_t slot, int rank)
{
    const uint64_t used = coll_host_of(comm)->partial.used[slot];
    return used > 0 && !coll_host_consumed(comm, rank, used - 1) && !coll_host_retired(comm, rank);
}

/** Adds up `count` contributions, of which host->sources has `n` elements. */
static void add_block(struct coll_comm *comm, const struct coll_reduce_scatter *op, int first,
                      int count, float *sum, size_t n)
{
    const struct host_comm *host = coll_host_of(comm);
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    for (size_t at = 0; at < n; at += BASE_SUM_TILE) {
        coll_point(comm, COLL_REDUCE_SCATTER, "read");
        const struct base_pass pass = {.sum = sum + at,
                                       .sources = host->sources + first,
                                       .count = count,
                                       .first = at,
                                       .n = n - at < BASE_SUM_TILE ? n - at : BASE_SUM_TILE,
                                       .store = true,
                                       .far = true};
        host->kernels->sum[op->dtype](&pass);
    }
    fesetenv(&environment);
}

/** Makes the sum of a block for an owner. */
static zero_result make_sum(struct coll_comm *comm, const struct coll_request *request, int owner,
                            int block, float *sum)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct coll_span *span = &op->spans[owner];
    struct host_comm *host = coll_host_of(comm);
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t most = coll_host_piece(comm, request, op->contributors, sizeof(float));
    const int first =
        host_of(comm, comm->rank) * comm->comm_world->ranks_a_host + block * (int)op->sum_group;
    const int count = length_of(op, first);
    size_t *at = &host->partial.at;
    while (*at < span->count) {
        const size_t n = span->count - *at < most ? span->count - *at : most;
        for (int rank = first; rank < first + count; rank++) {
            const struct host_place *source =
                &coll_host_descriptor(comm, rank, request->sequence)->source;
            const zero_result seen =
                coll_host_view(comm, request, rank, source, (span->offset + *at) * size, n * size,
                               &host->sources[rank]);
            if (seen != ZERO_OK)
                return seen;
        }
        add_block(comm, op, first, count, sum + *at, n);
        *at += n;
    }
    return ZERO_OK;
}

/** Makes the sums of this rank in a slot that no far rank reads any more. */
static zero_result make_sums(struct coll_comm *comm, const struct coll_request *request,
                             unsigned char *slot)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    struct host_partial *partial = &coll_host_of(comm)->partial;
    const int here = host_of(comm, comm->rank);
    for (; partial->owner < comm->world; partial->owner++, partial->at = 0) {
        const int owner = partial->owner;
        const int block =
            coll_host_of(comm)->far[owner] ? block_made(comm, op, comm->rank, owner) : -1;
        if (block < 0 ||
            here * comm->comm_world->ranks_a_host + block * (int)op->sum_group >= op->contributors)
            continue;
        const size_t offset = offset_of(comm, op, here, block, owner, partial->stride);
        assert(offset + op->spans[owner].count * sizeof(float) <= slot_bytes(comm));
        const zero_result made =
            make_sum(comm, request, owner, block, (float *)(void *)(slot + offset));
        if (made != ZERO_OK)
            return made;
    }
    return ZERO_OK;
}

/** Waits for what the ranks of this host contribute. */
static zero_result meet_near(struct coll_comm *comm, const struct coll_request *request)
{
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < request->op.reduce_scatter.contributors && result >= 0; rank++) {
        const zero_result met =
            coll_host_of(comm)->far[rank] ? ZERO_OK : coll_host_meet(comm, request, rank);
        if (met != ZERO_OK)
            result = met;
    }
    return result;
}

zero_result coll_host_partial_make(struct coll_comm *comm, const struct coll_request *request)
{
    struct host_partial *partial = &coll_host_of(comm)->partial;
    size_t number;
    // What was posted holds, also if the memory was created since.
    if (partial->made ||
        coll_host_descriptor(comm, comm->rank, request->sequence)->target.bytes == 0)
        return ZERO_OK;
    if (partial->stride == 0)
        partial->stride = coll_partial_sums_stride(comm->world, request->op.reduce_scatter.spans);
    unsigned char *slot = own_slot(comm, request, &number);
    for (int rank = 0; rank < comm->world; rank++)
        if (coll_host_of(comm)->far[rank] && still_reads(comm, number, rank))
            return ZERO_AGAIN;
    zero_result result = meet_near(comm, request);
    if (result == ZERO_OK)
        result = make_sums(comm, request, slot);
    if (result != ZERO_OK)
        return result;
    partial->used[number] = request->sequence + 1;
    partial->made = true;
    coll_host_forget_views(comm);
    coll_host_count_steps(comm, 2);
    return ZERO_OK;
}

void coll_host_partial_end(struct coll_comm *comm)
{
    struct host_partial *partial = &coll_host_of(comm)->partial;
    if (partial->stride == 0)
        return;
    partial->stride = partial->at = partial->whole = 0;
    partial->made = partial->shown = false;
    partial->owner = 0;
}

/* ------------------------------------------------------------------ looking at sums */

/** The sources are contributions from now on, or far blocks' sums. What was asked for in the other
 * way is not taken any more. */
static void show_as(struct coll_comm *comm, bool sums, bool begun)
{
    struct host_partial *partial = &coll_host_of(comm)->partial;
    if (partial->shown != sums && begun) {
        coll_host_cancel_reads(comm);
        coll_host_forget_views(comm);
    }
    partial->shown = sums;
}

/** Where the sum is of the far block that begins with the contribution of `first`. */
static struct host_place sum_place(const struct coll_comm *comm, const struct coll_request *request,
                                   int first, int *maker)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const int host = host_of(comm, first);
    const int block = (first - host * comm->comm_world->ranks_a_host) / (int)op->sum_group;
    *maker = maker_of(comm, host, block, comm->rank);
    const struct host_place *slot = &coll_host_descriptor(comm, *maker, request->sequence)->target;
    const size_t stride = coll_host_of(comm)->partial.stride;
    return coll_host_part(slot, offset_of(comm, op, host, block, comm->rank, stride),
                          op->spans[comm->rank].count * sizeof(float));
}

/** Whether all elements of a sum are finite. */
static bool is_finite(const struct host_comm *host, const void *sum, size_t n)
{
    bool finite = true;
    for (size_t at = 0; at < n; at += BASE_SUM_TILE) {
        const struct base_pass pass = {.sum = host->scratch->block,
                                       .sources = &sum,
                                       .count = 1,
                                       .first = at,
                                       .n = n - at < BASE_SUM_TILE ? n - at : BASE_SUM_TILE,
                                       .store = true};
        finite &= host->kernels->sum[ZERO_F32](&pass);
    }
    return finite;
}

/** Shows the sum of a far block, if its maker has made it, or does so later. If it leaves without
 * that, contributions are looked at from now on. */
static zero_result view_sum(struct coll_comm *comm, const struct coll_request *request, int first,
                            size_t at, size_t count)
{
    struct host_comm *host = coll_host_of(comm);
    int maker;
    const struct host_place place = sum_place(comm, request, first, &maker);
    const struct host_place *slot = &coll_host_descriptor(comm, maker, request->sequence)->target;
    if (slot->arena != comm->comm_world->partial_sums->id ||
        place.at - slot->at + place.bytes > slot->bytes)
        return coll_fail(comm, ZERO_E_DIVERGED,
                         "rank %d has posted %llu bytes for sums of its host in arena %u, and "
                         "rank %d needs %llu at byte %llu of arena %u for the sum of ranks %d to "
                         "%d: give all ranks the same sum_group and model",
                         maker, (unsigned long long)slot->bytes, slot->arena, comm->rank,
                         (unsigned long long)place.bytes, (unsigned long long)(place.at - slot->at),
                         comm->comm_world->partial_sums->id, first,
                         first + length_of(&request->op.reduce_scatter, first) - 1);
    const bool retired = coll_host_retired(comm, maker); // it counts nothing after that
    if (coll_host_behind(comm, maker)) {
        host->partial.whole = retired ? SIZE_MAX : host->partial.whole;
        return ZERO_AGAIN;
    }
    return coll_host_view(comm, request, maker, &place, at * sizeof(float), count * sizeof(float),
                          &host->sources[first]);
}

/** Shows what this host's ranks contribute, and sums of the others' blocks. */
static zero_result view_sums(struct coll_comm *comm, const struct coll_request *request, size_t at,
                             size_t count)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    struct host_comm *host = coll_host_of(comm);
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t begin = (op->spans[comm->rank].offset + at) * size;
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < op->contributors && result >= 0; rank++) {
        zero_result seen = ZERO_OK;
        if (!host->far[rank])
            seen = coll_host_view(comm, request, rank,
                                  &coll_host_descriptor(comm, rank, request->sequence)->source,
                                  begin, count * size, &host->sources[rank]);
        else if (rank % (int)op->sum_group == 0)
            seen = view_sum(comm, request, rank, at, count);
        if (seen != ZERO_OK)
            result = seen;
    }
    return result;
}

/** Whether a far block's sum, as it is shown, has to be looked into: something of it is not finite,
 * and the caller wants to know whose contribution that is. */
static bool is_suspect(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                       size_t count)
{
    const struct host_comm *host = coll_host_of(comm);
    for (int first = 0; first < op->contributors && op->nonfinite; first += (int)op->sum_group)
        if (host->far[first] && !is_finite(host, host->sources[first], count))
            return true;
    return false;
}

zero_result coll_host_partial_view(struct coll_comm *comm, const struct coll_request *request,
                                   size_t first, size_t count)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    struct host_partial *partial = &coll_host_of(comm)->partial;
    const size_t begin = (op->spans[comm->rank].offset + first) * base_dtype_bytes(op->dtype);
    assert(partial->made && count > 0);
    if (first >= partial->whole) {
        show_as(comm, true, first > 0);
        const zero_result seen = view_sums(comm, request, first, count);
        if (seen == ZERO_OK && !is_suspect(comm, op, count))
            return ZERO_OK;
        if (seen == ZERO_OK)
            partial->whole = first + count;
        if (first >= partial->whole)
            return seen;
    }
    show_as(comm, false, true);
    return coll_host_view_all(comm, request, op->contributors, begin,
                              count * base_dtype_bytes(op->dtype));
}

void coll_host_partial_view_ahead(struct coll_comm *comm, const struct coll_request *request,
                                  size_t first, size_t count)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct host_comm *host = coll_host_of(comm);
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t begin = (op->spans[comm->rank].offset + first) * size;
    const bool sums = first >= host->partial.whole;
    if (sums != host->partial.shown) // show_as() would throw away what is asked for now
        return;
    if (!sums) {
        coll_host_view_ahead(comm, request, op->contributors, begin, count * size);
        return;
    }
    for (int rank = 0; rank < op->contributors; rank++) {
        int maker;
        if (!host->far[rank]) {
            coll_host_view_next(comm, request, rank,
                                &coll_host_descriptor(comm, rank, request->sequence)->source, begin,
                                count * size);
        } else if (rank % (int)op->sum_group == 0) {
            const struct host_place place = sum_place(comm, request, rank, &maker);
            coll_host_view_next(comm, request, maker, &place, first * sizeof(float),
                                count * sizeof(float));
        }
    }
}

/* ------------------------------------------------------------------ who waits for whom */

bool coll_host_partial_reads(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                             int owner)
{
    return owner < op->contributors && !coll_host_of(comm)->far[owner] && suits(comm, op);
}

bool coll_host_partial_waits(const struct coll_comm *comm, const struct coll_request *request,
                             int rank)
{
    const struct host_comm *host = coll_host_of(comm);
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    if (host->partial.stride == 0 || !host->far[rank])
        return false;
    if (!host->partial.made) {
        size_t slot;
        own_slot(comm, request, &slot);
        return still_reads(comm, slot, rank);
    }
    const int block = block_made(comm, op, rank, comm->rank);
    const int first =
        host_of(comm, rank) * comm->comm_world->ranks_a_host + block * (int)op->sum_group;
    return op->spans[comm->rank].count > 0 && block >= 0 && first < op->contributors &&
           !coll_host_retired(comm, rank) && coll_host_behind(comm, rank);
}
