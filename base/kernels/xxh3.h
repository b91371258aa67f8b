/**
 * base/kernels/xxh3.h: XXH3 with 128 bits (base/hash.h) for the threads of a GPU. kernels_cuda.cu
 * includes it behind its operations. Inputs have an even number of bytes, at least 2 and at most a
 * few thousand. Processors have it of libxxhash, as fast as their instruction sets allow. Here four
 * threads share what is long: each of them has two of the eight accumulators and all of the secret
 * that goes into them, so they need nothing of each other before the end.
 */
#ifndef BASE_KERNELS_XXH3_H
#define BASE_KERNELS_XXH3_H

#define XXH3_PRIME32_1 0x9E3779B1u
#define XXH3_PRIME32_2 0x85EBCA77u
#define XXH3_PRIME32_3 0xC2B2AE3Du
#define XXH3_PRIME64_1 0x9E3779B185EBCA87u
#define XXH3_PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define XXH3_PRIME64_3 0x165667B19E3779F9u
#define XXH3_PRIME64_4 0x85EBCA77C2B2AE63u
#define XXH3_PRIME64_5 0x27D4EB2F165667C5u

/** The secret of the algorithm, 192 bytes. */
static __device__ const uint64_t xxh3_secret[] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
/** What accumulators begin with. */
static __device__ const uint64_t xxh3_start[] = {
    XXH3_PRIME32_3, XXH3_PRIME64_1, XXH3_PRIME64_2, XXH3_PRIME64_3,
    XXH3_PRIME64_4, XXH3_PRIME32_2, XXH3_PRIME64_5, XXH3_PRIME32_1,
};

enum {
    XXH3_THREADS = 4,              /**< that share an input, if it is long: */
    XXH3_SHORT = 240,              /**< of more than so many bytes */
    XXH3_STRIPE = 64,              /**< bytes: 8 for each accumulator */
    XXH3_STRIPES = 16,             /**< of a block, between which accumulators are scrambled */
    XXH3_WORDS = XXH3_STRIPES + 2, /**< of the secret, for a thread */
};

/** A 128-bit number: high * 2^64 + low. */
struct xxh3_hash {
    uint64_t low, high;
};

/* ------------------------------------------------------------------ words */

/** Eight bytes from an even address on. */
INLINE uint64_t xxh3_read(const unsigned char *at)
{
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return halves[0] | (uint64_t)halves[1] << 16 | (uint64_t)halves[2] << 32 |
           (uint64_t)halves[3] << 48;
}

INLINE uint32_t xxh3_read_four(const unsigned char *at)
{
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return halves[0] | (uint32_t)halves[1] << 16;
}

INLINE uint32_t xxh3_swapped(uint32_t x)
{
    return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}

INLINE uint64_t xxh3_swapped_long(uint64_t x)
{
    return (uint64_t)xxh3_swapped((uint32_t)x) << 32 | xxh3_swapped((uint32_t)(x >> 32));
}

/** Eight bytes of two words, from a bit on; bit: 8, 16, .. 56. */
INLINE uint64_t xxh3_between(const uint64_t two[2], int bit)
{
    return two[0] >> bit | two[1] << (64 - bit);
}

/** Eight bytes of the secret, from any byte on. */
INLINE uint64_t xxh3_secret_at(unsigned byte)
{
    const uint64_t *at = xxh3_secret + byte / 8;
    return byte % 8 ? xxh3_between(at, (int)(byte % 8 * 8)) : at[0];
}

INLINE struct xxh3_hash xxh3_product(uint64_t a, uint64_t b)
{
    struct xxh3_hash product;
    product.low = a * b;
    product.high = __umul64hi(a, b);
    return product;
}

INLINE uint64_t xxh3_folded(uint64_t a, uint64_t b)
{
    const struct xxh3_hash product = xxh3_product(a, b);
    return product.low ^ product.high;
}

INLINE struct xxh3_hash xxh3_added(struct xxh3_hash a, struct xxh3_hash b)
{
    a.low += b.low;
    a.high += b.high + (a.low < b.low);
    return a;
}

INLINE uint64_t xxh3_avalanche(uint64_t x)
{
    x = (x ^ x >> 37) * 0x165667919E3779F9u;
    return x ^ x >> 32;
}

/** That of XXH64. */
INLINE uint64_t xxh3_other_avalanche(uint64_t x)
{
    x = (x ^ x >> 33) * XXH3_PRIME64_2;
    x = (x ^ x >> 29) * XXH3_PRIME64_3;
    return x ^ x >> 32;
}

/* ------------------------------------------------------------------ short */

