#include "tests/cuda/driver.h"
#include "tests/cuda/driver_inner.h"
#include "tests/cuda/on_host.h"

#include <stdlib.h>
#include <string.h>

static char module_of_all;

EXPORTED CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = NULL;
    const CUresult status =
        image ? driver_in_context("cuModuleLoadData") : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    *module = (CUmodule)(void *)&module_of_all;
    driver_count_modules(1);
    driver_keep();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleUnload(CUmodule module)
{
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_count_modules(-1U);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleGetFunction(CUfunction *found, CUmodule module, const char *name)
{
    const struct on_host_kernel *kernel = on_host_find(name);
    *found = (CUfunction)(void *)(uintptr_t)kernel;
    if (!module || !kernel)
        return CUDA_ERROR_NOT_FOUND;
    return driver_in_context("cuModuleGetFunction");
}

// What a thread has asked of its launches of a kernel.
static _Thread_local struct {
    const char *kernel;
    unsigned made, due; // so far; the one that a call comes before
    CUhostFn call;
} asked;

EXPORTED unsigned cuda_driver_before(const char *kernel, unsigned launch, void (*call)(void *user))
{
    const unsigned made = asked.made;
    asked.kernel = kernel;
    asked.made = 0;
    asked.due = launch;
    asked.call = call;
    return made;
}

#ifndef CUDA_DRIVER_OLD
static CUresult call_before(const struct on_host_kernel *kernel, CUstream stream)
{
    const struct work call = {.kind = CALL, .call = asked.call};
    if (!asked.kernel || strcmp(asked.kernel, kernel->name) != 0 || ++asked.made != asked.due)
        return CUDA_SUCCESS;
    return driver_give("cuLaunchKernel", stream, &call);
}

EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                                 unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                                 unsigned threads_z, unsigned shared, CUstream stream,
                                 void **arguments, void **extra)
{
    const struct on_host_kernel *kernel = (const struct on_host_kernel *)(const void *)function;
    if (!kernel || !arguments || extra || shared || threads_x != kernel->threads ||
        threads_y * threads_z != 1 || blocks_x == 0 || blocks_y * blocks_z != 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct work launch = {.kind = KERNEL, .kernel = kernel, .blocks = blocks_x};
    launch.argument = malloc(kernel->argument_bytes);
    if (!launch.argument)
        abort();
    memcpy(launch.argument, arguments[0], kernel->argument_bytes);
    CUresult status = call_before(kernel, stream);
    if (status == CUDA_SUCCESS)
        status = driver_give("cuLaunchKernel", stream, &launch);
    if (status != CUDA_SUCCESS)
        free(launch.argument);
    return status;
}
#endif
