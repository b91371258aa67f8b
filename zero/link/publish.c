#include "zero/link/publish.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/link_table.h"
#include "zero/core/observers.h"
#include "zero/core/telemetry.h"
#include "zero/link/bucket_gather.h"

#include "base/clock.h"

#include <assert.h>

zero_result eng_sums_lend(zero_ctx *z, const struct coll_all_gather *op)
{
    zero_result r = coll_drain(z->comm, &z->publication.sums_read);
    if (!r)
        r = coll_all_gather_start(z->comm, op, &z->publication.sums_read);
    if (r)
        return eng_comm_failed(z, r);
    z->publication.sums_lent = true;
    return ZERO_OK;
}

/** Whether this rank has a copy of all sums that no other one reads. */
static bool has_own_copy(const zero_ctx *z)
{
    return z->publication.all_sums && !eng_config_shares_sums(&z->config, z->config.stage);
}

zero_result eng_sums_return(zero_ctx *z)
{
    if (z->config.stage > 0 || z->config.world == 1 || z->config.grads_nvme || has_own_copy(z))
        return ZERO_OK;
    const struct coll_all_gather op = {
        .spans = z->publication.everyone,
        .label = {.what = "step", .number = (uint32_t)z->step + 1, .name = "sums are read"},
    };
    return eng_sums_lend(z, &op);
}

zero_result eng_sums_reclaim(zero_ctx *z)
{
    assert(z->publication.sums_lent || !z->publication.grads_lent);
    if (!z->publication.sums_lent)
        return ZERO_OK;
    const zero_result r = has_own_copy(z) ? coll_drain(z->comm, &z->publication.sums_read)
                                          : coll_wait(z->comm, &z->publication.sums_read);
    if (r)
        return eng_comm_failed(z, r);
    z->publication.sums_lent = z->publication.grads_lent = false;
    return ZERO_OK;
}

zero_result eng_publish_all(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    z->publication.version++;
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++)
        r = eng_publish_start(z, s);
    return r ? r : eng_publish_finish(z, true);
}

/** Waits for a bucket's new values if they are on their way. */
static zero_result wait_bucket(zero_ctx *z, size_t bucket)
{
    if (!z->io[bucket].publish_pending)
        return ZERO_OK;
    const zero_result r = eng_bucket_gather_wait(z, bucket);
    if (!r)
        z->io[bucket].publish_pending = false;
    return r;
}

zero_result eng_publish_wait(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++)
        r = wait_bucket(z, s);
    return r;
}

zero_result eng_publish_finish(zero_ctx *z, bool everything)
{
    const uint64_t begin = base_clock_ns();
    zero_result r = ZERO_OK;
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++)
        if (everything || z->layout.buckets[s].persistent)
            r = wait_bucket(z, s);
    if (!r)
        r = eng_observe_step(z, ENG_STEP_PUBLISHED);
    if (!r)
        r = z->exec->show_persistent(z);
    // Between steps no stream was given that what comes next could be ordered behind.
    if (!r && everything && z->micro.index < 0)
        r = z->exec->join(z);
    eng_stretch(z, CONTROL_GATHER, -1, begin, &z->stats.gather_wait_s);
    return r;
}
