/**
 * blas.h: the one door to the BLAS: single-threaded matrix products, metered.
 */
#ifndef GPT2_BLAS_H
#define GPT2_BLAS_H

#include "gpt2_pool.h"
#include "real.h"

#include <stdbool.h>

/** A matrix in memory, row-major; `stride` elements from row to row. */
struct matrix {
    const real *data;
    int stride;
    bool transposed; /**< it is used as its transpose */
};

/**
 * Makes the BLAS ready: every call runs in its caller's thread. An OpenBLAS that doesn't know this
 * CPU falls back to the oldest kernels it has, several times slower, and can be told better by the
 * environment only; then the program is started anew, once, with OPENBLAS_CORETYPE set, and this
 * call doesn't return. Call it first in main(), before there is any thread.
 */
void blas_prepare(char **argv);

/** Writes name, version and kernels of the BLAS, for the report. */
void blas_describe(char *text, size_t size);

/** c (m x n) = alpha * a (m x k) * b (k x n) + beta * c, in this thread. */
void blas_gemm(struct pool_meter *meter, int m, int n, int k, real alpha, struct matrix a,
               struct matrix b, real beta, real *c, int c_stride);

#endif
