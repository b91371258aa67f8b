#include "base/device/device_cuda.h"

#include "base/device.h"
#include "base/device/cuda_driver.h"

#include <assert.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

// A call of the driver that a device's function is made of.
static zero_result done(CUresult status, const char *call, const char *what,
                        struct base_error *error)
{
    return status == CUDA_SUCCESS ? ZERO_OK : base_cuda_failed(status, call, what, error);
}

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* ------------------------------------------------------------------ which one */

static zero_result cuda_count(int *count, struct base_error *error)
{
    const struct base_cuda_driver *driver;
    *count = 0;
    const zero_result result = base_cuda_driver(&driver, error);
    return result ? result : done(driver->device_count(count), "cuDeviceGetCount", "", error);
}

// The primary contexts of GPUs that were entered. They are kept: the program's own work may be in
// them, and making one takes a good part of a second.
enum { MOST_GPUS = 64 };
static _Atomic(CUcontext) contexts[MOST_GPUS];

static zero_result find_context(int number, CUcontext *context, struct base_error *error)
{
    CUdevice device;
    char what[32];
    int count;
    zero_result result = cuda_count(&count, error);
    if (result)
        return result;
    if (number < 0 || number >= count || number >= MOST_GPUS)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "cuda %d: there %s %d, from 0 on", number,
                         count == 1 ? "is" : "are", count);
    assert(number >= 0 && number < MOST_GPUS);
    snprintf(what, sizeof what, "GPU %d", number);
    const struct base_cuda_driver *driver = base_cuda_loaded();
    result = done(driver->device_get(&device, number), "cuDeviceGet", what, error);
    if (!result)
        result =
            done(driver->context_retain(context, device), "cuDevicePrimaryCtxRetain", what, error);
    if (!result)
        atomic_store(&contexts[number], *context);
    return result;
}

static zero_result cuda_enter(int number, struct base_error *error)
{
    CUcontext context = NULL;
    zero_result result = ZERO_OK;
    if (number >= 0 && number < MOST_GPUS)
        context = atomic_load_explicit(&contexts[number], memory_order_acquire);
    if (!context)
        result = find_context(number, &context, error);
    return result ? result
                  : done(base_cuda_loaded()->context_push(context), "cuCtxPushCurrent", "", error);
}

static void cuda_leave(void)
{
    CUcontext context;
    base_cuda_loaded()->context_pop(&context);
}

/* ------------------------------------------------------------------ memory */

static zero_result cuda_memory(struct base_device_memory *memory, struct base_error *error)
{
    const struct base_cuda_driver *driver = base_cuda_loaded();
    CUdevice device;
    CUuuid id;
    *memory = (struct base_device_memory){0};
    zero_result result = done(driver->context_device(&device), "cuCtxGetDevice", "", error);
    if (!result)
        result = done(driver->device_id(&id, device), "cuDeviceGetUuid", "", error);
    if (!result)
        result =
            done(driver->memory_info(&memory->free, &memory->total), "cuMemGetInfo", "", error);
    if (!result)
        memcpy(memory->identity, id.bytes, sizeof memory->identity);
    return result;
}

static zero_result cuda_alloc(void **memory, size_t bytes, struct base_error *error)
{
    CUdeviceptr there = 0;
    char what[48];
    snprintf(what, sizeof what, "%zu bytes", bytes);
    const zero_result result =
        done(base_cuda_loaded()->alloc(&there, bytes ? bytes : 1), "cuMemAlloc", what, error);
    *memory = result ? NULL : (void *)(uintptr_t)there; // NOLINT(performance-no-int-to-ptr)
    return result;
}

static void cuda_free(void *memory)
{
    if (memory)
        base_cuda_loaded()->free(address(memory));
}

static zero_result cuda_pin(void *memory, size_t bytes, struct base_error *error)
{
    char what[48];
    snprintf(what, sizeof what, "%zu bytes", bytes);
    return done(base_cuda_loaded()->host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE),
                "cuMemHostRegister", what, error);
}

static void cuda_unpin(void *memory)
{
    if (memory)
        base_cuda_loaded()->host_unregister(memory);
}

static zero_result cuda_copy(void *to, const void *from, size_t bytes, void *stream,
                             struct base_error *error)
{
    assert(bytes == 0 || (to && from));
    if (bytes == 0)
        return ZERO_OK;
    return done(base_cuda_loaded()->copy(address(to), address(from), bytes, stream),
                "cuMemcpyAsync", "", error);
}

