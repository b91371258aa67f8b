/**
 * base/kernels/digest.h: sums of the hashes of granules, for kernels_cuda.cu, which includes it
 * behind its operations. Four threads a granule, which read 64 bytes side by side; a block adds its
 * granules up first. Sums modulo 2^128 are the same in whatever order.
 */
#ifndef BASE_KERNELS_DIGEST_H
#define BASE_KERNELS_DIGEST_H

#include "base/kernels/xxh3.h"

/** Bytes of a granule of a part; 0 beyond its end. */
INLINE unsigned bytes_of_granule(const struct base_device_granules *part, unsigned granule)
{
    const unsigned first = granule * BASE_GRANULE;
    const unsigned left = first < part->count ? part->count - first : 0;
    return (left < BASE_GRANULE ? left : BASE_GRANULE) * part->element_bytes;
}

/** What a thread finds of its granule's hash: all of it, a part, or nothing. */
INLINE struct xxh3_hash hash_granule(const struct base_device_granules *part, size_t offset,
                                     unsigned granule, unsigned bytes, unsigned thread)
{
    const struct xxh3_hash nothing = {0, 0};
    const unsigned char *input = (const unsigned char *)part->elements + offset +
                                 (size_t)granule * BASE_GRANULE * part->element_bytes;
    const uint64_t seed =
        xxh3_of_words(part->slice, part->first + granule, part->array, part->name);
    if (bytes > XXH3_SHORT)
        return xxh3_part(input, bytes, seed, thread);
    return bytes > 0 && thread == 0 ? xxh3_of_short(input, bytes, seed) : nothing;
}

/** Adds to a sum in memory. Who carries is who makes the lower half wrap. */
INLINE void add_to_sum(unsigned long long *sum, struct xxh3_hash x)
{
    const unsigned long long before = atomicAdd(&sum[0], (unsigned long long)x.low);
    atomicAdd(&sum[1], (unsigned long long)x.high + (before + x.low < before));
}

/** A block a part. */
extern "C" __global__ void __launch_bounds__(BASE_CUDA_THREADS)
    base_cuda_digest(struct base_device_digest d)
{
    __shared__ struct xxh3_hash hashes[BASE_CUDA_THREADS];
    const struct base_device_granules part = d.parts[blockIdx.x];
    const unsigned granule = threadIdx.x / XXH3_THREADS, thread = threadIdx.x % XXH3_THREADS;
    const unsigned bytes = bytes_of_granule(&part, granule);
    struct xxh3_hash *mine = &hashes[threadIdx.x];
    *mine = hash_granule(&part, d.offset, granule, bytes, thread);
    for (unsigned step = 1; step < BASE_CUDA_THREADS; step *= 2) {
        __syncthreads();
        if (threadIdx.x % (2 * step) != 0)
            continue;
        if (step >= XXH3_THREADS) {
            *mine = xxh3_added(*mine, mine[step]);
            continue;
        }
        mine->low += mine[step].low;
        mine->high += mine[step].high;
        if (2 * step == XXH3_THREADS && bytes > XXH3_SHORT)
            *mine = xxh3_of_parts(*mine, bytes);
    }
    if (threadIdx.x == 0)
        add_to_sum((unsigned long long *)d.sums + 2 * (size_t)part.sum, *mine);
}

#endif
