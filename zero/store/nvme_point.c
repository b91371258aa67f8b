// The recovery point of the job before, until this job comes back at it or gives it up.

#include "zero/store/nvme_tier.h"

#include <assert.h>
#include <inttypes.h>

bool eng_tier_has_point(const struct eng_tier *tier)
{
    const struct eng_recovery *recovery = &tier->recovery;
    assert(!recovery->found || !recovery->broken);
    return (recovery->found || recovery->broken) && tier->generation == recovery->generation + 1;
}

bool eng_tier_recoverable(const zero_ctx *z, uint64_t *step)
{
    if (!z->tier || !z->tier->recovery.found || !eng_tier_has_point(z->tier))
        return false;
    *step = z->tier->recovery.step;
    return true;
}

const char *eng_tier_broken(const zero_ctx *z)
{
    return z->tier && z->tier->recovery.broken ? z->tier->recovery.ranks : NULL;
}

void eng_tier_pass_over(zero_ctx *z)
{
    if (z->tier)
        z->tier->recovery.passed = true;
}

zero_result eng_tier_leave_point(zero_ctx *z, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct eng_recovery *recovery = &tier->recovery;
    if (!eng_tier_has_point(tier))
        return ZERO_OK;
    if (recovery->found && !recovery->passed && z->config.rank == 0)
        base_logf(&z->config.log, ZERO_LOG_WARN, "io",
                  "step %" PRIu64 " of the job before, which zero_resume() would have come back "
                  "at, is given up: %s, and those of the other ranks, are written over",
                  recovery->step, tier->path);
    recovery->found = recovery->broken = false;
    return off_tilefile_void_older(tier->tilefile, error);
}

struct eng_point eng_tier_point(const zero_ctx *z)
{
    const struct eng_recovery *recovery = &z->tier->recovery;
    assert(recovery->payload_bytes <= z->tier->payload_room);
    return (struct eng_point){recovery->payload, recovery->payload_bytes, z->tier->path};
}
