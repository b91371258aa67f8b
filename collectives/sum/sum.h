/**
 * collectives/sum/sum.h: the arithmetic of the ordered reduce-scatter, one table an instruction
 * set. ref.c defines it; every other table gives the same bits for every input, count and
 * alignment.
 */
#ifndef COLLECTIVES_SUM_SUM_H
#define COLLECTIVES_SUM_SUM_H

#include "zero/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COLL_SUM_SOURCES = 4, /**< what one pass can add */
    COLL_SUM_TILE = 4096, /**< elements: a tile of every source and the sum fit in cache */
};

/**
 * For i in 0 .. n-1: sum[i] = ((sum[i] + s0[first + i]) + s1[first + i]) ..., where sk is
 * sources[k]; with `store` s0[first + i] instead of the first addition. count: 1 ..
 * COLL_SUM_SOURCES sources. NaN results are written as 0x7fc00000. Returns whether every element
 * read from the sources is finite. Expects round to nearest and denormals.
 */
typedef bool (*coll_sum_fn)(float *sum, const void *const *sources, int count, size_t first,
                            size_t n, bool store);

struct coll_sum_kernels {
    size_t size;
    const char *name; /**< "ref", "avx2", "avx512" */
    coll_sum_fn f32;  /**< sources are float */
    coll_sum_fn bf16; /**< sources are uint16_t */
};

/** The i-th table this machine can run, the plainest first; NULL past the end. */
const struct coll_sum_kernels *coll_sum_at(int i);

/** The fastest one. */
const struct coll_sum_kernels *coll_sum_best(void);

/** The same for any number of sources, which are of type `dtype`: COLL_SUM_SOURCES at a time. */
bool coll_sum_tile(const struct coll_sum_kernels *kernels, zero_dtype dtype, float *sum,
                   const void *const *sources, int count, size_t first, size_t n, bool store);

/** The first of n elements from `first` on that is not finite; first + n if there is none. */
size_t coll_sum_nonfinite(zero_dtype dtype, const void *source, size_t first, size_t n);

extern const struct coll_sum_kernels coll_sum_ref;
extern const struct coll_sum_kernels coll_sum_avx2;
extern const struct coll_sum_kernels coll_sum_avx512;

#endif
