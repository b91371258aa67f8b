#include "tests/unit/fake_cuda.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define EXPORTED __attribute__((visibility("default")))

enum { MOST_ENTERED = 8, ALIGNMENT = 256 };

static struct {
    const char *function;
    CUresult status;
} failure;

static _Thread_local struct {
    CUcontext context[MOST_ENTERED];
    int depth;
} current;

static char contexts[FAKE_CUDA_GPUS], streams[2], events[2], module, kernel;

EXPORTED void fake_cuda_fail(const char *function, int status);
void fake_cuda_fail(const char *function, int status)
{
    failure.function = function;
    failure.status = (CUresult)status;
}

// What a function returns that could do what it is for.
static CUresult outcome(const char *function)
{
    if (!failure.function || strcmp(function, failure.function) != 0)
        return CUDA_SUCCESS;
    failure.function = NULL;
    return failure.status;
}

// The same of one that needs a context.
static CUresult in_context(const char *function)
{
    return current.depth > 0 ? outcome(function) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORTED CUresult cuInit(unsigned flags)
{
    (void)flags;
    return outcome("cuInit");
}

EXPORTED CUresult cuGetErrorName(CUresult status, const char **name)
{
    *name = status == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGetErrorString(CUresult status, const char **text)
{
    *text = status == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "not real";
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int *count)
{
    const char *number = getenv(FAKE_CUDA_GPUS_VARIABLE);
    *count = number ? atoi(number) : FAKE_CUDA_GPUS;
    return outcome("cuDeviceGetCount");
}

EXPORTED CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = number;
    return outcome("cuDeviceGet");
}

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(void *)&contexts[device];
    return outcome("cuDevicePrimaryCtxRetain");
}

EXPORTED CUresult cuCtxPushCurrent(CUcontext context)
{
    const CUresult status = outcome("cuCtxPushCurrent");
    if (status == CUDA_SUCCESS && current.depth < MOST_ENTERED)
        current.context[current.depth++] = context;
    return status;
}

EXPORTED CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (current.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current.context[--current.depth];
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return in_context("cuCtxGetStreamPriorityRange");
}

/* ------------------------------------------------------------------ memory */

EXPORTED CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    const CUresult status = in_context("cuMemAlloc");
    const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *memory = status == CUDA_SUCCESS ? (CUdeviceptr)(uintptr_t)aligned_alloc(ALIGNMENT, whole) : 0;
    return bytes > 0 ? status : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuMemFree(CUdeviceptr memory)
{
    free((void *)(uintptr_t)memory); // NOLINT(performance-no-int-to-ptr)
    return in_context("cuMemFree");
}

EXPORTED CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return memory && bytes > 0 ? in_context("cuMemHostRegister") : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuMemHostUnregister(void *memory)
{
    (void)memory;
    return in_context("cuMemHostUnregister");
}

EXPORTED CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUresult status = stream ? in_context("cuMemcpyAsync") : CUDA_ERROR_INVALID_HANDLE;
    if (status == CUDA_SUCCESS)
        memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, // NOLINT(performance-no-int-to-ptr)
               bytes);
    return status;
}

EXPORTED CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes,
                                  CUstream stream)
{
    const CUresult status = stream ? in_context("cuMemsetD8Async") : CUDA_ERROR_INVALID_HANDLE;
    if (status == CUDA_SUCCESS)
        memset((void *)(uintptr_t)memory, value, bytes); // NOLINT(performance-no-int-to-ptr)
    return status;
}

/* ------------------------------------------------------------------ streams, events */

EXPORTED CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    if (flags != CU_STREAM_NON_BLOCKING || (priority != 0 && priority != -5))
        return CUDA_ERROR_INVALID_VALUE;
    *stream = (CUstream)(void *)&streams[priority != 0];
    return in_context("cuStreamCreateWithPriority");
}

EXPORTED CUresult cuStreamSynchronize(CUstream stream)
{
    return stream ? in_context("cuStreamSynchronize") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuStreamDestroy(CUstream stream)
{
    return stream ? in_context("cuStreamDestroy") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return stream && event ? in_context("cuStreamWaitEvent") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    *event = (CUevent)(void *)&events[0];
    return flags == CU_EVENT_DISABLE_TIMING ? in_context("cuEventCreate")
                                            : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return stream && event ? in_context("cuEventRecord") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuEventQuery(CUevent event)
{
    return event ? in_context("cuEventQuery") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuEventSynchronize(CUevent event)
{
    return event ? in_context("cuEventSynchronize") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuEventDestroy(CUevent event)
{
    return event ? in_context("cuEventDestroy") : CUDA_ERROR_INVALID_HANDLE;
}

/* ------------------------------------------------------------------ kernels */

EXPORTED CUresult cuModuleLoadData(CUmodule *loaded, const void *image)
{
    *loaded = (CUmodule)(void *)&module;
    return image ? in_context("cuModuleLoadData") : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuModuleUnload(CUmodule loaded)
{
    return loaded ? in_context("cuModuleUnload") : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuModuleGetFunction(CUfunction *found, CUmodule loaded, const char *name)
{
    *found = (CUfunction)(void *)&kernel;
    return loaded && name ? in_context("cuModuleGetFunction") : CUDA_ERROR_INVALID_HANDLE;
}

#ifndef FAKE_CUDA_OLD
EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                                 unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                                 unsigned threads_z, unsigned shared, CUstream stream,
                                 void **arguments, void **extra)
{
    const bool in_bounds = blocks_x > 0 && blocks_y == 1 && blocks_z == 1 && threads_x > 0 &&
                           threads_x <= 1024 && threads_y == 1 && threads_z == 1 && shared == 0;
    if (!function || !stream || !arguments || extra || !in_bounds)
        return CUDA_ERROR_INVALID_VALUE;
    return in_context("cuLaunchKernel");
}
#endif
