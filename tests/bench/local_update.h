/**
 * tests/bench/local_update.h: AdamW over what one rank keeps, by the library's own kernel and
 * nothing else: what an update costs where nothing is sent.
 */
#ifndef TESTS_BENCH_LOCAL_UPDATE_H
#define TESTS_BENCH_LOCAL_UPDATE_H

#include <zero/zero.h>

struct base_kernels;

/** Elements and their state. */
struct local_state {
    size_t count;
    float *gradient, *moment[2], *weight;
    uint16_t *work;                     /**< bf16 working copy, or NULL */
    const struct base_kernels *kernels; /**< NULL at first: found by the first update */
};

/** Hyper-parameters of every benchmark. */
extern const zero_hyper local_hyper;

/** One update, by the fastest kernel. */
void local_update(struct local_state *state);

/** The same of elements at .. at + count - 1 with the sums of two gradients, which begin at
 * sources[k][first], and the squares of these sums. */
void local_update_sums(struct local_state *state, size_t at, size_t count,
                       const float *const sources[2], size_t first);

#endif
