/**
 * Element types of tensors and gradients, and what converts between them.
 */
#ifndef ZERO_MODEL_DTYPE_H
#define ZERO_MODEL_DTYPE_H

#include "base/kernels/kernels.h"
#include "zero/types.h"

#include <stddef.h>

/** Types of tensors, gradients and what travels: ZERO_F32 .. ZERO_F16. */
#define ENG_DTYPES 3

/** Bytes of an element; 0 for what no tensor can have. */
size_t eng_dtype_size(zero_dtype dtype);

/** "f32", "bf16", "f16"; "?" for what no tensor can have. */
const char *eng_dtype_name(zero_dtype dtype);

/** Any of the types to fp32, exact; NaN canonical where it was narrow. `from` and `to` don't
 * overlap, here and below. */
void eng_widen(const struct base_kernels *kernels, zero_dtype dtype, const void *from, size_t count,
               float *to);

/** fp32 to any of the types, to nearest even. */
void eng_narrow(const struct base_kernels *kernels, zero_dtype dtype, const float *from,
                size_t count, void *to);

/** The first of `count` values that is finite and becomes an infinity in this type, to nearest
 * even; `count`: none does. */
size_t eng_first_beyond(zero_dtype dtype, const float *values, size_t count);

/** The largest finite value of the type. */
float eng_largest(zero_dtype dtype);

/** fp32 to bf16 or f16, stochastic: round_bf16() and round_f16() of the kernels. */
void eng_round(const struct base_kernels *kernels, zero_dtype dtype, uint64_t key, uint64_t first,
               size_t count, const float *from, void *to);

/** Any of the types to any other, rounded once, to nearest even. */
void eng_convert(const struct base_kernels *kernels, zero_dtype from_dtype, const void *from,
                 zero_dtype to_dtype, void *to, size_t count);

#endif
