// Buckets that move by the communicator, between ranks' memory of the host.

#include "zero/core/addresses.h"
#include "zero/link/links.h"

#include "zero/core/api_call.h"
#include "zero/link/bucket_gather.h"
#include "zero/link/publish.h"

#include <assert.h>

static zero_result comm_gather(zero_ctx *z, zero_unit unit, int slot)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    assert(slot >= 0 && slot < z->placement.gather.slot_count);
    unsigned char *memory = z->memory.slots + z->gathers.slots[slot].offset;
    zero_result r = ZERO_OK;
    if (z->config.stage == 0) // the rank's own file has all of it
        return ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++)
        if (z->placement.buckets[s].residence == ENG_SHARDED)
            r = eng_bucket_gather(z, s, memory + z->placement.buckets[s].slot_offset);
    return r;
}

static zero_result comm_publish(zero_ctx *z, size_t bucket)
{
    unsigned char *recv = NULL;
    switch (z->placement.buckets[bucket].residence) {
    case ENG_REPLICATED: // updated everywhere
    case ENG_SHARDED:    // stays with its owners until it is gathered
        return ZERO_OK;
    case ENG_COPIED:
        recv = eng_home(z, bucket, 0);
        break;
    case ENG_SHARED: // every rank has the owners' own memory: only the word that it is current
        break;
    }
    z->io[bucket].publish_pending = true;
    return eng_bucket_gather(z, bucket, recv);
}

static zero_result comm_fetch_sums(zero_ctx *z)
{
    if (!z->publication.all_sums || z->config.grads_nvme)
        return ZERO_OK;
    // Ranks of one host see each other's.
    const struct coll_all_gather op = {
        .source = (unsigned char *)(void *)z->memory.sums +
                  z->publication.all_sums[z->config.rank].offset,
        .recv = eng_config_shares_sums(&z->config, z->config.stage) ? NULL : z->memory.sums,
        .spans = z->publication.all_sums,
        .label = {.what = "step", .number = (uint32_t)z->step + 1, .name = "sums"},
    };
    zero_result r = eng_sums_lend(z, &op);
    if (!r && (r = coll_wait(z->comm, &z->publication.sums_read)) != ZERO_OK)
        r = eng_comm_failed(z, r);
    return r;
}

const struct eng_link eng_link_host = {
    .size = sizeof(struct eng_link),
    .name = "host",
    .gather = comm_gather,
    .publish = comm_publish,
    .reduce = eng_host_reduce,
    .adds_by_comm = true,
    .fetch_sums = comm_fetch_sums,
};
