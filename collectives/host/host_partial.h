/**
 * collectives/host/host_partial.h: partial sums of an ordered reduce-scatter. Where each block of a
 * sum_group lies whole on one host, the ranks of that host add it up for the owners on other hosts.
 * One sum travels in place of the contributions. For each owner and block one rank of the block's
 * host is the maker. It makes its sums before it works on its own span, in a slot of the memory
 * that coll_partial_sums_create() gave, and counts two steps. An owner looks at a block's sum when
 * its maker has counted them. It takes the contributions instead if the maker leaves without having
 * done so, and where a sum is not finite, to find which contribution is not.
 */
#ifndef COLLECTIVES_HOST_HOST_PARTIAL_H
#define COLLECTIVES_HOST_HOST_PARTIAL_H

#include "collectives/comm/comm_internal.h"

struct host_place;

/** One rank's state, in a root. */
struct host_partial {
    uint64_t started;                  /**< reductions whose blocks travel as sums, so far */
    uint64_t used[COLL_PARTIAL_SLOTS]; /**< the last reduction of which sums were made in each
                                            slot: its sequence + 1; 0: none yet */

    // What follows is about the oldest request, and zero between two.
    size_t stride; /**< elements from one sum in a slot to the next; 0: contributions travel */
    bool made;     /**< this rank's sums are made */
    int owner;     /**< else: for which owner it makes one, */
    size_t at;     /**< and how many elements of it are made */
    size_t whole;  /**< elements of this rank's span, from its first on, that are summed from all
                        contributions */
    bool shown;    /**< host->sources has far blocks' sums: of a block at its first contributor */
};

/** The slot in which this rank makes its sums of a request that it is about to post; no bytes if
 * contributions travel. */
struct host_place coll_host_partial_slot(const struct coll_comm *comm,
                                         const struct coll_request *request);

/** Makes this rank's sums of the oldest request. ZERO_OK: they are made, or none are to be. */
zero_result coll_host_partial_make(struct coll_comm *comm, const struct coll_request *request);

/** Shows elements first .. first+count-1 of this rank's span: host->sources, host->partial.shown.
 * ZERO_AGAIN: not yet. */
zero_result coll_host_partial_view(struct coll_comm *comm, const struct coll_request *request,
                                   size_t first, size_t count);

/** Asks for what the next view shows, as coll_host_view_ahead() does. *Local.* */
void coll_host_partial_view_ahead(struct coll_comm *comm, const struct coll_request *request,
                                  size_t first, size_t count);

/** The oldest request is complete. *Local.* */
void coll_host_partial_end(struct coll_comm *comm);

/** Whether this rank reads what a rank of its host contributes, to make sums. *Local.* */
bool coll_host_partial_reads(const struct coll_comm *comm, const struct coll_reduce_scatter *op,
                             int owner);

/** Whether a rank with a span sums nothing of the oldest request before every rank has posted it:
 * a maker may be any rank. *Local.* */
bool coll_host_needs_all(const struct coll_comm *comm, const struct coll_reduce_scatter *op);

/** Whether the oldest request, which all have posted, waits for a far rank: for its sums, or until
 * it has read older ones. *Local.* */
bool coll_host_partial_waits(const struct coll_comm *comm, const struct coll_request *request,
                             int rank);

#endif
