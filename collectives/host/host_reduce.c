// The ordered reduce-scatter: each rank reads its span of all contributions, tile by tile.

#include "collectives/host/host.h"

#include <assert.h>
#include <fenv.h>

/** Elements that are offered at once: who takes them over leaves nothing in a cache for later, and
 * begins anew at each tile, which costs a hundredth of the time of a small one. */
enum { OFFERED = 16 * BASE_SUM_TILE };

/** Elements of this rank's span. */
struct tile {
    size_t first; /**< relative to the span */
    size_t at;    /**< relative to the sources as they can be addressed now */
    size_t count;
    bool far; /**< the sources are in memory */
};

static bool grouped(const struct coll_reduce_scatter *op)
{
    return op->sum_group > 1;
}

/** Whether the accumulator gets its first values, so that nothing of it has to be read. */
static bool fresh(const struct coll_reduce_scatter *op)
{
    if (!grouped(op))
        return op->store;
    const uint64_t next = op->first + (uint64_t)op->contributors;
    return op->first < op->sum_group && (next >= op->sum_group || op->last);
}

/** Whether this rank reads and writes more than its cache holds. */
static bool large(const struct coll_comm *comm, const struct coll_reduce_scatter *op)
{
    const size_t sum = op->accumulator ? base_dtype_bytes(base_accumulator_dtype(op->dtype)) : 0;
    const size_t element = (size_t)op->contributors * base_dtype_bytes(op->dtype) + sum;
    return op->spans[comm->rank].count > coll_host_of(comm)->core_bytes / element;
}

/** Names the contributors whose part of a tile is not finite, each for the first time only. */
static void report_nonfinite(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                             const struct tile *tile)
{
    struct host_comm *host = coll_host_of(comm);
    for (int rank = 0; rank < op->contributors; rank++) {
        if (host->met[rank] == HOST_DONE)
            continue;
        const size_t found =
            base_sum_nonfinite(op->dtype, host->sources[rank], tile->at, tile->count);
        if (found == tile->at + tile->count)
            continue;
        host->met[rank] = HOST_DONE;
        op->nonfinite(op->user, rank, tile->first + (found - tile->at));
    }
}

/** Sums a tile block by block: what is left unfinished in op->block, a block that this call begins
 * and ends in scratch memory. */
static bool sum_blocks(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                       const struct tile *tile, float *sum)
{
    const struct host_comm *host = coll_host_of(comm);
    const struct base_sum_kernels *kernels = host->kernels;
    bool finite = true;
    int taken;
    for (int k = 0; k < op->contributors; k += taken) {
        const uint64_t number = op->first + (uint64_t)k;
        const uint32_t position = (uint32_t)(number % op->sum_group);
        const uint32_t most = op->sum_group - position, left = (uint32_t)(op->contributors - k);
        taken = (int)(left < most ? left : most);
        assert(taken >= 1 && k + taken <= op->contributors);
        const bool ends = left >= most || op->last, initial = number < op->sum_group;
        float *partial = initial ? sum : (float *)host->scratch->block;
        if (position > 0 || !ends)
            partial = op->block + tile->first;
        assert(partial);
        const struct base_pass pass = {.sum = partial,
                                       .sources = host->sources + k,
                                       .count = taken,
                                       .first = tile->at,
                                       .n = tile->count,
                                       .store = position == 0,
                                       .far = tile->far};
        finite &= kernels->sum[op->dtype](&pass);
        if (!ends || partial == sum)
            continue;
        const void *addend = partial;
        const struct base_pass last = {
            .sum = sum, .sources = &addend, .count = 1, .n = tile->count, .store = initial};
        kernels->sum[ZERO_F32](&last);
    }
    return finite;
}

static bool sum_plain(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                      const struct tile *tile, void *sum, void *also, enum base_sum_to to)
{
    const struct host_comm *host = coll_host_of(comm);
    const struct base_pass pass = {.sum = sum,
                                   .sources = host->sources,
                                   .count = op->contributors,
                                   .first = tile->at,
                                   .n = tile->count,
                                   .store = op->store,
                                   .far = tile->far,
                                   .to = to,
                                   .also = &also,
                                   .also_count = also != NULL};
    return host->kernels->sum[op->dtype](&pass);
}

/** Where a tile is summed: in the accumulator, but for what goes past the caches and is looked at,
 * or summed in several passes, or has no accumulator: that is in scratch memory. */
static unsigned char *place_of_sum(const struct coll_comm *comm,
                                   const struct coll_reduce_scatter *op, unsigned char *accumulator,
                                   bool look, enum base_sum_to to)
{
    unsigned char *scratch = coll_host_of(comm)->scratch->sum;
    if (!accumulator)
        return scratch;
    if (to == BASE_SUM_MEMORY && (look || grouped(op)))
        return scratch + (uintptr_t)accumulator % BASE_SUM_LINE;
    return accumulator;
}