static zero_result cuda_zero(void *memory, size_t bytes, void *stream, struct base_error *error)
{
    assert(bytes == 0 || memory);
    if (bytes == 0)
        return ZERO_OK;
    return done(base_cuda_loaded()->set(address(memory), 0, bytes, stream), "cuMemsetD8Async", "",
                error);
}

/* ------------------------------------------------------------------ streams, events */

static zero_result cuda_stream_create(void **stream, bool urgent, struct base_error *error)
{
    const struct base_cuda_driver *driver = base_cuda_loaded();
    CUstream made = NULL;
    int least, greatest;
    zero_result result =
        done(driver->priorities(&least, &greatest), "cuCtxGetStreamPriorityRange", "", error);
    if (!result)
        result =
            done(driver->stream_create(&made, CU_STREAM_NON_BLOCKING, urgent ? greatest : least),
                 "cuStreamCreateWithPriority", "", error);
    *stream = made;
    return result;
}

static zero_result cuda_stream_sync(void *stream, struct base_error *error)
{
    return done(base_cuda_loaded()->stream_sync(stream), "cuStreamSynchronize", "", error);
}

static void cuda_stream_destroy(void *stream)
{
    if (stream)
        base_cuda_loaded()->stream_destroy(stream);
}

static zero_result cuda_event_create(void **event, struct base_error *error)
{
    CUevent made = NULL;
    const zero_result result =
        done(base_cuda_loaded()->event_create(&made, CU_EVENT_DISABLE_TIMING), "cuEventCreate", "",
             error);
    *event = made;
    return result;
}

static zero_result cuda_event_record(void *event, void *stream, struct base_error *error)
{
    assert(event);
    return done(base_cuda_loaded()->event_record(event, stream), "cuEventRecord", "", error);
}

static zero_result cuda_event_wait(void *event, void *stream, struct base_error *error)
{
    assert(event);
    return done(base_cuda_loaded()->stream_wait(stream, event, CU_EVENT_WAIT_DEFAULT),
                "cuStreamWaitEvent", "", error);
}

static zero_result cuda_event_query(void *event, struct base_error *error)
{
    assert(event);
    const CUresult status = base_cuda_loaded()->event_query(event);
    return status == CUDA_ERROR_NOT_READY ? ZERO_AGAIN : done(status, "cuEventQuery", "", error);
}

static zero_result cuda_event_sync(void *event, struct base_error *error)
{
    assert(event);
    return done(base_cuda_loaded()->event_sync(event), "cuEventSynchronize", "", error);
}

static void cuda_event_destroy(void *event)
{
    if (event)
        base_cuda_loaded()->event_destroy(event);
}

const struct base_device base_device_cuda = {
    .size = sizeof(struct base_device),
    .name = "cuda",
    .count = cuda_count,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .stream_create = cuda_stream_create,
    .stream_sync = cuda_stream_sync,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_query = cuda_event_query,
    .event_sync = cuda_event_sync,
    .event_destroy = cuda_event_destroy,
};

/* ------------------------------------------------------------------ kernels */

zero_result base_cuda_load(void **module, const void *image, const char *name,
                           struct base_error *error)
{
    CUmodule made = NULL;
    const CUresult status = base_cuda_loaded()->module_load(&made, image);
    *module = made;
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU || status == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s has no code that this GPU and its driver can run", name);
    return done(status, "cuModuleLoadData", name, error);
}

void base_cuda_unload(void *module)
{
    if (module)
        base_cuda_loaded()->module_unload(module);
}

zero_result base_cuda_kernel(void **kernel, void *module, const char *name,
                             struct base_error *error)
{
    assert(module && name);
    CUfunction found = NULL;
    const zero_result result = done(base_cuda_loaded()->module_function(&found, module, name),
                                    "cuModuleGetFunction", name, error);
    *kernel = found;
    return result;
}

zero_result base_cuda_launch(void *kernel, const char *name, struct base_cuda_grid grid,
                             void **arguments, void *stream, struct base_error *error)
{
    assert(kernel && grid.threads > 0);
    if (grid.blocks == 0)
        return ZERO_OK;
    if (grid.blocks > INT_MAX)
        return zero_fail(error, ZERO_E_DEVICE, "kernel %s with %zu blocks; at most %d are possible",
                         name, grid.blocks, INT_MAX);
    return done(base_cuda_loaded()->launch(kernel, (unsigned)grid.blocks, 1, 1, grid.threads, 1, 1,
                                           0, stream, arguments, NULL),
                "cuLaunchKernel", name, error);
}
