/**
 * base/kernels/accumulator.h: how elements of several vectors are combined to one, and in which
 * type.
 */
#ifndef BASE_KERNELS_ACCUMULATOR_H
#define BASE_KERNELS_ACCUMULATOR_H

#include "zero/types.h"

#include <stddef.h>

/** How values are combined, in rank order: 0 + 1, then + 2, ...; the least or the greatest of
 * values with a NaN among them is NaN. */
enum base_op { BASE_SUM, BASE_MIN, BASE_MAX };

/** The type in which contributions of a dtype are added: f32 for f32, bf16, f16; else the dtype
 * itself. */
zero_dtype base_accumulator_dtype(zero_dtype dtype);

/** Bytes of a dtype's element, 0 if there is no such dtype. */
size_t base_dtype_bytes(zero_dtype dtype);

#endif