/** Two bytes. */
INLINE struct xxh3_hash xxh3_of_two(const unsigned char *input, uint64_t seed)
{
    const uint32_t first = input[0], last = input[1];
    const uint32_t both = first << 16 | last << 24 | last | 2u << 8, other = xxh3_swapped(both);
    const uint64_t low = ((uint32_t)xxh3_secret[0] ^ (uint32_t)(xxh3_secret[0] >> 32)) + seed;
    const uint64_t high = ((uint32_t)xxh3_secret[1] ^ (uint32_t)(xxh3_secret[1] >> 32)) - seed;
    struct xxh3_hash hash;
    hash.low = xxh3_other_avalanche(both ^ low);
    hash.high = xxh3_other_avalanche((other << 13 | other >> 19) ^ high);
    return hash;
}

/** 4 to 8. */
INLINE struct xxh3_hash xxh3_of_eight(const unsigned char *input, unsigned bytes, uint64_t seed)
{
    const uint64_t mixed = seed ^ (uint64_t)xxh3_swapped((uint32_t)seed) << 32;
    const uint64_t all =
        xxh3_read_four(input) + ((uint64_t)xxh3_read_four(input + bytes - 4) << 32);
    const uint64_t key = (xxh3_secret[2] ^ xxh3_secret[3]) + mixed;
    struct xxh3_hash hash = xxh3_product(all ^ key, XXH3_PRIME64_1 + (bytes << 2));
    hash.high += hash.low << 1;
    hash.low ^= hash.high >> 3;
    hash.low = (hash.low ^ hash.low >> 35) * 0x9FB21C651E98DF25u;
    hash.low ^= hash.low >> 28;
    hash.high = xxh3_avalanche(hash.high);
    return hash;
}

/** 9 to 16. */
INLINE struct xxh3_hash xxh3_of_sixteen(const unsigned char *input, unsigned bytes, uint64_t seed)
{
    const uint64_t low = xxh3_read(input), high = xxh3_read(input + bytes - 8);
    const uint64_t low_key = (xxh3_secret[4] ^ xxh3_secret[5]) - seed;
    const uint64_t high_key = (xxh3_secret[6] ^ xxh3_secret[7]) + seed, keyed = high ^ high_key;
    struct xxh3_hash hash = xxh3_product(low ^ high ^ low_key, XXH3_PRIME64_1);
    hash.low += (uint64_t)(bytes - 1) << 54;
    hash.high += keyed + (keyed & 0xffffffff) * (XXH3_PRIME32_2 - 1);
    hash.low ^= xxh3_swapped_long(hash.high);
    const uint64_t rest = hash.high * XXH3_PRIME64_2;
    hash = xxh3_product(hash.low, XXH3_PRIME64_2);
    hash.low = xxh3_avalanche(hash.low);
    hash.high = xxh3_avalanche(hash.high + rest);
    return hash;
}

/** Sixteen bytes with sixteen of the secret. */
INLINE uint64_t xxh3_mixed(uint64_t low, uint64_t high, unsigned secret, uint64_t seed)
{
    return xxh3_folded(low ^ (xxh3_secret_at(secret) + seed),
                       high ^ (xxh3_secret_at(secret + 8) - seed));
}

/** Mixes two times sixteen bytes in. */
INLINE void xxh3_mix(struct xxh3_hash *sum, const unsigned char *a, const unsigned char *b,
                     unsigned secret, uint64_t seed)
{
    const uint64_t a_low = xxh3_read(a), a_high = xxh3_read(a + 8);
    const uint64_t b_low = xxh3_read(b), b_high = xxh3_read(b + 8);
    sum->low = (sum->low + xxh3_mixed(a_low, a_high, secret, seed)) ^ (b_low + b_high);
    sum->high = (sum->high + xxh3_mixed(b_low, b_high, secret + 16, seed)) ^ (a_low + a_high);
}

/** 17 to 240. */
INLINE struct xxh3_hash xxh3_of_some(const unsigned char *input, unsigned bytes, uint64_t seed)
{
    struct xxh3_hash sum = {bytes * XXH3_PRIME64_1, 0};
    if (bytes <= 128) {
        for (int i = (int)(bytes - 1) / 32; i >= 0; i--)
            xxh3_mix(&sum, input + 16 * i, input + bytes - 16 * (i + 1), 32 * (unsigned)i, seed);
    } else {
        for (unsigned i = 0; i < bytes / 32; i++) {
            xxh3_mix(&sum, input + 32 * i, input + 32 * i + 16, i < 4 ? 32 * i : 3 + 32 * (i - 4),
                     seed);
            if (i == 3) {
                sum.low = xxh3_avalanche(sum.low);
                sum.high = xxh3_avalanche(sum.high);
            }
        }
        xxh3_mix(&sum, input + bytes - 16, input + bytes - 32, 136 - 17 - 16, 0 - seed);
    }
    struct xxh3_hash hash;
    hash.low = xxh3_avalanche(sum.low + sum.high);
    hash.high = 0 - xxh3_avalanche(sum.low * XXH3_PRIME64_1 + sum.high * XXH3_PRIME64_4 +
                                   (bytes - seed) * XXH3_PRIME64_2);
    return hash;
}

