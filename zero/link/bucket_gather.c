// All-gathers of one bucket: for its bytes, or only for the word that they are there.

#include "zero/link/bucket_gather.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"

#include <assert.h>

struct coll_label eng_unit_label(const zero_ctx *z, zero_unit unit)
{
    return (struct coll_label){
        .what = "unit", .number = (uint32_t)unit, .name = z->units[unit].name};
}

zero_result eng_bucket_gather(zero_ctx *z, size_t bucket, void *recv)
{
    struct eng_bucket_io *io = &z->io[bucket];
    io->turn ^= 1;
    struct coll_request *request = &io->gather[io->turn];
    zero_result r = coll_drain(z->comm, request);
    if (r)
        return eng_comm_failed(z, r);
    const struct eng_bucket *b = &z->layout.buckets[bucket];
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    assert(recv || place->residence == ENG_SHARED);
    // What is staged lies at its place already.
    const unsigned char *source = place->staged
                                      ? (unsigned char *)recv + b->bytes[z->config.rank].offset
                                      : eng_home(z, bucket, place->own_first);
    const struct coll_all_gather op = {
        .source = source,
        .recv = recv,
        .spans = b->bytes,
        .together = z->config.host_slots && place->residence == ENG_SHARDED,
        .label = eng_unit_label(z, b->unit),
    };
    r = coll_all_gather_start(z->comm, &op, request);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

zero_result eng_bucket_gather_wait(zero_ctx *z, size_t bucket)
{
    struct eng_bucket_io *io = &z->io[bucket];
    const zero_result r = coll_wait(z->comm, &io->gather[io->turn]);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

zero_result eng_bucket_gather_drain(zero_ctx *z, size_t bucket)
{
    struct eng_bucket_io *io = &z->io[bucket];
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < 2; i++)
        r = coll_drain(z->comm, &io->gather[i]);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}
