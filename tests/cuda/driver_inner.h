/**
 * tests/cuda/driver_inner.h: what the files of the stand-in for NVIDIA's driver have in common:
 * driver.c has all but driver_kernels.c, which has modules, functions and their launch.
 */
#ifndef TESTS_CUDA_DRIVER_INNER_H
#define TESTS_CUDA_DRIVER_INNER_H

#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define EXPORTED __attribute__((visibility("default")))

struct on_host_kernel;
struct event;

enum kind { COPY, SET, KERNEL, CALL, RECORD, WAIT };

struct work {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    const struct on_host_kernel *kernel;
    size_t blocks;
    void *argument; // this work's own
    CUhostFn call;
    void *user;
    struct event *event;
    uint64_t count; // of the event's
};

/** What a function that needs a context returns, if it could do what it is for. */
CUresult driver_in_context(const char *function);

/** Gives work to a stream of the GPU entered. */
CUresult driver_give(const char *function, CUstream handle, const struct work *work);

/** Counts modules that there are. */
void driver_count_modules(unsigned change);

#endif
