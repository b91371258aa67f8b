// The program computes on a GPU, and the engine's working copies, gradients and sums are there,
// too: the engine queues all its work on streams, and the host goes on at once. State is there, or
// passes through it (device_tiles.c).

#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/link_table.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"

/* ------------------------------------------------------------------ working copies */

/** The stream waits until the unit's working copy is current, or (-1) what persists is. */
static zero_result await_values(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    zero_result r = d->ops->event_wait(device_updated(z, unit), d->stream, &error);
    if (!r && d->state->peers)
        r = z->link->await_values(z, unit, &error);
    return r ? device_failed(z, &error, "waiting for parameters") : ZERO_OK;
}

static zero_result cuda_show_persistent(zero_ctx *z)
{
    return await_values(z, -1);
}

static zero_result cuda_released(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    const int slot = z->units[unit].slot;
    struct base_error error = {0};
    const zero_result r = device_released(z, unit);
    if (r || slot < 0)
        return r;
    return d->ops->event_record(d->copied[slot], d->stream, &error)
               ? device_failed(z, &error, "releasing a unit")
               : ZERO_OK;
}

static zero_result cuda_join(zero_ctx *z)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    const zero_result r = d->ops->event_record(d->handed, d->stream, &error);
    return r ? device_failed(z, &error, "waiting for parameters")
             : device_await(z, d->handed, "waiting for parameters");
}

static const void *cuda_param(const zero_ctx *z, const struct eng_slice *slice)
{
    const void *gathered = eng_gathered(z, slice);
    return gathered || !z->fatal ? gathered : z->memory.slots; // large enough for any unit
}

static const void *cuda_dummy_param(zero_ctx *z, const struct eng_slice *slice)
{
    return cuda_param(z, slice);
}

/* ------------------------------------------------------------------ gradients */

static void *cuda_dummy_grad(zero_ctx *z)
{
    return z->memory.grads;
}

/** Behind it the slot may be written again, if nothing but the hash reads it. */
static zero_result cuda_grad_hash(zero_ctx *z, zero_unit unit, uint64_t *hashes)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    (void)hashes; // device_hashes() fetches them
    zero_result r = device_hash_gradient(z, unit, &error);
    if (!r)
        r = d->ops->event_record(d->taken[z->units[unit].grad_slot], d->stream, &error);
    return r ? device_failed(z, &error, "hashing a gradient") : ZERO_OK;
}

static zero_result cuda_clear(const zero_ctx *z, void *at, size_t bytes, void *stream,
                              struct base_error *error)
{
    return z->device->ops->zero(at, bytes, stream, error);
}

static zero_result cuda_convert(const zero_ctx *z, const struct base_device_conversion *work,
                                void *stream, struct base_error *error)
{
    return z->device->kernels->convert(z->device->kernel_state, work, stream, error);
}

/* ------------------------------------------------------------------ metrics */

/** The host keeps the values of a step until its decision is known. */
static zero_result cuda_metric_fetch(zero_ctx *z, int metric, const float *value)
{
    return z->micro.evaluation.active ? device_metric_fetch(z, metric, value)
                                      : device_step_value(z, metric, value);
}

const struct eng_exec eng_exec_cuda = {
    .size = sizeof(struct eng_exec),
    .name = "cuda",
    .make = device_exec_make,
    .close = device_close,
    .enter = device_enter,
    .leave = device_leave,
    .take_stream = device_take_stream,
    .gathers_take_time = true,
    .show = await_values,
    .show_updated = eng_no_unit_work,
    .show_persistent = cuda_show_persistent,
    .released = cuda_released,
    .join = cuda_join,
    .settle = eng_no_work,
    .settle_slot = eng_no_slot_work,
    .param = cuda_param,
    .dummy_param = cuda_dummy_param,
    .grads = eng_grads_here,
    .dummy_grad = cuda_dummy_grad,
    .grad_open = device_grad_open,
    .grad_close = eng_grad_close_here,
    .grad_flush = eng_grad_flush_none,
    .grad_hash = cuda_grad_hash,
    .hashes = device_hashes,
    .grad_add = device_grad_add,
    .clear = cuda_clear,
    .convert = cuda_convert,
    .add = device_add,
    .metric_set = device_metric_set,
    .metric_fetch = cuda_metric_fetch,
    .metric_values = device_metric_values,
    .metrics_make = device_metrics_make,
    .metrics_take = device_metrics_take,
    .metrics_drop = device_metrics_drop,
    .decides_later = true,
    .stale = device_stale,
    .begin = device_step_begin,
    .fuse = device_fuse,
    .decide = device_decide,
    .update = device_update,
    .step_end = device_step_end,
    .take_in = device_take_in,
    .prove = device_prove,
    .learn = device_learn,
    .skip = device_skip,
    .look = device_look,
    .steps_close = device_steps_close,
    .digest = device_digest,
};
