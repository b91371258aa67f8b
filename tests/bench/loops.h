/**
 * What the update is compared with. Compiled for this machine with everything the compiler has.
 */
#ifndef TESTS_BENCH_LOOPS_H
#define TESTS_BENCH_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/** The arrays of an update. */
struct arrays {
    float *gradient, *m;
    float *v; /**< or NULL */
    float *weight;
    uint16_t *work; /**< 32-byte aligned, or NULL */
};

// The loops below prefetch `ahead` bytes ahead; 0: not at all.

/** Reads and writes what an optimizer reads and writes, and computes next to nothing: the limit
 * that memory sets. count is a multiple of 16. */
void loop_stream(size_t count, const struct arrays *arrays, size_t ahead);

/** Reads an array; the result is of no interest. count is a multiple of 16. */
float loop_read(size_t count, const float *x, size_t ahead);

/** Multiplies an array in place. count is a multiple of 16. */
void loop_scale(size_t count, float *x, float factor, size_t ahead);

/** AdamW as one would write it down (llm.c's update is such a loop), left to the compiler. */
void loop_plain_adamw(size_t count, const struct arrays *arrays, float lr, float beta1, float beta2,
                      float correction1, float correction2, float eps, float weight_decay);

#endif
