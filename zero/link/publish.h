/**
 * zero/link/publish.h: new values of the parameters, and sums, on their way to the other ranks.
 */
#ifndef ZERO_LINK_PUBLISH_H
#define ZERO_LINK_PUBLISH_H

#include "zero/core/link_table.h"

/** Starts an all-gather about the sums at stage 0: they are not written before each rank is done
 * with it. Collective, ordered. */
zero_result eng_sums_lend(zero_ctx *z, const struct coll_all_gather *op);
/** Tells the others that this rank has read their sums, or their gradients where it adds them up
 * again. Collective, ordered. */
zero_result eng_sums_return(zero_ctx *z);
/** Waits until no peer reads this rank's sums, or gradients, any more: before they are written
 * again. */
zero_result eng_sums_reclaim(zero_ctx *z);
/** A bucket has new values, of version z->publication.version. Collective, ordered. */
static inline zero_result eng_publish_start(zero_ctx *z, size_t bucket)
{
    z->units[z->layout.buckets[bucket].unit].version = z->publication.version;
    z->io[bucket].version = z->publication.version;
    return z->link->publish(z, bucket);
}

/** Sends all values, which are new, on their way (eng_publish_start()), and waits for them.
 * Collective, ordered. */
zero_result eng_publish_all(zero_ctx *z);
zero_result eng_publish_wait(zero_ctx *z, zero_unit unit);
/** Waits for everything, or for what is promised to be current without a gather: what persists. */
zero_result eng_publish_finish(zero_ctx *z, bool everything);

#endif
