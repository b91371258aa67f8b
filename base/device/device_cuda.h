/**
 * base/device/device_cuda.h: kernels on NVIDIA's GPUs, beside what base_device_cuda does as any
 * device.
 *
 * A module is the compiled code of some kernels (a fat binary, as nvcc -fatbin makes it) on one
 * device; the driver takes the code of its architecture, or compiles the PTX in it. All functions
 * are called by a thread that has entered the device. *Local*, any thread.
 */
#ifndef BASE_DEVICE_DEVICE_CUDA_H
#define BASE_DEVICE_DEVICE_CUDA_H

#include "base/error.h"

#include <stddef.h>

/** Loads `image`, which `name` stands for in messages; *module NULL on error. ZERO_E_UNSUPPORTED:
 * there is no code for this GPU; ZERO_E_NOMEM, ZERO_E_DEVICE. */
zero_result base_cuda_load(void **module, const void *image, const char *name,
                           struct base_error *error);

/** Nothing of it may be under way. Accepts NULL. */
void base_cuda_unload(void *module);

/** The kernel called `name`, extern "C"; lives as long as the module. ZERO_E_DEVICE. */
zero_result base_cuda_kernel(void **kernel, void *module, const char *name,
                             struct base_error *error);

/** So many blocks of so many threads, in one dimension. */
struct base_cuda_grid {
    size_t blocks; /**< below 2^31; 0: nothing is done */
    unsigned threads;
};

/** Gives a kernel to a stream. arguments[i] points to the i-th one; they are copied. `name` is for
 * messages. ZERO_E_DEVICE, also of what an earlier kernel did. */
zero_result base_cuda_launch(void *kernel, const char *name, struct base_cuda_grid grid,
                             void **arguments, void *stream, struct base_error *error);

#endif
