#include "base/kernels/vector_avx512.h"

#define TABLE base_sum_avx512

#include "base/kernels/sum_loop.h"
