/**
 * tests/bench/sums.h: loops that one would write without us, compiled for this machine.
 */
#ifndef TESTS_BENCH_SUMS_H
#define TESTS_BENCH_SUMS_H

#include <stddef.h>
#include <stdint.h>

enum { SUMS_MOST = 8 };

/** sum[i] = sources[0][i] + ... of 2, 4 or 8 sources. */
void sums_f32(float *sum, const float *const *sources, int count, size_t n);

/** The same of bf16. */
void sums_bf16(float *sum, const uint16_t *const *sources, int count, size_t n);

/** The sum of squares, in an order that suits the machine. */
float sums_squares(const float *values, size_t n);

#endif
