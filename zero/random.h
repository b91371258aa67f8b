/**
 * zero/random.h: counter-based random numbers, the same bits wherever they are drawn.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC'11). A
 * number is a pure function of (seed, stream, index): it has no state, nothing to save, no order.
 * All functions are *local*, pure and inline.
 */
#ifndef ZERO_RANDOM_H
#define ZERO_RANDOM_H

#include <math.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Four random words for a 128-bit counter under a 64-bit key. */
typedef struct zero_philox_block {
    uint32_t word[4];
} zero_philox_block;

static inline zero_philox_block zero_philox(uint64_t key, uint64_t counter_high,
                                            uint64_t counter_low)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    zero_philox_block c;
    c.word[0] = (uint32_t)counter_low;
    c.word[1] = (uint32_t)(counter_low >> 32);
    c.word[2] = (uint32_t)counter_high;
    c.word[3] = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)UINT32_C(0xD2511F53) * c.word[0];
        const uint64_t p1 = (uint64_t)UINT32_C(0xCD9E8D57) * c.word[2];
        const uint32_t w1 = c.word[1], w3 = c.word[3];
        c.word[0] = (uint32_t)(p1 >> 32) ^ w1 ^ k0;
        c.word[1] = (uint32_t)p1;
        c.word[2] = (uint32_t)(p0 >> 32) ^ w3 ^ k1;
        c.word[3] = (uint32_t)p0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    return c;
}

/** The stream of a name, e.g. a tensor's: 64-bit FNV-1a. */
static inline uint64_t zero_random_stream(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return hash;
}

/** 64 random bits. */
static inline uint64_t zero_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    const zero_philox_block b = zero_philox(seed, stream, index);
    return ((uint64_t)b.word[1] << 32) | b.word[0];
}

/** Uniform in [0, 1), 53 bits. */
static inline double zero_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(zero_random_bits(seed, stream, index) >> 11) * (1.0 / 9007199254740992.0);
}

/** Standard normal (Box and Muller 1958). One block gives both numbers of a pair of indices. */
static inline double zero_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const zero_philox_block b = zero_philox(seed, stream, index >> 1);
    const uint64_t x = ((uint64_t)b.word[1] << 32) | b.word[0];
    const uint64_t y = ((uint64_t)b.word[3] << 32) | b.word[2];
    const double u = ((double)(x >> 11) + 1.0) *
                     (1.0 / 9007199254740992.0); /* (0, 1]: the logarithm is finite */
    const double angle = 6.283185307179586 * ((double)(y >> 11) * (1.0 / 9007199254740992.0));
    const double radius = sqrt(-2.0 * log(u));
    return (index & 1) ? radius * sin(angle) : radius * cos(angle);
}

/**
 * Where `index` (0 .. count-1) goes in a random permutation of count items. count is at least 1.
 *
 * A four-round Feistel network over the next even power of two is walked until it falls inside.
 * Source: Black and Rogaway 2002, cycle walking.
 */
static inline uint64_t zero_random_permute(uint64_t seed, uint64_t stream, uint64_t count,
                                           uint64_t index)
{
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < count)
        half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < 4; round++) {
            const uint64_t mixed = zero_philox(seed, stream, (round << 32) | right).word[0];
            const uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= count);
    return index;
}

#ifdef __cplusplus
}
#endif

#endif
