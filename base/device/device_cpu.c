#include "base/arena.h"
#include "base/device.h"
#include "base/memory_limits.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static zero_result cpu_count(int *count, struct base_error *error)
{
    (void)error;
    *count = 1;
    return ZERO_OK;
}

static zero_result cpu_enter(int number, struct base_error *error)
{
    if (number != 0)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "cpu %d: there is one, 0", number);
    return ZERO_OK;
}

static void cpu_leave(void)
{
}

static size_t least(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

static zero_result cpu_memory(struct base_device_memory *memory, struct base_error *error)
{
    struct base_memory_limits limits;
    (void)error;
    base_memory_limits(&limits, "");
    const uint64_t in_group = base_memory_left(limits.group_limit, limits.group_used);
    const uint64_t addresses = base_memory_left(limits.address_limit, limits.address_used);
    *memory = (struct base_device_memory){
        .free = least(limits.available, least(in_group, addresses)),
        .total = least(limits.total, least(limits.group_limit, limits.address_limit)),
    };
    return ZERO_OK;
}

static zero_result cpu_alloc(void **memory, size_t bytes, struct base_error *error)
{
    *memory = base_aligned_alloc(ALIGNMENT, bytes);
    assert((uintptr_t)*memory % ALIGNMENT == 0);
    return *memory ? ZERO_OK
                   : zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes on the cpu", bytes);
}

// The processor reaches all memory as it is.
static zero_result cpu_pin(void *memory, size_t bytes, struct base_error *error)
{
    (void)memory;
    (void)bytes;
    (void)error;
    return ZERO_OK;
}

static zero_result cpu_copy(void *to, const void *from, size_t bytes, void *stream,
                            struct base_error *error)
{
    assert(bytes == 0 || (to && from));
    (void)stream;
    (void)error;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return ZERO_OK;
}

static zero_result cpu_zero(void *memory, size_t bytes, void *stream, struct base_error *error)
{
    assert(bytes == 0 || memory);
    (void)stream;
    (void)error;
    if (bytes > 0)
        memset(memory, 0, bytes);
    return ZERO_OK;
}

// Everything is done when it was given: streams and events are NULL and always reached.

static zero_result cpu_create(void **event, struct base_error *error)
{
    (void)error;
    *event = NULL;
    return ZERO_OK;
}

static zero_result cpu_stream_create(void **stream, bool urgent, struct base_error *error)
{
    (void)urgent;
    return cpu_create(stream, error);
}

static zero_result cpu_sync(void *handle, struct base_error *error)
{
    (void)handle;
    (void)error;
    return ZERO_OK;
}

static void cpu_destroy(void *handle)
{
    (void)handle;
}

static zero_result cpu_order(void *event, void *stream, struct base_error *error)
{
    (void)event;
    (void)stream;
    (void)error;
    return ZERO_OK;
}

const struct base_device base_device_cpu = {
    .size = sizeof(struct base_device),
    .name = "cpu",
    .synchronous = true,
    .count = cpu_count,
    .enter = cpu_enter,
    .leave = cpu_leave,
    .memory = cpu_memory,
    .alloc = cpu_alloc,
    .free = base_free,
    .pin = cpu_pin,
    .unpin = cpu_destroy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .stream_create = cpu_stream_create,
    .stream_sync = cpu_sync,
    .stream_destroy = cpu_destroy,
    .event_create = cpu_create,
    .event_record = cpu_order,
    .event_wait = cpu_order,
    .event_query = cpu_sync,
    .event_sync = cpu_sync,
    .event_destroy = cpu_destroy,
};
