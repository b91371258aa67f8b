#include "base/hash.h"

#include "base/cpu.h"
#include "base/hash/hash_long.h"

#include <assert.h>
#include <stdatomic.h>
#include <xxhash.h>

// Below this XXH3 has no use for wide registers.
enum { LONG = 256 };

static uint64_t plain64(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

static void plain128(const void *data, size_t size, uint64_t seed, uint64_t low_high[2])
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
    low_high[0] = hash.low64;
    low_high[1] = hash.high64;
}

static const struct base_hash_long plain = {"plain", plain64, plain128};

const struct base_hash_long *base_hash_long_at(int i)
{
    const struct base_hash_long *usable[4] = {&plain};
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    int count = 1;
    if (cpu.avx2)
        usable[count++] = &base_hash_long_avx2;
    if (cpu.avx512)
        usable[count++] = &base_hash_long_avx512;
#endif
    return i >= 0 && i < 4 ? usable[i] : NULL;
}

// The fastest one, which is looked for once.
static const struct base_hash_long *best(void)
{
    static const struct base_hash_long *_Atomic found;
    const struct base_hash_long *table = atomic_load_explicit(&found, memory_order_relaxed), *next;
    if (table)
        return table;
    for (int i = 0; (next = base_hash_long_at(i)) != NULL; i++)
        table = next;
    assert(table); // the first one is usable everywhere
    atomic_store_explicit(&found, table, memory_order_relaxed);
    return table;
}

uint64_t base_hash64(const void *data, size_t size, uint64_t seed)
{
    return size < LONG ? plain64(data, size, seed) : best()->hash64(data, size, seed);
}

struct base_hash128 base_hash128(const void *data, size_t size, uint64_t seed)
{
    uint64_t low_high[2];
    (size < LONG ? plain128 : best()->hash128)(data, size, seed, low_high);
    return (struct base_hash128){.low = low_high[0], .high = low_high[1]};
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
