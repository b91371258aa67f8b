/**
 * collectives/host/host_publish.h: all-gathers that the ranks of a host do together.
 */
#ifndef COLLECTIVES_HOST_HOST_PUBLISH_H
#define COLLECTIVES_HOST_HOST_PUBLISH_H

#include "collectives/host/host.h"

/** Whether an all-gather is one that the ranks of a host do together: a publication, or one into
 * memory of the host. They read no source of each other. */
static inline bool coll_host_parted(const struct coll_request *request)
{
    return request->kind == COLL_ALL_GATHER &&
           (request->op.all_gather.together || !request->op.all_gather.recv);
}

/** Works on an all-gather that the ranks of a host do together, as the other operations do. */
zero_result coll_host_gather_together(struct coll_comm *comm, const struct coll_request *request);

/** What far ranks read of this one for a publication of its: its block if that lies in a shared
 * arena, else no bytes. *Local.* */
struct host_place coll_host_published(const struct coll_comm *comm,
                                      const struct coll_request *request);

#endif
