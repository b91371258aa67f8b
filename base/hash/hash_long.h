/**
 * base/hash/hash_long.h: XXH3 of long inputs, one table an instruction set; every one gives the
 * same values. Private to base/hash.c and its test.
 */
#ifndef BASE_HASH_HASH_LONG_H
#define BASE_HASH_HASH_LONG_H

#include <stddef.h>
#include <stdint.h>

struct base_hash_long {
    const char *name; /**< "plain", "avx2", "avx512" */
    uint64_t (*hash64)(const void *data, size_t size, uint64_t seed);
    void (*hash128)(const void *data, size_t size, uint64_t seed, uint64_t low_high[2]);
};

/** The i-th table this machine can run, the slowest first; NULL past the end. */
const struct base_hash_long *base_hash_long_at(int i);

extern const struct base_hash_long base_hash_long_avx2;
extern const struct base_hash_long base_hash_long_avx512;

#endif
