#include "zero/core/addresses.h"

#include <assert.h>
#include <sys/mman.h>

size_t eng_sum_index(const zero_ctx *z, int owner, size_t bucket, size_t element)
{
    const struct eng_bucket *b = &z->layout.buckets[bucket];
    assert(element >= b->elements[owner].offset);
    assert(element - b->elements[owner].offset <= b->elements[owner].count);
    const size_t first =
        z->publication.all_sums ? z->publication.all_sums[owner].offset / sizeof(float) : 0;
    return first + b->before[owner] + element - b->elements[owner].offset;
}

const float *eng_sums(const zero_ctx *z, int owner, size_t bucket, size_t element)
{
    const bool own = owner == z->config.rank || z->publication.all_sums;
    assert(own ||
           z->placement.buckets[bucket].state_granules == z->layout.buckets[bucket].granules);
    const float *sums = own ? z->memory.sums : coll_arena_peer(z->memory.sums_arena, owner);
    return sums + eng_sum_index(z, owner, bucket, element);
}

const unsigned char *eng_gathered(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct eng_bucket *bucket = &z->layout.buckets[slice->bucket];
    const struct eng_bucket_place *place = &z->placement.buckets[slice->bucket];
    const int slot = z->units[bucket->unit].slot;
    const size_t offset = slice->granule * BASE_GRANULE * eng_dtype_size(bucket->dtype);
    if (place->residence != ENG_SHARDED)
        return z->memory.params_view + place->home + offset;
    if (slot < 0)
        return NULL;
    assert(slot < z->placement.gather.slot_count);
    return z->memory.slots_view + z->gathers.slots[slot].offset + place->slot_offset + offset;
}

static size_t nowhere_bytes(const zero_ctx *z)
{
    size_t granules = 0;
    for (size_t i = 0; i < z->layout.slice_count; i++)
        if (z->layout.slices[i].granules > granules)
            granules = z->layout.slices[i].granules;
    return granules * BASE_GRANULE * sizeof(float);
}

void *eng_nowhere(zero_ctx *z)
{
    if (!z->fatal || z->memory.nowhere)
        return z->memory.nowhere;
    void *memory = mmap(NULL, nowhere_bytes(z), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    z->memory.nowhere = memory == MAP_FAILED ? NULL : memory;
    return z->memory.nowhere;
}

void eng_nowhere_free(zero_ctx *z)
{
    if (z->memory.nowhere)
        munmap(z->memory.nowhere, nowhere_bytes(z));
}
