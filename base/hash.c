#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t base_hash64(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

struct base_hash128 base_hash128(const void *data, size_t size, uint64_t seed)
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    return (struct base_hash128){.low = hash.low64, .high = hash.high64};
}

struct base_hash128 base_hash128_add(struct base_hash128 a, struct base_hash128 b)
{
    struct base_hash128 sum = {.low = a.low + b.low, .high = a.high + b.high};
    sum.high += sum.low < a.low;
    return sum;
}

void base_hash128_bytes(struct base_hash128 hash, uint8_t bytes[16])
{
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(hash.high >> (56 - 8 * i));
        bytes[8 + i] = (uint8_t)(hash.low >> (56 - 8 * i));
    }
}
