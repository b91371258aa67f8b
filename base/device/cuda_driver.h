/**
 * base/device/cuda_driver.h: NVIDIA's driver, loaded when it is asked for, so that the library
 * needs nothing of it where there is no GPU.
 */
#ifndef BASE_DEVICE_CUDA_DRIVER_H
#define BASE_DEVICE_CUDA_DRIVER_H

#include "base/error.h"

#include <cuda.h>

/** The functions of the driver that are called: a field, and their name in <device_cuda.h>. */
#define BASE_CUDA_FUNCTIONS(X)                                                                     \
    X(init, cuInit)                                                                                \
    X(error_name, cuGetErrorName)                                                                  \
    X(error_text, cuGetErrorString)                                                                \
    X(device_count, cuDeviceGetCount)                                                              \
    X(device_get, cuDeviceGet)                                                                     \
    X(context_retain, cuDevicePrimaryCtxRetain)                                                    \
    X(context_push, cuCtxPushCurrent)                                                              \
    X(context_pop, cuCtxPopCurrent)                                                                \
    X(context_device, cuCtxGetDevice)                                                              \
    X(device_id, cuDeviceGetUuid_v2)                                                               \
    X(priorities, cuCtxGetStreamPriorityRange)                                                     \
    X(memory_info, cuMemGetInfo)                                                                   \
    X(alloc, cuMemAlloc)                                                                           \
    X(free, cuMemFree)                                                                             \
    X(host_register, cuMemHostRegister)                                                            \
    X(host_unregister, cuMemHostUnregister)                                                        \
    X(copy, cuMemcpyAsync)                                                                         \
    X(set, cuMemsetD8Async)                                                                        \
    X(stream_create, cuStreamCreateWithPriority)                                                   \
    X(stream_sync, cuStreamSynchronize)                                                            \
    X(stream_destroy, cuStreamDestroy)                                                             \
    X(stream_wait, cuStreamWaitEvent)                                                              \
    X(event_create, cuEventCreate)                                                                 \
    X(event_record, cuEventRecord)                                                                 \
    X(event_query, cuEventQuery)                                                                   \
    X(event_sync, cuEventSynchronize)                                                              \
    X(event_destroy, cuEventDestroy)                                                               \
    X(module_load, cuModuleLoadData)                                                               \
    X(module_unload, cuModuleUnload)                                                               \
    X(module_function, cuModuleGetFunction)                                                        \
    X(launch, cuLaunchKernel)

struct base_cuda_driver {
#define BASE_CUDA_FIELD(field, function) __typeof__(function) *(field);
    BASE_CUDA_FUNCTIONS(BASE_CUDA_FIELD)
#undef BASE_CUDA_FIELD
};

/** The driver, loaded and initialised by the first call that can. ZERO_E_UNSUPPORTED: *driver is
 * NULL; there is none, it lacks a function, or it finds no GPU. *Local*, any thread. */
zero_result base_cuda_driver(const struct base_cuda_driver **driver, struct base_error *error);

/** The driver, for callers that have called base_cuda_driver() before: never NULL. */
const struct base_cuda_driver *base_cuda_loaded(void);

/** Fails with the driver's words for `status`, which `call` has returned; `what` says what for, and
 * may be empty. ZERO_E_NOMEM if that is it, else ZERO_E_DEVICE. */
zero_result base_cuda_failed(CUresult status, const char *call, const char *what,
                             struct base_error *error);

#endif
