#include "tests/cuda/staged.h"

#include "base/arena.h"

bool staged_make(struct staged *staged, const struct base_device *device)
{
    *staged = (struct staged){.device = device, .memory = base_aligned_alloc(4096, STAGED_BYTES)};
    if (!staged->memory)
        return false;
    return device->pin(staged->memory, STAGED_BYTES, NULL) == ZERO_OK;
}

void staged_free(struct staged *staged)
{
    if (!staged->memory)
        return;
    staged->device->unpin(staged->memory);
    base_free(staged->memory);
    *staged = (struct staged){0};
}

void *staged_in(struct staged *staged, void *stream, const void *there, size_t bytes)
{
    if (!staged->memory || !there)
        return (void *)(uintptr_t)there;
    const size_t room = (bytes + 63) / 64 * 64;
    if (room > STAGED_BYTES - staged->used)
        return NULL;
    void *here = staged->memory + staged->used;
    staged->used += room;
    staged->down += bytes;
    return staged->device->copy(here, there, bytes, stream, NULL) ? NULL : here;
}

bool staged_out(struct staged *staged, void *stream, void *there, const void *here, size_t bytes)
{
    if (!staged->memory)
        return true;
    staged->up += bytes;
    return staged->device->copy(there, here, bytes, stream, NULL) == ZERO_OK;
}
