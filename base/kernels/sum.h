/**
 * base/kernels/sum.h: the arithmetic of the ordered reduce-scatter and the all-reduce, one table an
 * instruction set. sum_ref.c defines it; every other table gives the same bits for every input,
 * count and alignment.
 */
#ifndef BASE_KERNELS_SUM_H
#define BASE_KERNELS_SUM_H

#include "base/kernels/accumulator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BASE_DTYPES = ZERO_I64 + 1,
    BASE_SUM_TILE = 4096,  /**< elements: a tile of every source and the sum fit in cache */
    BASE_SUM_UNROLLED = 8, /**< sources for which sums have loops of their own */
    BASE_SUM_LINE = 64,    /**< bytes of a cache line */
};

/** Where a result is to be left. */
enum base_sum_to {
    BASE_SUM_CACHE,  /**< ordinary stores */
    BASE_SUM_MEMORY, /**< past the caches: this process does not read it soon. Visible to other
                        processors after base_sum_fence() */
};

/**
 * One pass over some elements: for i in 0 .. n-1
 *
 *     sum[i] = ((sum[i] + s0[first + i]) + s1[first + i]) ...
 *
 * where sk is sources[k]; with `store` s0[first + i] takes the place of the first addition. Or the
 * least or the greatest of them in place of the sum; a NaN among them makes it NaN. Done in the
 * accumulator's type (base_accumulator_dtype()), which sum has; integers are added modulo 2^n. NaN
 * is written as the positive quiet one without payload. sum and the sources are aligned to their
 * elements. Expects round to nearest and denormals.
 *
 * The result goes to also[0 .. also_count-1] too, from element also_first of each on: as it is, or
 * rounded to the sources' dtype, to nearest, ties to even. `to` is then about these, and sum gets
 * ordinary stores, or may be NULL if `store` is set.
 */
struct base_pass {
    enum base_op op;
    void *sum;
    const void *const *sources;
    int count; /**< of sources, at least 1 */
    size_t first, n;
    bool store;
    bool far; /**< the sources are in no near cache: they are asked for ahead */
    enum base_sum_to to;
    void *const *also;
    int also_count;
    size_t also_first;
    bool narrow; /**< what goes there is rounded */
};

/** Does it. Returns whether every element read from the sources is finite; true for integers, and
 * for the least and the greatest. */
typedef bool (*base_sum_fn)(const struct base_pass *pass);

/** Copies bytes that don't overlap. */
typedef void (*base_copy_fn)(void *to, const void *from, size_t bytes, enum base_sum_to where);

struct base_sum_kernels {
    size_t size;
    const char *name;             /**< "ref", "avx2", "avx512" */
    base_sum_fn sum[BASE_DTYPES]; /**< by the sources' dtype */
    base_copy_fn copy;
};

/** The i-th table this machine can run, the plainest first; NULL past the end. */
const struct base_sum_kernels *base_sum_at(int i);

/** The fastest one. */
const struct base_sum_kernels *base_sum_best(void);

/** The first of n elements from `first` on that is not finite; first + n if there is none, as among
 * integers. */
size_t base_sum_nonfinite(zero_dtype dtype, const void *source, size_t first, size_t n);

/** Makes stores past the caches visible before what follows. */
void base_sum_fence(void);

/** Bytes of the last-level cache, which ranks share. */
size_t base_sum_cache_bytes(void);

/**
 * Bytes that a rank may read and write in a reduction and still find in its own cache: a fresh
 * result of a larger one is stored past the caches. The size of the level-2 cache: measured, with
 * 2 MiB of it, ordinary stores are up to a third faster below 1 MiB, and the others from there on,
 * by 1.2 to 1.3 in a reduce-scatter and 1.4 to 1.7 in an all-reduce, also where everything fits in
 * level 3.
 */
size_t base_sum_core_bytes(void);

/** The elements i .. i+n-1 of a pass, as a pass. */
static inline struct base_pass base_sum_part(const struct base_pass *pass, size_t i, size_t n,
                                             size_t accumulator_bytes)
{
    struct base_pass part = *pass;
    if (pass->sum)
        part.sum = (unsigned char *)pass->sum + i * accumulator_bytes;
    part.first += i;
    part.also_first += i;
    part.n = n;
    return part;
}

/** How many of n elements lie before the first whole cache line. */
static inline size_t base_sum_head(const void *to, size_t n, size_t element_bytes)
{
    const size_t head = (size_t)(-(uintptr_t)to % BASE_SUM_LINE) / element_bytes;
    return head < n ? head : n;
}

/** base_sum_head() of the first of the other places that a pass leaves its result at. */
static inline size_t base_sum_also_head(const struct base_pass *pass, size_t accumulator_bytes)
{
    const size_t bytes =
        pass->narrow && accumulator_bytes == sizeof(float) ? sizeof(uint16_t) : accumulator_bytes;
    return base_sum_head((unsigned char *)pass->also[0] + pass->also_first * bytes, pass->n, bytes);
}

extern const struct base_sum_kernels base_sum_ref;
extern const struct base_sum_kernels base_sum_avx2;
extern const struct base_sum_kernels base_sum_avx512;

#endif
