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

static void hash128(const void *data, size_t size, uint64_t seed, uint64_t low_high[2])
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    _mm256_zeroupper();
    low_high[0] = hash.low64;
    low_high[1] = hash.high64;
}
