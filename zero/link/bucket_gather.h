/**
 * zero/link/bucket_gather.h: buckets that move by the communicator.
 */
#ifndef ZERO_LINK_BUCKET_GATHER_H
#define ZERO_LINK_BUCKET_GATHER_H

#include "zero/core/context.h"

/** What messages of the transport call a unit. */
struct coll_label eng_unit_label(const zero_ctx *z, zero_unit unit);
/** All-gathers a bucket of the parameters in whichever of its two requests is free. This rank's
 * shard of a staged bucket lies in its place in recv. */
zero_result eng_bucket_gather(zero_ctx *z, size_t bucket, void *recv);
/** Waits for the last one. */
zero_result eng_bucket_gather_wait(zero_ctx *z, size_t bucket);
/** Waits until no peer reads what this rank gave to any of them. */
zero_result eng_bucket_gather_drain(zero_ctx *z, size_t bucket);
/** bucket_reduce.c: an entry of struct eng_link. */
zero_result eng_host_reduce(zero_ctx *z, zero_unit unit);

#endif
