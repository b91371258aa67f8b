#include "tests/cuda/leftovers.h"

#include "tests/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *cuda_driver_function(const char *name)
{
    void *library = dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

bool cuda_left_nothing(void)
{
    void *const live_there = cuda_driver_function(CUDA_DRIVER_LIVE);
    void *const complaint_there = cuda_driver_function(CUDA_DRIVER_COMPLAINT);
    cuda_driver_live_fn live;
    cuda_driver_complaint_fn complaint;
    if (!live_there || !complaint_there)
        return true;
    memcpy(&live, &live_there, sizeof live);
    memcpy(&complaint, &complaint_there, sizeof complaint);
    if (live() == 0 && !complaint())
        return true;
    fprintf(stderr, "GPU: %u left; %s\n", live(), complaint() ? complaint() : "no complaint");
    return false;
}
