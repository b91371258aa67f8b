#include "base/kernels/vector_avx512.h"

#define TABLE eng_kernels_avx512

#include "base/kernels/kernels_loop.h"
