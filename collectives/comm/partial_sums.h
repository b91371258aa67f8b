/**
 * collectives/comm/partial_sums.h: sums of a host's blocks of a sum_group, which travel between
 * hosts instead of contributions.
 */
#ifndef COLLECTIVES_COMM_PARTIAL_SUMS_H
#define COLLECTIVES_COMM_PARTIAL_SUMS_H

#include "collectives/comm/comm.h"

/**
 * Whether ranks of a host add its blocks of a sum_group for owners on other hosts. One sum of each
 * block travels then in place of its contributions. It takes `each` ranks on every host
 * (coll_ranks_a_host()), and blocks that lie whole on one host. A sum that is no smaller than the
 * contributions does not travel. The bits are those of any other way. *Local.*
 */
bool coll_partial_sums_travel(int world, int each, uint32_t sum_group, zero_dtype dtype);

/** Bytes that a rank needs for the sums of reductions with these spans; 0: none travel. *Local.* */
size_t coll_partial_sums_bytes(int world, int each, uint32_t sum_group, zero_dtype dtype,
                               const struct coll_span *spans);

/** Gives the reductions of a root memory for such sums: from now on they travel where they can and
 * where this is enough. At most once, the same `bytes` on every rank. *Collective.* Errors:
 * coll_arena_create(). */
zero_result coll_partial_sums_create(struct coll_comm *root, size_t bytes,
                                     struct base_error *error);

/** Elements from one owner's sum to the next one's, in memory for all of them. *Local.* */
size_t coll_partial_sums_stride(int world, const struct coll_span *spans);

#endif