/** Of at most XXH3_SHORT bytes, by one thread. Rare. */
static __device__ __noinline__ struct xxh3_hash xxh3_of_short(const unsigned char *input,
                                                              unsigned bytes, uint64_t seed)
{
    return bytes > 16  ? xxh3_of_some(input, bytes, seed)
           : bytes > 8 ? xxh3_of_sixteen(input, bytes, seed)
           : bytes > 2 ? xxh3_of_eight(input, bytes, seed)
                       : xxh3_of_two(input, seed);
}

/** XXH3-64 of three words. */
INLINE uint64_t xxh3_of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t seed)
{
    return xxh3_avalanche(3 * sizeof a * XXH3_PRIME64_1 + xxh3_mixed(a, b, 0, seed) +
                          xxh3_mixed(b, c, 16, seed));
}

/* ------------------------------------------------------------------ long */

/** Sixteen bytes of a stripe, or the accumulators for them. */
struct xxh3_pair {
    uint64_t a, b;
};

INLINE void xxh3_accumulate(struct xxh3_pair *sum, struct xxh3_pair x, uint64_t key_a,
                            uint64_t key_b)
{
    const uint64_t a = x.a ^ key_a, b = x.b ^ key_b;
    sum->a += x.b + (a & 0xffffffff) * (a >> 32);
    sum->b += x.a + (b & 0xffffffff) * (b >> 32);
}

INLINE uint64_t xxh3_scrambled(uint64_t x, uint64_t key)
{
    return (x ^ x >> 47 ^ key) * XXH3_PRIME32_1;
}

/** Some stripes of a block, at most all of it; `input` is this thread's part of the first one. */
INLINE void xxh3_add_stripes(struct xxh3_pair *sum, const unsigned char *input, unsigned stripes,
                             const uint64_t key[XXH3_WORDS])
{
    struct xxh3_pair x[XXH3_STRIPES]; // all on their way before the first is needed
    for (unsigned n = 0; n < XXH3_STRIPES; n++)
        if (n < stripes) {
            const ulonglong2 both = *(const ulonglong2 *)(const void *)(input + n * XXH3_STRIPE);
            x[n].a = both.x, x[n].b = both.y;
        }
    for (unsigned n = 0; n < XXH3_STRIPES; n++)
        if (n < stripes)
            xxh3_accumulate(sum, x[n], key[n], key[n + 1]);
}

/** This thread's part of the hash of more than XXH3_SHORT bytes, from a multiple of 16 on. */
INLINE struct xxh3_hash xxh3_part(const unsigned char *input, unsigned bytes, uint64_t seed,
                                  unsigned thread)
{
    const unsigned block = XXH3_STRIPES * XXH3_STRIPE, whole = XXH3_STRIPES - 1;
    const unsigned char *at = input + 16 * thread;
    struct xxh3_pair sum = {xxh3_start[2 * thread], xxh3_start[2 * thread + 1]};
    uint64_t key[XXH3_WORDS];
    for (unsigned i = 0; i < XXH3_WORDS; i++)
        key[i] = xxh3_secret[2 * thread + i] + (i % 2 ? 0 - seed : seed);
    unsigned left = bytes - 1;
    for (; left >= block; left -= block, at += block) {
        xxh3_add_stripes(&sum, at, XXH3_STRIPES, key);
        sum.a = xxh3_scrambled(sum.a, key[XXH3_STRIPES]);
        sum.b = xxh3_scrambled(sum.b, key[XXH3_STRIPES + 1]);
    }
    if (left / XXH3_STRIPE == whole) // of a granule
        xxh3_add_stripes(&sum, at, whole, key);
    else
        xxh3_add_stripes(&sum, at, left / XXH3_STRIPE, key);
    at = input + bytes - XXH3_STRIPE + 16 * thread;
    const struct xxh3_pair last = {xxh3_read(at), xxh3_read(at + 8)};
    xxh3_accumulate(&sum, last, xxh3_between(key + 15, 8), xxh3_between(key + 16, 8));
    struct xxh3_hash part;
    part.low = xxh3_folded(sum.a ^ xxh3_between(key + 1, 24), sum.b ^ xxh3_between(key + 2, 24));
    part.high = xxh3_folded(sum.a ^ xxh3_between(key + 14, 40), sum.b ^ xxh3_between(key + 15, 40));
    return part;
}

/** The hash, of the parts of all threads, each half added up. */
INLINE struct xxh3_hash xxh3_of_parts(struct xxh3_hash parts, unsigned bytes)
{
    parts.low = xxh3_avalanche(parts.low + bytes * XXH3_PRIME64_1);
    parts.high = xxh3_avalanche(parts.high + ~(bytes * XXH3_PRIME64_2));
    return parts;
}

#endif
