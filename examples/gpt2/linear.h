/**
 * linear.h: y = x W + b over rows of tokens, forward and backward, in tiles.
 *
 * Every element of a result belongs to one tile, and a tile is one product over the whole inner
 * dimension; tiles depend on the shapes only, so the number of threads changes no bit.
 */
#ifndef GPT2_LINEAR_H
#define GPT2_LINEAR_H

#include "blas.h"

/** c (m x n, dense) = a (m x k) * b (k x n) + beta * c. */
void matmul(struct pool *pool, int m, int n, int k, struct matrix a, struct matrix b, real beta,
            real *c);

/** out (rows x outs) = in (rows x ins) * weight (ins x outs) + bias, + residual unless NULL. */
void linear_forward(struct pool *pool, real *out, const real *in, const real *weight,
                    const real *bias, const real *residual, int rows, int ins, int outs);

/** d_in = d_out * weight^T. */
void linear_backward_in(struct pool *pool, real *d_in, const real *d_out, const real *weight,
                        int rows, int ins, int outs);

/** d_weight = in^T * d_out, d_bias = the sum of d_out's rows, in order. Overwrites both. */
void linear_backward_weight(struct pool *pool, real *d_weight, real *d_bias, const real *in,
                            const real *d_out, int rows, int ins, int outs);

#endif
