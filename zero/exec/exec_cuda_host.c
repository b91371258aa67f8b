// The program computes on a GPU, while the engine keeps its state in memory of the host. Every unit
// has a working copy on the GPU, to which gathered values are copied once after each update.
// Gradients are copied from the GPU. Both have streams of their own, beside what the program
// computes; its streams wait for what they need. The host waits only for its own memory that is
// about to be written over, and for a gradient before it is sent: by then the next unit's is
// computed. With reduction=local it is a sum (device_reduce.c) that is copied, once a step.

#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"
#include "zero/exec/local_accumulation.h"

#include <assert.h>

/* ------------------------------------------------------------------ working copies */

/** Copies a bucket's working copy to the device, in a stream, if that has another version. Its
 * bytes lie together. */
static zero_result show_bucket(zero_ctx *z, size_t s, uint64_t version, void *stream,
                               struct base_error *error)
{
    struct eng_device *d = z->device;
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    const struct eng_bucket_place *place = &z->placement.buckets[s];
    const int slot = z->units[bucket->unit].slot;
    const unsigned char *from = z->memory.params + place->home;
    if (z->io[s].lent >= version) // of a fused step the next one is there early
        return ZERO_OK;
    assert(slot >= 0 || place->residence != ENG_SHARDED);
    if (place->residence == ENG_SHARDED)
        from = z->memory.slots + z->gathers.slots[slot].offset + place->slot_offset;
    // What the program has queued with the values before, by whatever stream, and older copies.
    zero_result r = d->ops->event_wait(d->read[bucket->unit], stream, error);
    if (!r)
        r = d->ops->event_wait(d->lent[bucket->unit], stream, error);
    if (!r)
        r = d->ops->copy(d->params + d->buckets[s], from, device_bucket_bytes(bucket), stream,
                         error);
    if (!r && place->residence == ENG_SHARDED)
        r = d->ops->event_record(d->copied[slot], stream, error);
    if (!r)
        r = d->ops->event_record(d->lent[bucket->unit], stream, error);
    if (!r)
        z->io[s].lent = version;
    return r;
}

/** Shows a bucket that is current here without a gather of its own. */
static zero_result show_ahead(zero_ctx *z, size_t s, struct base_error *error)
{
    if (z->placement.buckets[s].residence == ENG_SHARDED || !eng_publish_ended(z, s))
        return ZERO_OK;
    return show_bucket(z, s, z->io[s].version, z->device->up, error);
}

