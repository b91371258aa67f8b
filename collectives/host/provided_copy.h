/**
 * collectives/host/provided_copy.h: what a provider (provider/provider.h) copies for remote_read.c,
 * instead of what an owner sends.
 */
#ifndef COLLECTIVES_HOST_PROVIDED_COPY_H
#define COLLECTIVES_HOST_PROVIDED_COPY_H

#include "collectives/host/host.h"

/** One copy, of one owner; all zero: none. */
struct host_copy {
    struct coll_copy copy;
    uint64_t broken_ns; /**< when the rank saw that it is broken; 0: it did not */
};

/** Whether a provider copies bytes of a rank whose memory this process can't address. */
bool coll_host_is_copied(const struct coll_comm *comm, const struct host_place *place);

/** Copies a place of an owner, a rank of the root, to `to`. */
void coll_host_copy_start(const struct coll_comm *root, int owner, const struct host_place *place,
                          void *to, struct host_copy *copy);

/** How it stands, after some progress. */
enum coll_copy_state coll_host_copy_state(const struct coll_comm *root, struct host_copy *copy);

/** Its target is the caller's again. */
void coll_host_copy_end(const struct coll_comm *root, struct host_copy *copy);

/** A copy is broken: fails the comm world, after some time in which ZERO_AGAIN is returned. If the
 * owner has died, that is the failure, and TCP tells. */
zero_result coll_host_copy_fail(struct coll_comm *comm, const struct coll_request *request,
                                int rank, const struct host_place *place, struct host_copy *copy);

#endif
