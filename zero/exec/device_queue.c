// What every part of the engine on a GPU needs: to wait, to copy, and to say what has failed there.

#include "zero/core/api_call.h"
#include "zero/exec/device_parts.h"

#include "base/arena.h"

#include <sched.h>

zero_result device_tell(const zero_ctx *z, const struct base_error *inner, const char *what,
                        struct base_error *error)
{
    return zero_fail(error, inner->result, "device %s %d, %s: %s", z->device->ops->name,
                     z->device->number, what, inner->message);
}

zero_result device_failed(zero_ctx *z, const struct base_error *inner, const char *what)
{
    struct base_error error = {0};
    device_tell(z, inner, what, &error);
    return eng_fail_from(z, &error);
}

zero_result device_await(zero_ctx *z, void *event, const char *what)
{
    struct base_error error = {0};
    zero_result r;
    while ((r = z->device->ops->event_query(event, &error)) == ZERO_AGAIN) {
        const zero_result progress = coll_progress(z->comm);
        if (progress)
            return eng_comm_failed(z, progress);
        sched_yield();
    }
    return r ? device_failed(z, &error, what) : ZERO_OK;
}

/* ------------------------------------------------------------------ copies */

zero_result device_quiet(const zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    zero_result r = ZERO_OK;
    for (size_t u = 0; !r && u < z->layout.unit_count; u++)
        r = d->ops->event_wait(d->read[u], d->own, error);
    return r;
}

zero_result device_copy(const zero_ctx *z, void *to, const void *from, size_t bytes,
                        struct base_error *error)
{
    const struct eng_device *d = z->device;
    if (bytes == 0)
        return ZERO_OK;
    zero_result r = device_quiet(z, error);
    if (!r)
        r = d->ops->copy(to, from, bytes, d->own, error);
    return r ? r : d->ops->stream_sync(d->own, error);
}

void *device_table(size_t count, size_t size, struct base_error *error)
{
    void *table = base_calloc(count, size);
    if (!table)
        zero_fail(error, ZERO_E_NOMEM, "no memory for a table of %zu entries", count);
    return table;
}

zero_result device_upload(const zero_ctx *z, enum device_piece piece, void *table, size_t bytes,
                          struct base_error *error)
{
    const zero_result r = device_copy(z, device_piece(z->device, piece), table, bytes, error);
    base_free(table);
    return r;
}