static zero_result cuda_host_show(zero_ctx *z, zero_unit unit)
{
    struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t end = u->first_bucket + u->bucket_count;
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < end; s++)
        r = show_bucket(z, s, z->io[s].version, d->up, &error);
    if (!r)
        r = d->ops->event_wait(d->lent[unit], d->stream, &error);
    // Forward passes go up.
    for (size_t s = end; !r && s < z->layout.bucket_count && s < end + u[1].bucket_count; s++)
        r = show_ahead(z, s, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

static zero_result cuda_host_show_persistent(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    bool shows = false;
    zero_result r = ZERO_OK;
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++) {
        if (!z->layout.buckets[s].persistent)
            continue;
        shows = shows || z->io[s].lent != z->io[s].version;
        r = show_bucket(z, s, z->io[s].version, d->stream, &error);
    }
    // What peers have just sent may have arrived since this rank last looked.
    const zero_result progress = r ? ZERO_OK : coll_progress(z->comm);
    if (progress)
        return eng_comm_failed(z, progress);
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++)
        r = show_ahead(z, s, &error);
    // A caller that gave no stream cannot order what comes next behind it.
    if (!r && shows && d->stream == d->own)
        r = d->ops->stream_sync(d->own, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

static zero_result cuda_host_show_updated(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (z->config.world > 1 || eng_step_hopeless(z)) // others have to send something first
        return ZERO_OK;
    // zero_step() will make these values the next version.
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++)
        if (z->io[s].fused && coll_complete(&z->io[s].reduce) &&
            z->placement.buckets[s].residence != ENG_SHARDED)
            r = show_bucket(z, s, z->publication.version + 1, z->device->up, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

static zero_result cuda_host_settle(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    for (size_t u = 0; !r && u < z->layout.unit_count; u++)
        r = device_await(z, z->device->lent[u], "waiting for parameters");
    return r;
}

static zero_result cuda_host_settle_slot(zero_ctx *z, int slot)
{
    return device_await(z, z->device->copied[slot], "waiting for parameters");
}

static const void *cuda_host_param(const zero_ctx *z, const struct eng_slice *slice)
{
    const size_t size = eng_dtype_size(z->layout.buckets[slice->bucket].dtype);
    return z->device->params + z->device->buckets[slice->bucket] +
           slice->granule * BASE_GRANULE * size;
}

static const void *cuda_host_dummy_param(zero_ctx *z, const struct eng_slice *slice)
{
    return cuda_host_param(z, slice); // every unit has memory of its own
}

/* ------------------------------------------------------------------ gradients */

static unsigned char *cuda_host_grads(const zero_ctx *z)
{
    return z->device->grads;
}

static void *cuda_host_dummy_grad(zero_ctx *z)
{
    return z->device->grads;
}

static zero_result cuda_host_grad_open(zero_ctx *z, zero_unit unit,
                                       const struct eng_grad_opening *opening)
{
    const struct eng_device *d = z->device;
    const int slot = z->units[unit].grad_slot;
    unsigned char *gradient = d->grads + z->gradients.slots[slot].offset;
    struct base_error error = {0};
    zero_result r = d->ops->event_wait(d->taken[slot], d->stream, &error);
    if (!r && !opening->keeps)
        r = d->ops->zero(gradient, z->placement.units[unit].grad_bytes, d->stream, &error);
    return r ? device_failed(z, &error, "clearing a gradient") : ZERO_OK;
}

/** The slot whose gradient goes to the host: what is computed again is only looked at, and else it
 * is the one that is reduced. */
static int leaving(const zero_ctx *z, zero_unit unit)
{
    return eng_micro_repeats(z) ? z->units[unit].grad_slot : z->units[unit].sum_slot;
}

/** Begins to copy a slot to the host. */
static zero_result begin_copy(zero_ctx *z, zero_unit unit, int slot, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t offset = z->gradients.slots[slot].offset;
    zero_result r = d->ops->event_record(d->handed, d->stream, error);
    if (!r)
        r = d->ops->event_wait(d->handed, d->down, error);
    // Once it is there the unit may be updated: no stream copies its parameters any more then.
    if (!r)
        r = d->ops->event_wait(d->lent[unit], d->down, error);
    if (!r)
        r = d->ops->copy(z->memory.grads + offset, d->grads + offset,
                         z->placement.units[unit].grad_bytes, d->down, error);
    return r ? r : d->ops->event_record(d->taken[slot], d->down, error);
}

/** Begins to copy a unit's gradient, or the sum that it was the last one of, to the host. */
static zero_result copy_gradient(zero_ctx *z, zero_unit unit)
{
    struct base_error error = {0};
    const zero_result r = device_grad_add(z, unit);
    if (!r && begin_copy(z, unit, leaving(z, unit), &error))
        return device_failed(z, &error, "copying a gradient from it");
    return r;
}

/** reduction=local: leaves the gradient on the GPU, in the sum so far. */
static zero_result keep_gradient(zero_ctx *z, zero_unit unit)
{
    zero_result r = device_grad_add(z, unit);
    if (r)
        return r;
    // Nothing that travels is waited for here, and others may wait for what this rank sends.
    r = coll_progress(z->comm);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

/** Makes `next` the unit whose gradient is copied (-1: none), and waits for that of the one before:
 * *ready. */
static zero_result await_before(zero_ctx *z, zero_unit next, zero_unit *ready)
{
    *ready = z->device->waiting;
    assert(next < 0 || next != *ready);
    z->device->waiting = next;
    if (*ready < 0)
        return ZERO_OK;
    eng_grad_slot_free(z, *ready);
    return device_await(z, z->device->taken[leaving(z, *ready)], "waiting for a gradient");
}

/** Whether a gradient leaves the GPU: with reduction=local what the last micro-batch has made a
 * sum, and what the host looks at. */
static bool is_copied(const zero_ctx *z)
{
    return eng_grad_ends_sum(z) || eng_micro_compared(z);
}

/** The gradient before is sent while this one is copied, which updates it in a fused step: so ranks
 * start reductions at the same places, whenever copies are done. */
static zero_result cuda_host_grad_close(zero_ctx *z, zero_unit unit, zero_unit *ready)
{
    *ready = -1;
    if (!is_copied(z)) {
        eng_grad_slot_free(z, unit);
        return keep_gradient(z, unit);
    }
    const zero_result r = copy_gradient(z, unit);
    return r ? r : await_before(z, unit, ready);
}

static zero_result cuda_host_grad_flush(zero_ctx *z, zero_unit *ready)
{
    return await_before(z, -1, ready);
}

const struct eng_exec eng_exec_cuda_host = {
    .size = sizeof(struct eng_exec),
    .name = "cuda_host",
    .make = device_exec_make,
    .close = device_close,
    .enter = device_enter,
    .leave = device_leave,
    .take_stream = device_take_stream,
    .gathers_take_time = true,
    .show = cuda_host_show,
    .show_updated = cuda_host_show_updated,
    .show_persistent = cuda_host_show_persistent,
    .released = device_released,
    .join = eng_no_work,
    .settle = cuda_host_settle,
    .settle_slot = cuda_host_settle_slot,
    .param = cuda_host_param,
    .dummy_param = cuda_host_dummy_param,
    .grads = cuda_host_grads,
    .dummy_grad = cuda_host_dummy_grad,
    .grad_open = cuda_host_grad_open,
    .grad_close = cuda_host_grad_close,
    .grad_flush = cuda_host_grad_flush,
    .grad_hash = eng_host_grad_hash,
    .hashes = eng_no_hashes,
    .grad_add = eng_no_unit_work,
    .clear = eng_host_clear,
    .convert = eng_host_convert,
    .add = device_add,
    .metric_set = eng_no_metric,
    .metric_fetch = device_metric_fetch,
    .metric_values = device_metric_values,
    .metrics_make = eng_no_metrics,
    .metrics_take = eng_no_metrics_take,
    .metrics_drop = eng_no_metrics_drop,
    .decides_later = false,
    .stale = eng_no_notice,
    .begin = eng_no_work,
    .fuse = eng_host_fuse,
    .decide = eng_host_decide,
    .update = eng_host_update,
    .step_end = eng_host_step_end,
    .take_in = eng_no_take_in,
    .prove = eng_no_work,
    .learn = eng_no_work,
    .skip = eng_no_work,
    .look = eng_no_look,
    .steps_close = eng_no_notice,
    .digest = eng_no_digest,
};
