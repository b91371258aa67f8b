#include "base/kernels/vector_avx2.h"

#define TABLE base_kernels_avx2

#include "base/kernels/kernels_loop.h"
