/**
 * base/hash.h: checksums and fingerprints: XXH3 with 64 and 128 bits. Part of file formats and of
 * the fingerprint: the values never change. *Local*, pure, any thread.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/** A 128-bit number: high * 2^64 + low. */
struct base_hash128 {
    uint64_t low, high;
};

/** XXH3-64 of `size` bytes; data may be NULL if size is 0. */
uint64_t base_hash64(const void *data, size_t size, uint64_t seed);

/** XXH3-128 of `size` bytes; data may be NULL if size is 0. */
struct base_hash128 base_hash128(const void *data, size_t size, uint64_t seed);

/** a + b modulo 2^128: combines hashes of a set, in whatever order. */
struct base_hash128 base_hash128_add(struct base_hash128 a, struct base_hash128 b);

/** The canonical 16 bytes: most significant first. */
void base_hash128_bytes(struct base_hash128 hash, uint8_t bytes[16]);

#endif
