// Which tables there are, and which one runs here.
#include "base/kernels/kernel_tables.h"
#include "base/cpu.h"
#include "base/kernels/device_kernels.h"

#include <string.h>

// In ascending order of preference.
static const struct base_kernels *const tables[] = {
    &base_kernels_ref,
#if defined(__x86_64__)
    &base_kernels_avx2,
    &base_kernels_avx512,
#endif
};

#define TABLES (sizeof tables / sizeof tables[0])

const struct base_kernels *base_kernels_at(size_t i)
{
    return i < TABLES ? tables[i] : NULL;
}

const struct base_kernels *base_kernels_find(const char *name)
{
    base_prefetch_choose();
    const bool best = strcmp(name, "auto") == 0;
    for (size_t i = TABLES; i-- > 0;)
        if ((best || strcmp(name, tables[i]->name) == 0) && tables[i]->usable())
            return tables[i];
    return NULL;
}

const struct base_device_kernels *base_device_kernels_find(const char *name)
{
#ifdef ZERO_WITH_CUDA
    if (strcmp(name, base_device_kernels_cuda.name) == 0)
        return &base_device_kernels_cuda;
#endif
    (void)name;
    return NULL;
}
