#include "zero/budget/between_hosts.h"

#include "collectives/comm/partial_sums.h"
#include "zero/core/context.h"
#include "zero/core/link_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** Ranks of every host, one after another; 0: hosts are not alike. Before ranks have met it is what
 * the configuration says of this host. */
static int ranks_a_host(const zero_ctx *z)
{
    const int world = z->config.world, here = z->config.local_world;
    if (z->comm)
        return coll_ranks_a_host(z->comm);
    return here == 0 ? world : world % here == 0 ? here : 0;
}

/** Whether the sums of a bucket's blocks travel. */
static bool sends_sums(const zero_ctx *z, size_t bucket)
{
    return z->link->adds_by_comm && !z->layout.buckets[bucket].frozen &&
           coll_partial_sums_travel(z->config.world, ranks_a_host(z), (uint32_t)z->config.sum_group,
                                    z->placement.buckets[bucket].comm_dtype);
}

size_t eng_between_hosts_bytes(const zero_ctx *z)
{
    const int each = ranks_a_host(z);
    size_t most = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        if (!sends_sums(z, s))
            continue;
        const size_t bytes = coll_partial_sums_bytes(
            z->config.world, each, (uint32_t)z->config.sum_group,
            z->placement.buckets[s].comm_dtype, z->layout.buckets[s].elements);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/** Elements of a bucket that ranks of a host own. */
static size_t owned(const struct eng_bucket *bucket, int first, int each)
{
    size_t elements = 0;
    for (int rank = first; rank < first + each; rank++)
        elements += bucket->elements[rank].count;
    return elements;
}

/** What one round of `contributors` micro-batches sends of a bucket. */
static uint64_t sent_in_round(const zero_ctx *z, size_t s, int each, int contributors)
{
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    const int group = z->config.sum_group;
    const size_t all = bucket->granules * BASE_GRANULE;
    const size_t size = eng_dtype_size(z->placement.buckets[s].comm_dtype);
    uint64_t bytes = 0;
    for (int first = 0; first < contributors; first += each) {
        const int left = contributors - first, sent = left < each ? left : each;
        const uint64_t far = all - owned(bucket, first, each);
        bytes += sends_sums(z, s) ? (uint64_t)((sent + group - 1) / group) * far * sizeof(float)
                                  : (uint64_t)sent * far * size;
    }
    return bytes;
}

/** What all hosts send in a step, without headers. */
static uint64_t sent_in_step(const zero_ctx *z, int each)
{
    const int world = z->config.world, rounds = z->config.micro_batches / world;
    uint64_t bytes = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        if (!z->layout.buckets[s].frozen)
            bytes += (uint64_t)rounds * sent_in_round(z, s, each, world) +
                     sent_in_round(z, s, each, z->config.micro_batches % world);
    return bytes;
}

/** The largest block of ranks that lies whole on a host. */
static int largest_group(int each)
{
    assert(each > 0);
    return each & -each;
}

/** Whether sums of blocks of `group` ranks would travel, of some bucket. */
static bool would_send_sums(const zero_ctx *z, int each, int group)
{
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        if (!z->layout.buckets[s].frozen &&
            coll_partial_sums_travel(z->config.world, each, (uint32_t)group,
                                     z->placement.buckets[s].comm_dtype))
            return true;
    return false;
}

/** Why contributions travel. */
static void say_why_not(const zero_ctx *z, int each, struct eng_plan_between *between)
{
    const int group = z->config.sum_group;
    char *why = between->reason;
    const size_t size = sizeof between->reason;
    if (each == 0)
        snprintf(why, size, "hosts have not the same number of consecutive ranks");
    else if (each == 1)
        snprintf(why, size, "each host has one rank");
    else if (group == 1 && would_send_sums(z, each, largest_group(each)))
        snprintf(why, size, "sum_group=1; sum_group=%d sends one sum of %d, which gives other bits",
                 largest_group(each), largest_group(each));
    else if (group == 1)
        snprintf(why, size, "sum_group=1");
    else if (each % group != 0)
        snprintf(why, size, "no block of sum_group=%d lies whole on a host of %d ranks", group,
                 each);
    else
        snprintf(why, size, "a sum in f32 is no smaller than its %d contributions", group);
}

struct eng_plan_between eng_between_hosts(const zero_ctx *z)
{
    const int each = ranks_a_host(z);
    struct eng_plan_between between = {.ranks_a_host = each};
    between.several = z->link->adds_by_comm && each != z->config.world &&
                      strcmp(z->config.reduction, "canonical") == 0;
    if (!between.several)
        return between;
    between.sums = eng_between_hosts_bytes(z) > 0;
    if (each > 0)
        between.bytes = sent_in_step(z, each);
    if (!between.sums)
        say_why_not(z, each, &between);
    return between;
}
