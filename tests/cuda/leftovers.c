#include "tests/cuda/leftovers.h"

#include "tests/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool cuda_driver_find(const char *name, void *function)
{
    void *const library = dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL);
    void *const found = library ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found;
}

bool cuda_left_nothing(void)
{
    cuda_driver_live_fn live;
    cuda_driver_complaint_fn complaint;
    if (!cuda_driver_find(CUDA_DRIVER_LIVE, &live) ||
        !cuda_driver_find(CUDA_DRIVER_COMPLAINT, &complaint))
        return true;
    if (live() == 0 && !complaint())
        return true;
    fprintf(stderr, "GPU: %u left; %s\n", live(), complaint() ? complaint() : "no complaint");
    return false;
}
