// The bulk operations that compute: their arguments.

#include "base/kernels/sum.h"
#include "collectives/comm/comm_internal.h"

#include <assert.h>

static bool aligned(const void *address, zero_dtype dtype)
{
    assert(base_dtype_bytes(dtype) > 0);
    return (uintptr_t)address % base_dtype_bytes(dtype) == 0;
}

/** Whether a call leaves a block of its sum_group unfinished, or finds one so. */
static bool needs_block(const struct coll_reduce_scatter *op)
{
    assert(op->sum_group > 1);
    const uint64_t next = op->first + (uint64_t)op->contributors;
    return op->first % op->sum_group != 0 || (!op->last && next % op->sum_group != 0);
}

static const char *check_accumulator(const struct coll_reduce_scatter *op)
{
    const zero_dtype dtype = base_accumulator_dtype(op->dtype);
    const bool whole = op->sum_group > 1 ? op->first == 0 && op->last : op->store;
    if (!op->accumulator && !(whole && op->tile))
        return "there is no accumulator";
    if (!aligned(op->accumulator, dtype))
        return "the accumulator is not aligned to its elements";
    if (op->sum_group <= 1)
        return NULL;
    if (!op->block && needs_block(op))
        return "there is no block for a sum_group that is not finished";
    return aligned(op->block, dtype) ? NULL : "the block is not aligned to its elements";
}

static const char *check_reduce_scatter(const struct coll_comm *comm,
                                        const struct coll_reduce_scatter *op)
{
    if (base_dtype_bytes(op->dtype) == 0)
        return "there is no such dtype";
    if (op->contributors < 1 || op->contributors > comm->world)
        return "contributors is not in 1 .. world";
    if (op->sum_group > 1 && base_accumulator_dtype(op->dtype) != ZERO_F32)
        return "only f32 accumulators have a sum_group";
    if (comm->rank < op->contributors && !op->source)
        return "there is no source";
    if (comm->rank < op->contributors && !aligned(op->source, op->dtype))
        return "the source is not aligned to its elements";
    if (!coll_spans_fit(comm, op->spans, base_dtype_bytes(op->dtype)))
        return COLL_SPANS_TOO_LONG;
    return op->spans[comm->rank].count > 0 ? check_accumulator(op) : NULL;
}

zero_result coll_reduce_scatter_start(struct coll_comm *comm, const struct coll_reduce_scatter *op,
                                      struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_REDUCE_SCATTER, "the request is not drained");
    request->op.reduce_scatter = *op;
    const char *why = check_reduce_scatter(comm, op);
    if (why)
        return coll_refuse(comm, request, COLL_REDUCE_SCATTER, why);
    return coll_start(comm, request, COLL_REDUCE_SCATTER);
}

static const char *check_all_reduce(const struct coll_all_reduce *op)
{
    if (base_dtype_bytes(op->dtype) == 0)
        return "there is no such dtype";
    if (op->op != BASE_SUM && op->op != BASE_MIN && op->op != BASE_MAX)
        return "there is no such operation";
    if (op->count == 0)
        return NULL;
    if (!op->source || !op->result)
        return op->source ? "there is no result" : "there is no source";
    if (!aligned(op->source, op->dtype) || !aligned(op->result, op->dtype))
        return "the source or the result is not aligned to its elements";
    if (op->count > SIZE_MAX / 2 / base_dtype_bytes(op->dtype))
        return "count is more than the memory there is";
    const uintptr_t source = (uintptr_t)op->source, result = (uintptr_t)op->result;
    const size_t bytes = op->count * base_dtype_bytes(op->dtype);
    if (source != result && source < result + bytes && result < source + bytes)
        return "the result overlaps the source and begins elsewhere";
    return NULL;
}

zero_result coll_all_reduce_start(struct coll_comm *comm, const struct coll_all_reduce *op,
                                  struct coll_request *request)
{
    if (request->state != COLL_IDLE)
        return coll_refuse(comm, request, COLL_ALL_REDUCE_BULK, "the request is not drained");
    request->op.all_reduce = *op;
    const char *why = check_all_reduce(op);
    if (why)
        return coll_refuse(comm, request, COLL_ALL_REDUCE_BULK, why);
    return coll_start(comm, request, COLL_ALL_REDUCE_BULK);
}
