#include "tests/cuda/leftovers.h"

#include "tests/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cuda_driver_find(const char *name, void *function)
{
    void *const library = dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL);
    void *const found = library ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found;
}

// As <cuda.h> has them; a part of a test is compiled without.
typedef int (*count_fn)(int *count);
typedef int (*get_fn)(int *device, int number);
typedef int (*reset_fn)(int device);
typedef int (*free_bytes_fn)(size_t *bytes, size_t *all);

void cuda_end(void)
{
    count_fn count;
    get_fn get;
    reset_fn reset;
    int gpus, device;
    if (!cuda_driver_find("cuDeviceGetCount", &count) || !cuda_driver_find("cuDeviceGet", &get) ||
        !cuda_driver_find("cuDevicePrimaryCtxReset_v2", &reset) || count(&gpus))
        return;
    for (int number = 0; number < gpus; number++)
        if (!get(&device, number))
            reset(device);
}

size_t cuda_free_bytes(void)
{
    free_bytes_fn function;
    size_t bytes, all;
    return cuda_driver_find("cuMemGetInfo_v2", &function) && !function(&bytes, &all) ? bytes : 0;
}

static void end_at_exit(void)
{
    atexit(cuda_end);
}

bool cuda_left_nothing(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cuda_driver_live_fn live;
    cuda_driver_complaint_fn complaint;
    pthread_once(&once, end_at_exit);
    if (!cuda_driver_find(CUDA_DRIVER_LIVE, &live) ||
        !cuda_driver_find(CUDA_DRIVER_COMPLAINT, &complaint))
        return true;
    if (live() == 0 && !complaint())
        return true;
    fprintf(stderr, "GPU: %u left; %s\n", live(), complaint() ? complaint() : "no complaint");
    return false;
}
