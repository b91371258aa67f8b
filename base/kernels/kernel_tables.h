/**
 * What the files of kernels/ share among themselves: the tables, and the last steps of operations
 * whose first ones differ by instruction set.
 */
#ifndef BASE_KERNELS_KERNEL_TABLES_H
#define BASE_KERNELS_KERNEL_TABLES_H

#include "base/kernels/kernels.h"

/** Bits of the one NaN that is ever written. */
#define BASE_NAN_F32 0x7fc00000
#define BASE_NAN_BF16 0x7fc0
#define BASE_NAN_F16 0x7e00

/** Blocks of random numbers that are drawn together, whatever the width of the registers. */
#define BASE_DRAW_LANES 16

/** Lanes of a sum of squares, whatever the width of the registers. */
#define BASE_SUM_LANES 16

extern const struct base_kernels base_kernels_ref;
extern const struct base_kernels base_kernels_avx2;
extern const struct base_kernels base_kernels_avx512;

/**
 * The distance in bytes at which loops prefetch: 512 on a processor of AMD, 2048 on others. It
 * changes no bit. base_prefetch_choose() sets it; the benchmark sets it, too.
 *
 * Where a loop divides, or goes through one array only, the prefetching of an Intel processor
 * leaves an eighth to a third of the bandwidth unused. Zen 4's leaves a tenth unused with AVX-512
 * and a quarter with AVX2, and gains nothing from a distance of 2 KiB. tests/bench/bench_update.c
 * has a row that compares the two distances.
 */
extern size_t base_prefetch_bytes;

/** Chooses base_prefetch_bytes for this processor, at its first call; later calls do nothing. */
void base_prefetch_choose(void);

/** Prefetches what lies base_prefetch_bytes behind x; that address need not exist. */
static inline void base_prefetch(const void *x)
{
    __builtin_prefetch((const void *)((uintptr_t)x + base_prefetch_bytes));
}

/** Element `element` of a stochastic rounding, drawn by itself. *Local.* */
uint16_t base_round_bf16_one(uint64_t key, uint64_t element, float x);
uint16_t base_round_f16_one(uint64_t key, uint64_t element, float x);

/** Adds contributions: elements first .. first+count-1 of a run, in order, as far as the sums are
 * finite. Returns how many. *Local.* */
size_t base_add_contributions(const struct base_contributions *from, size_t first, size_t count,
                              float *sum);

/** Adds the squares of elements first .. count-1 of x to their lanes. *Local.* */
void base_add_squares(double lanes[BASE_SUM_LANES], size_t first, size_t count, const float *x);

/** The lanes added as a tree, NaN canonical; overwrites them. *Local.* */
double base_add_lanes(double lanes[BASE_SUM_LANES]);

#endif
