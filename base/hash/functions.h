/**
 * base/hash/functions.h: the functions of a table of long.h, by xxHash's own header, which takes
 * the instruction set it is compiled for.
 */
#define XXH_INLINE_ALL
#include "base/hash/long.h"

#include <xxhash.h>

static uint64_t hash64(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

static struct base_hash128 hash128(const void *data, size_t size, uint64_t seed)
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    return (struct base_hash128){.low = hash.low64, .high = hash.high64};
}
