/**
 * zero/core/addresses.h: where a rank's tensors are in memory.
 */
#ifndef ZERO_CORE_ADDRESSES_H
#define ZERO_CORE_ADDRESSES_H

#include "zero/core/context.h"

#include <assert.h>

/** The byte where granule `granule` of a bucket's home lies. State on a device lies there, but in
 * memory while a visit to it is under way; so do the fields below. */
static inline unsigned char *eng_home(const zero_ctx *z, size_t bucket, size_t granule)
{
    return z->store->home(z, bucket, granule);
}

/** fp32 master weights from element `element` of a bucket on, which must have them; state must
 * cover the element, here and below. */
static inline float *eng_weights(const zero_ctx *z, size_t bucket, size_t element)
{
    assert(z->placement.buckets[bucket].master);
    return z->store->field(z, 0, bucket, element);
}

/** Master weights, or the working copy where there are none; *size: bytes of an element. */
static inline void *eng_best_weights(const zero_ctx *z, size_t bucket, size_t element, size_t *size)
{
    const bool master = z->placement.buckets[bucket].master;
    *size = master ? sizeof(float) : eng_dtype_size(z->layout.buckets[bucket].dtype);
    return z->store->field(z, 0, bucket, element);
}

/** A moment, of type config.moment_dtype. */
static inline void *eng_moments(const zero_ctx *z, int which, size_t bucket, size_t element)
{
    return z->store->field(z, 1 + which, bucket, element);
}

/** This rank's sums from an element of a bucket on. */
static inline float *eng_own_sums(const zero_ctx *z, size_t bucket, size_t element)
{
    return z->store->sums->own(z, bucket, element);
}

/** This rank's unfinished blocks of a bucket; NULL if no round leaves any. */
static inline float *eng_own_blocks(const zero_ctx *z, size_t bucket)
{
    return z->store->sums->own_blocks(z, bucket);
}

/** Where an element of a bucket lies in the sums of its owner, which has them shard by shard, or in
 * all sums, which this rank has rank by rank. */
size_t eng_sum_index(const zero_ctx *z, int owner, size_t bucket, size_t element);
/** The sums of the rank that owns the element; of others at stage 0 only. */
const float *eng_sums(const zero_ctx *z, int owner, size_t bucket, size_t element);

/** Where a program that goes on after a fatal error reads and writes without harm: zeros at first,
 * as large as the largest slice, in no other use. NULL without such an error, or if there is none
 * to be had. */
void *eng_nowhere(zero_ctx *z);
void eng_nowhere_free(zero_ctx *z);

/** A slice's working copy; NULL if no slot has its unit. */
const unsigned char *eng_gathered(const zero_ctx *z, const struct eng_slice *slice);

#endif
