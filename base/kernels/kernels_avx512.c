#include "base/kernels/vector_avx512.h"

#define TABLE base_kernels_avx512

#include "base/kernels/kernels_loop.h"
