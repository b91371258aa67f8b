/**
 * base/kernels/kernels_cuda.h: what the two sides of the kernels for NVIDIA's GPUs agree on: the
 * code that runs there (kernels_cuda.cu), and the one that starts it (kernels_cuda.c). C, and C++
 * too.
 */
#ifndef BASE_KERNELS_KERNELS_CUDA_H
#define BASE_KERNELS_KERNELS_CUDA_H

#include "base/exact_digits.h"
#include "base/kernels/device_kernels.h"
#include "base/kernels/kernel_tables.h"

/** Threads of every block: a granule's elements, four each; and four for each granule of a digest's
 * run. */
#define BASE_CUDA_THREADS (BASE_GRANULE / 4)

/** Granules that a block of the sum takes: a thread for each of their lanes. */
#define BASE_CUDA_TILE (BASE_CUDA_THREADS / BASE_SUM_LANES)

/** Blocks of the kernel that adds squares: enough of them for every GPU there is. */
#define BASE_CUDA_SQUARE_BLOCKS 256

#endif
