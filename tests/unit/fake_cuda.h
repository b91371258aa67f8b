/**
 * tests/unit/fake_cuda.h: a driver in place of NVIDIA's, for where there is no GPU: a library of
 * the same name whose devices are memory of the host, and whose work is done when it is given.
 * Kernels are found and started, and do nothing.
 */
#ifndef TESTS_UNIT_FAKE_CUDA_H
#define TESTS_UNIT_FAKE_CUDA_H

/** Has the next call of this function of the driver fail with this status of <cuda.h>. */
typedef void (*fake_cuda_fail_fn)(const char *function, int status);
#define FAKE_CUDA_FAIL "fake_cuda_fail"

/** So many GPUs are there; the environment may say another number. */
#define FAKE_CUDA_GPUS 3
#define FAKE_CUDA_GPUS_VARIABLE "FAKE_CUDA_GPUS"

#endif
