/**
 * tests/cuda/on_host.h: the kernels of zero/kernels/cuda.cu, compiled for the processor: what they
 * compute is tested where there is no GPU. A block's threads take turns, or are threads where they
 * wait for each other; blocks run one after the other. On base_device_cpu.
 */
#ifndef TESTS_CUDA_ON_HOST_H
#define TESTS_CUDA_ON_HOST_H

#include "zero/kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct eng_device_kernels eng_device_kernels_on_host;

#ifdef __cplusplus
}
#endif

#endif
