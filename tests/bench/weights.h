/**
 * tests/bench/weights.h: values that compress no better than a model's weights.
 */
#ifndef TESTS_BENCH_WEIGHTS_H
#define TESTS_BENCH_WEIGHTS_H

#include "zero/zero.h"

/** A zero_fill_fn: normal ones, by name, slice and place; `user` has no effect. */
zero_result weights_fill(void *user, const char *name, int32_t slice, uint64_t first,
                         uint64_t count, float *out);

#endif