/** Offers a tile to op->take. Returns how many of its elements that has taken. */
static size_t give_tile(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                        const struct tile *tile)
{
    if (!op->take || grouped(op))
        return 0;
    const size_t size = base_dtype_bytes(base_accumulator_dtype(op->dtype));
    const struct coll_contributions from = {
        .before = op->store ? NULL : (const unsigned char *)op->accumulator + tile->first * size,
        .dtype = op->dtype,
        .count = op->contributors,
        .sources = coll_host_of(comm)->sources,
        .first = tile->at,
    };
    return op->take(op->user, tile->first, tile->count, &from);
}

/** Sums a tile and shows it to op->tile. */
static void sum_tile(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                     const struct tile *tile, enum base_sum_to to)
{
    assert(tile->count > 0 && tile->count <= BASE_SUM_TILE);
    const struct host_comm *host = coll_host_of(comm);
    const size_t size = base_dtype_bytes(base_accumulator_dtype(op->dtype));
    const coll_tile_fn look = grouped(op) && !op->last ? NULL : op->tile;
    unsigned char *accumulator =
        op->accumulator ? (unsigned char *)op->accumulator + tile->first * size : NULL;
    assert(accumulator || look);
    unsigned char *sum = place_of_sum(comm, op, accumulator, look != NULL, to);
    const bool finite =
        grouped(op) ? sum_blocks(comm, op, tile, (float *)(void *)sum)
                    : sum_plain(comm, op, tile, sum, sum == accumulator ? NULL : accumulator, to);
    if (!finite && op->nonfinite)
        report_nonfinite(comm, op, tile);
    if (look)
        look(op->user, tile->first, tile->count, sum);
    if (accumulator && sum != accumulator && grouped(op))
        host->kernels->copy(accumulator, sum, tile->count * size, BASE_SUM_MEMORY);
}

static void reduce_tile(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                        const struct tile *tile, enum base_sum_to to)
{
    for (size_t at = give_tile(comm, op, tile); at < tile->count; at += BASE_SUM_TILE) {
        const size_t left = tile->count - at;
        const struct tile part = {tile->first + at, tile->at + at,
                                  left < BASE_SUM_TILE ? left : BASE_SUM_TILE, tile->far};
        sum_tile(comm, op, &part, to);
    }
}

/** Sums the elements first .. first+count-1 of the span, which direct->sources show. */
static void reduce_piece(struct coll_comm *comm, const struct coll_reduce_scatter *op, size_t first,
                         size_t count)
{
    assert(first + count <= op->spans[comm->rank].count);
    const bool far = large(comm, op);
    const bool past = op->accumulator && fresh(op) && far;
    const enum base_sum_to to = past ? BASE_SUM_MEMORY : BASE_SUM_CACHE;
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    const size_t most = op->take ? OFFERED : BASE_SUM_TILE;
    for (size_t at = 0; at < count; at += most) {
        coll_point(comm, COLL_REDUCE_SCATTER, "read");
        const size_t left = count - at;
        const struct tile tile = {first + at, at, left < most ? left : most, far};
        reduce_tile(comm, op, &tile, to);
    }
    fesetenv(&environment);
    if (to == BASE_SUM_MEMORY)
        base_sum_fence();
}

zero_result coll_host_view_all(struct coll_comm *comm, const struct coll_request *request,
                               int contributors, size_t first_byte, size_t bytes)
{
    assert(contributors >= 1 && contributors <= comm->world);
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < contributors && result >= 0; rank++) {
        const struct host_place *source =
            &coll_host_descriptor(comm, rank, request->sequence)->source;
        const zero_result seen = coll_host_view(comm, request, rank, source, first_byte, bytes,
                                                &coll_host_of(comm)->sources[rank]);
        if (seen != ZERO_OK)
            result = seen;
    }
    return result;
}

zero_result coll_host_reduce_scatter(struct coll_comm *comm, struct coll_request *request)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct coll_span *span = &op->spans[comm->rank];
    struct host_comm *host = coll_host_of(comm);
    if (span->count == 0)
        return ZERO_OK;
    zero_result result =
        coll_host_meet_all(comm, request, op->together ? comm->world : op->contributors);
    if (result != ZERO_OK)
        return result;
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t most = coll_host_piece(comm, request, op->contributors, size);
    assert(most > 0 && host->at <= span->count);
    while (host->at < span->count) {
        const size_t left = span->count - host->at, count = left < most ? left : most;
        const size_t next = left - count < most ? left - count : most;
        const size_t at = (span->offset + host->at) * size;
        result = coll_host_view_all(comm, request, op->contributors, at, count * size);
        if (result != ZERO_OK)
            return result;
        coll_host_view_ahead(comm, request, op->contributors, at + count * size, next * size);
        reduce_piece(comm, op, host->at, count);
        host->at += count;
    }
    const int peers = op->contributors - (comm->rank < op->contributors);
    comm->comm_world->counters.reduced_bytes += (uint64_t)peers * span->count * size;
    return ZERO_OK;
}
