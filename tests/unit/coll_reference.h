/**
 * tests/unit/coll_reference.h: sums, minima and maxima as loops that leave nothing to doubt, and
 * inputs of every kind.
 */
#ifndef TESTS_UNIT_COLL_REFERENCE_H
#define TESTS_UNIT_COLL_REFERENCE_H

#include "collectives/comm/comm.h"

enum { FIRST_DTYPE = ZERO_F32, LAST_DTYPE = ZERO_I64 };

size_t dtype_bytes(zero_dtype dtype);

/** Bytes of an element of the dtype's accumulator. */
size_t sum_bytes(zero_dtype dtype);

/** Writes the elements first .. first+n-1 of a vector: ordinary, tiny, huge, zeros, and, if wanted,
 * infinities and NaNs of all kinds. Element i is a function of (seed, i). */
void fill_elements(zero_dtype dtype, void *to, size_t first, size_t n, uint32_t seed, bool finite);

/** Whether element i is finite. */
bool is_finite(zero_dtype dtype, const void *from, size_t i);

/** sum[i] = op(sum[i], from[i]), or from[i] with `store`; no NaN is canonical before finish(). */
void combine(enum base_op op, zero_dtype dtype, void *sum, const void *from, size_t n, bool store);

/** Makes NaNs canonical. */
void finish(zero_dtype dtype, void *sum, size_t n);

/** Writes finished sums in the dtype. */
void narrow(zero_dtype dtype, void *out, const void *sum, size_t n);

#endif
