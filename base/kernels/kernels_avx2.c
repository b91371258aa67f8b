#include "base/kernels/vector_avx2.h"

#define TABLE eng_kernels_avx2

#include "base/kernels/kernels_loop.h"
