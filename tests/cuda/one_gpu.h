/**
 * tests/cuda/one_gpu.h: NCCL between ranks of this machine that it takes for those of several,
 * because it has no two of one on a GPU.
 */
#ifndef TESTS_CUDA_ONE_GPU_H
#define TESTS_CUDA_ONE_GPU_H

#include <stdlib.h>

/** What their environment has beside an NCCL_HOSTID of each: they meet over the loopback, and leave
 * each other room on the GPU. */
static inline void one_gpu_for_all(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_MAX_CTAS", "2", 0);
}

#endif
