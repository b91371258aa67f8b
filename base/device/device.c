#include "base/device.h"

#include <string.h>

static const struct base_device *const devices[] = {
    &base_device_cpu,
#ifdef ZERO_WITH_CUDA
    &base_device_cuda,
#endif
};

const struct base_device *base_device_at(size_t index)
{
    return index < sizeof devices / sizeof *devices ? devices[index] : NULL;
}

const struct base_device *base_device_find(const char *name)
{
    const struct base_device *device;
    for (size_t i = 0; (device = base_device_at(i)); i++)
        if (strcmp(device->name, name) == 0)
            return device;
    return NULL;
}
