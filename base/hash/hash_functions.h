/**
 * base/hash/hash_functions.h: the functions of a table of hash_long.h, by xxHash's own header,
 * which takes the instruction set it is compiled for.
 *
 * GCC 12 leaves the upper halves of the registers as xxHash's loops have used them; code with the
 * plain instructions, all that follows, is slow until they are cleared.
 */
#define XXH_INLINE_ALL
#include "base/hash/hash_long.h"

#include <immintrin.h>
#include <xxhash.h>

static uint64_t hash64(const void *data, size_t size, uint64_t seed)
{
    const uint64_t hash = XXH3_64bits_withSeed(data, size, seed);
    _mm256_zeroupper();
    return hash;
}

static struct base_hash128 hash128(const void *data, size_t size, uint64_t seed)
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    _mm256_zeroupper();
    return (struct base_hash128){.low = hash.low64, .high = hash.high64};
}
