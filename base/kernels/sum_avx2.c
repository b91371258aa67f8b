#include "base/kernels/vector_avx2.h"

#define TABLE base_sum_avx2

#include "base/kernels/sum_loop.h"
