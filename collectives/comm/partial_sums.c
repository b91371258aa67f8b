#include "collectives/comm/partial_sums.h"

#include "collectives/comm/comm_internal.h"

#include <assert.h>

bool coll_partial_sums_travel(int world, int each, uint32_t sum_group, zero_dtype dtype)
{
    return each > 1 && each < world && world % each == 0 && sum_group > 1 &&
           (uint32_t)each % sum_group == 0 && base_accumulator_dtype(dtype) == ZERO_F32 &&
           sum_group * base_dtype_bytes(dtype) > sizeof(float);
}

size_t coll_partial_sums_stride(int world, const struct coll_span *spans)
{
    const size_t aligned = 32;
    size_t most = 1;
    for (int rank = 0; rank < world; rank++)
        most = spans[rank].count > most ? spans[rank].count : most;
    return (most + aligned - 1) / aligned * aligned;
}

size_t coll_partial_sums_bytes(int world, int each, uint32_t sum_group, zero_dtype dtype,
                               const struct coll_span *spans)
{
    if (!coll_partial_sums_travel(world, each, sum_group, dtype))
        return 0;
    const size_t sums = (size_t)(world / each - 1) * ((size_t)each / sum_group);
    return COLL_PARTIAL_SLOTS * sums * coll_partial_sums_stride(world, spans) * sizeof(float);
}

zero_result coll_partial_sums_create(struct coll_comm *root, size_t bytes, struct base_error *error)
{
    assert(root == root->comm_world->root && !root->comm_world->partial_sums && bytes > 0);
    return coll_arena_create(root, bytes, &root->comm_world->partial_sums, error);
}
