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

/** Whether a contribution is in a sum that its host has made, as the sources are now. */
static bool is_in_sum(const struct coll_comm *comm, int rank)
{
    const struct host_comm *host = coll_host_of(comm);
    return host->partial.shown && host->far[rank];
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
        if (host->met[rank] == HOST_DONE || is_in_sum(comm, rank))
            continue;
        const size_t found =
            base_sum_nonfinite(op->dtype, host->sources[rank], tile->at, tile->count);
        if (found == tile->at + tile->count)
            continue;
        host->met[rank] = HOST_DONE;
        op->nonfinite(op->user, rank, tile->first + (found - tile->at));
    }
}

/** Adds a block's sum to what was before it; `initial`: there was nothing. */
static bool add_sum(const struct host_comm *host, float *sum, const void *const *block,
                    const struct tile *tile, size_t at, bool initial)
{
    const struct base_pass pass = {
        .sum = sum, .sources = block, .count = 1, .first = at, .n = tile->count, .store = initial};
    return host->kernels->sum[ZERO_F32](&pass);
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
        if (is_in_sum(comm, k)) {
            finite &= add_sum(host, sum, host->sources + k, tile, tile->at, initial);
            continue;
        }
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
        add_sum(host, sum, &(const void *){partial}, tile, 0, initial);
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

/** Shows elements of this rank's span, and asks for `next` ones behind them. */
static zero_result view_span(struct coll_comm *comm, const struct coll_request *request,
                             size_t first, size_t count, size_t next)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const bool sums = coll_host_of(comm)->partial.stride > 0;
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t at = (op->spans[comm->rank].offset + first) * size;
    const zero_result result =
        sums ? coll_host_partial_view(comm, request, first, count)
             : coll_host_view_all(comm, request, op->contributors, at, count * size);
    if (result != ZERO_OK)
        return result;
    if (sums)
        coll_host_partial_view_ahead(comm, request, first + count, next);
    else
        coll_host_view_ahead(comm, request, op->contributors, at + count * size, next * size);
    return ZERO_OK;
}

/** Bytes of other ranks that were read for `count` elements. */
static uint64_t bytes_read(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                           size_t count)
{
    const size_t size = base_dtype_bytes(op->dtype);
    uint64_t bytes = 0;
    for (int rank = 0; rank < op->contributors; rank++)
        if (!is_in_sum(comm, rank))
            bytes += rank != comm->rank ? count * size : 0;
        else if (rank % (int)op->sum_group == 0)
            bytes += count * sizeof(float);
    return bytes;
}

/** Reduces this rank's span as far as its sources are there. */
static zero_result reduce_span(struct coll_comm *comm, const struct coll_request *request)
{
    const struct coll_reduce_scatter *op = &request->op.reduce_scatter;
    const struct coll_span *span = &op->spans[comm->rank];
    struct host_comm *host = coll_host_of(comm);
    const bool sums = host->partial.stride > 0;
    zero_result result = coll_host_meet_all(
        comm, request, coll_host_needs_all(comm, op) ? comm->world : op->contributors);
    if (result != ZERO_OK)
        return result;
    const size_t size = base_dtype_bytes(op->dtype);
    const size_t most =
        coll_host_piece(comm, request, op->contributors, sums ? sizeof(float) : size);
    assert(most > 0 && host->at <= span->count);
    while (host->at < span->count) {
        const size_t left = span->count - host->at, count = left < most ? left : most;
        const size_t next = left - count < most ? left - count : most;
        result = view_span(comm, request, host->at, count, next);
        if (result != ZERO_OK)
            return result;
        reduce_piece(comm, op, host->at, count);
        comm->comm_world->counters.reduced_bytes += bytes_read(comm, op, count);
        host->at += count;
    }
    return ZERO_OK;
}

bool coll_host_needs_all(const struct coll_comm *comm, const struct coll_reduce_scatter *op)
{
    return op->together || coll_host_of(comm)->partial.stride > 0;
}

zero_result coll_host_reduce_scatter(struct coll_comm *comm, struct coll_request *request)
{
    zero_result result = coll_host_partial_make(comm, request);
    if (result == ZERO_OK && request->op.reduce_scatter.spans[comm->rank].count > 0)
        result = reduce_span(comm, request);
    if (result == ZERO_OK)
        coll_host_partial_end(comm);
    return result;
}
