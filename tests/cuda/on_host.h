/**
 * tests/cuda/on_host.h: the kernels of base/kernels/kernels_cuda.cu, compiled for the processor:
 * what they compute is tested where there is no GPU. A block's threads take turns, as fibers where
 * they wait for each other; blocks run one after the other, and one kernel at a time.
 */
#ifndef TESTS_CUDA_ON_HOST_H
#define TESTS_CUDA_ON_HOST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct on_host_kernel {
    const char *name;
    size_t argument_bytes; /**< of its only one */
    unsigned threads;      /**< of a block */
    void (*run)(size_t blocks, const void *argument);
};

/** The kernel called `name`; NULL if there is none. */
const struct on_host_kernel *on_host_find(const char *name);

/** The same of others, in a driver that has some: on_host_find() asks it if it is there. */
const struct on_host_kernel *on_host_more(const char *name);

#ifdef __cplusplus
}
#endif

#endif
