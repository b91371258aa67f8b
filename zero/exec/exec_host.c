// The program computes on the host: working copies and gradients are where it reads and writes
// them, and each entry is done when it returns.

#include "zero/core/addresses.h"
#include "zero/exec/executors.h"

#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/core/step_kind.h"
#include "zero/exec/caller_memory.h"
#include "zero/exec/local_accumulation.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ calls */

static zero_result host_take_stream(zero_ctx *z, zero_stream stream)
{
    return stream ? eng_fail(z, ZERO_E_INVALID,
                             "stream %p given, but the device is the CPU: pass NULL", stream)
                  : ZERO_OK;
}

/* ------------------------------------------------------------------ working copies */

static zero_result host_show(zero_ctx *z, zero_unit unit)
{
    eng_borrow_unit(z, unit);
    return ZERO_OK;
}

/** What is readable without a gather is so in the caller's memory, too. */
static zero_result host_show_persistent(zero_ctx *z)
{
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        if (z->layout.buckets[s].persistent)
            eng_borrow_bucket(z, s);
    return ZERO_OK;
}

static const void *host_param(const zero_ctx *z, const struct eng_slice *slice)
{
    return eng_gathered(z, slice);
}

static const void *host_dummy_param(zero_ctx *z, const struct eng_slice *slice)
{
    (void)slice;
    return eng_nowhere(z);
}

/* ------------------------------------------------------------------ gradients */

/** Zeroes a slot but for what is overwritten. Padding, which is in every sum, no program writes:
 * where the slot had this unit's gradient before it is zero, and may be in a peer's cache. A step
 * that is not finite casts doubt on that. */
static zero_result host_grad_open(zero_ctx *z, zero_unit unit,
                                  const struct eng_grad_opening *opening)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    unsigned char *buffer = z->memory.grads + z->gradients.slots[z->units[unit].grad_slot].offset;
    assert(z->gradients.slots[z->units[unit].grad_slot].open);
    for (size_t i = u->first_slice; !opening->keeps && i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (z->layout.buckets[slice->bucket].frozen)
            continue;
        const size_t size = eng_dtype_size(z->layout.buckets[slice->bucket].grad_dtype);
        unsigned char *data = buffer + z->placement.buckets[slice->bucket].grad_offset +
                              slice->granule * BASE_GRANULE * size;
        const bool written =
            opening->purpose == ENG_GRAD_WRITE ||
            (opening->purpose == ENG_GRAD_ADD && eng_own_gradient(z, slice) != NULL);
        const size_t from = written ? slice->numel : 0;
        const size_t end = opening->again ? slice->numel : slice->granules * BASE_GRANULE;
        memset(data + from * size, 0, (end - from) * size);
    }
    return ZERO_OK;
}

zero_result eng_host_grad_hash(zero_ctx *z, zero_unit unit, uint64_t *hashes)
{
    const struct eng_grad_slot *slot = &z->gradients.slots[z->units[unit].grad_slot];
    const unsigned char *gradient = z->memory.grads + slot->offset;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t size = eng_dtype_size(z->layout.buckets[slice->bucket].grad_dtype);
        const unsigned char *data = gradient + z->placement.buckets[slice->bucket].grad_offset +
                                    slice->granule * BASE_GRANULE * size;
        if (!eng_frozen(z, slice->param))
            hashes[i] = base_hash64(data, slice->numel * size, 0);
    }
    return ZERO_OK;
}

static zero_result host_grad_add(zero_ctx *z, zero_unit unit)
{
    struct base_error error = {0};
    return eng_local_add(z, unit, &error) ? eng_fail_from(z, &error) : ZERO_OK;
}

zero_result eng_host_clear(const zero_ctx *z, void *at, size_t bytes, void *stream,
                           struct base_error *error)
{
    (void)z, (void)stream, (void)error;
    memset(at, 0, bytes);
    return ZERO_OK;
}

zero_result eng_host_convert(const zero_ctx *z, const struct base_device_conversion *work,
                             void *stream, struct base_error *error)
{
    (void)stream, (void)error;
    eng_convert(z->cpu.kernels, work->from_dtype, work->from, work->to_dtype, work->to,
                work->count);
    return ZERO_OK;
}

static zero_result host_add(const zero_ctx *z, const struct base_device_addition *work,
                            struct base_error *error)
{
    (void)error;
    eng_local_sum(z->cpu.kernels, work->dtype, work->to, work->from, work->count);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ metrics */

static zero_result host_metric_fetch(zero_ctx *z, int metric, const float *value)
{
    z->stepping.hooks->value(z, metric, (double)*value);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ a step */

zero_result eng_host_fuse(zero_ctx *z)
{
    eng_exec_prepare(z, z->updates + 1, z->stepping.fused.scale / z->stepping.scale.value);
    return ZERO_OK;
}

zero_result eng_host_decide(zero_ctx *z, const zero_step_args *args, struct eng_decision *decision)
{
    const double scale = args->scale / z->stepping.scale.value; // the policy may change that
    // Where steps are skipped, so is one that is finite and whose gradient would overflow what
    // optimizers make of it. Elsewhere the update shows that, element by element.
    if (z->config.nonfinite == ZERO_NONFINITE_SKIP && decision->finite)
        decision->finite = base_gradient_fits(
            decision->norm, base_clip(decision->norm, decision->max_norm), eng_norm_most(z));
    const zero_result r = z->stepping.hooks->decided(z, decision);
    if (!r && !z->stepping.result.skipped &&
        !z->stepping.kind->in_backward) // what is fused has its scalars
        eng_exec_prepare(z, z->updates, scale * z->stepping.result.clip);
    return r;
}

zero_result eng_host_update(zero_ctx *z, enum eng_update_kind *kind)
{
    *kind = z->stepping.result.skipped ? ENG_NO_UPDATE : ENG_UPDATE_DECIDED;
    return ZERO_OK;
}

zero_result eng_host_step_end(zero_ctx *z)
{
    z->stepping.hooks->told(z, z->stepping.hyper[0].lr);
    return ZERO_OK;
}

const struct eng_exec eng_exec_host = {
    .size = sizeof(struct eng_exec),
    .name = "host",
    .make = eng_no_make,
    .close = eng_no_notice,
    .enter = eng_no_work,
    .leave = eng_no_notice,
    .take_stream = host_take_stream,
    .gathers_take_time = false,
    .show = host_show,
    .show_updated = eng_no_unit_work,
    .show_persistent = host_show_persistent,
    .released = eng_no_unit_work,
    .join = eng_no_work,
    .settle = eng_no_work,
    .settle_slot = eng_no_slot_work,
    .param = host_param,
    .dummy_param = host_dummy_param,
    .grads = eng_grads_here,
    .dummy_grad = eng_nowhere,
    .grad_open = host_grad_open,
    .grad_close = eng_grad_close_here,
    .grad_flush = eng_grad_flush_none,
    .grad_hash = eng_host_grad_hash,
    .hashes = eng_no_hashes,
    .grad_add = host_grad_add,
    .clear = eng_host_clear,
    .convert = eng_host_convert,
    .add = host_add,
    .metric_set = eng_no_metric,
    .metric_fetch = host_metric_fetch,
    .metric_values = eng_no_work,
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
