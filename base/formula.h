/**
 * base/formula.h: how a header marks functions that processors and GPUs compile from one text, so
 * that both give the same bits: C, C++ and CUDA. Both compile without fusing a multiplication with
 * an addition (cmake/Compile.cmake, cmake/CudaImage.cmake).
 */
#ifndef BASE_FORMULA_H
#define BASE_FORMULA_H

#ifdef __CUDACC__
#define BASE_FORMULA static __host__ __device__ __forceinline__
#else
#define BASE_FORMULA static inline
#endif

#endif
