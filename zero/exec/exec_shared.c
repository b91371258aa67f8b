// What executors share: the scalars of an update, and the entries of an executor that has nothing
// to do for them.

#include "zero/exec/executors.h"

#include "zero/core/progress.h"

#include <assert.h>
#include <math.h>

double eng_norm_most(const zero_ctx *z)
{
    double most = INFINITY;
    // The library knows nothing of a program's own optimizer.
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        const double own = group->choice.own || group->frozen
                               ? INFINITY
                               : group->optimizer->gradient_most(&z->stepping.hyper[g]);
        most = own < most ? own : most;
    }
    return most;
}

void eng_exec_prepare(zero_ctx *z, uint64_t number, double gradient_scale)
{
    assert(number > 0);
    z->update.prepared = number;
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        group->optimizer->prepare(&group->choice, &z->stepping.hyper[g], number, gradient_scale,
                                  &z->update.scalars[g]);
    }
}

/* ------------------------------------------------------------------ gradients */

static zero_result clear_frozen(const zero_ctx *z, zero_unit unit, unsigned char *gradient,
                                void *stream, struct base_error *error)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = ZERO_OK;
    for (size_t i = u->first_slice; !r && i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (!z->io[slice->bucket].trains || !eng_frozen(z, slice->param))
            continue;
        const size_t size = eng_dtype_size(z->layout.buckets[slice->bucket].grad_dtype);
        unsigned char *at = gradient + z->placement.buckets[slice->bucket].grad_offset +
                            slice->granule * BASE_GRANULE * size;
        r = z->exec->clear(z, at, slice->numel * size, stream, error);
    }
    return r;
}

zero_result eng_grad_prepare(const zero_ctx *z, zero_unit unit, unsigned char *gradient,
                             void *stream, struct base_error *error)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    zero_result r = clear_frozen(z, unit, gradient, stream, error);
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket *bucket = &z->layout.buckets[s];
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const struct base_device_conversion conversion = {
            .from = gradient + place->grad_offset,
            .to = gradient + place->comm_offset,
            .from_dtype = bucket->grad_dtype,
            .to_dtype = place->comm_dtype,
            .count = bucket->granules * BASE_GRANULE,
        };
        if (z->io[s].trains && place->comm_dtype != bucket->grad_dtype)
            r = z->exec->convert(z, &conversion, stream, error);
    }
    return r;
}

zero_result eng_grad_close_here(zero_ctx *z, zero_unit unit, zero_unit *ready)
{
    eng_grad_slot_free(z, unit);
    *ready = unit;
    return ZERO_OK;
}

zero_result eng_grad_flush_none(zero_ctx *z, zero_unit *ready)
{
    (void)z;
    *ready = -1;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ entries that do nothing */

zero_result eng_no_work(zero_ctx *z)
{
    (void)z;
    return ZERO_OK;
}

void eng_no_notice(zero_ctx *z)
{
    (void)z;
}

zero_result eng_no_make(zero_ctx *z, struct base_error *error)
{
    (void)z, (void)error;
    return ZERO_OK;
}

zero_result eng_no_unit_work(zero_ctx *z, zero_unit unit)
{
    (void)z, (void)unit;
    return ZERO_OK;
}

zero_result eng_no_slot_work(zero_ctx *z, int slot)
{
    (void)z, (void)slot;
    return ZERO_OK;
}

zero_result eng_no_hashes(zero_ctx *z, uint64_t *hashes)
{
    (void)z, (void)hashes;
    return ZERO_OK;
}

void eng_no_metric(const zero_ctx *z, int metric, double value)
{
    (void)z, (void)metric, (void)value;
}

zero_result eng_no_metrics(const zero_ctx *z, unsigned char **memory, struct base_error *error)
{
    (void)z, (void)error;
    *memory = NULL;
    return ZERO_OK;
}

void eng_no_metrics_take(zero_ctx *z, unsigned char *memory)
{
    (void)z, (void)memory;
}

void eng_no_metrics_drop(const zero_ctx *z, unsigned char *memory)
{
    (void)z, (void)memory;
}

zero_result eng_no_take_in(zero_ctx *z, int open)
{
    (void)z, (void)open;
    return ZERO_OK;
}

void eng_no_look(const zero_ctx *z, bool waits)
{
    (void)z, (void)waits;
}

bool eng_no_digest(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error)
{
    (void)z, (void)sums, (void)error;
    return false;
}
