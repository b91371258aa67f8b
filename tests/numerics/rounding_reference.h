/**
 * Rounding to 16 bits by its meaning: to nearest even, and stochastically, with the random numbers
 * that base/kernels/kernels.h and zero/exec/stochastic.c say an element has. For finite values.
 */
#ifndef TESTS_NUMERICS_ROUNDING_REFERENCE_H
#define TESTS_NUMERICS_ROUNDING_REFERENCE_H

#include <zero/zero.h>

/** What is rounded of an element. */
enum { ROUNDED_WEIGHT = 0, ROUNDED_MOMENT = 1 /**< and the one after */ };

/** The key of a slice's random numbers in an update, which counts from 1. */
uint64_t rounding_key(uint64_t seed, const char *name, int32_t slice, uint64_t updates,
                      uint64_t purpose);

/** The value itself where the type is f32. */
long double rounding_nearest(zero_dtype dtype, long double value);

/** For bf16 and f16. */
long double rounding_stochastic(zero_dtype dtype, uint64_t key, uint64_t element,
                                long double value);

#endif
