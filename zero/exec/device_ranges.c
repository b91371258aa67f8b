// The segments that an update works through: all of what trains, in the order of buckets; where
// state passes through the device (device_tiles.c), no segment has elements of two tiles.

#include "zero/core/addresses.h"
#include "zero/core/progress.h"
#include "zero/exec/device_tiles.h"

#include <assert.h>

/** The sum of an element of a bucket, or the only contribution to it. */
static const void *gradient_of(const zero_ctx *z, int owner, size_t s, size_t element)
{
    const struct eng_bucket_place *place = &z->placement.buckets[s];
    if (!z->device->state->sole)
        return eng_sums(z, owner, s, element);
    return device_gradient(z, z->layout.buckets[s].unit) + place->comm_offset +
           element * eng_dtype_size(place->comm_dtype);
}

/** The squares of what a rank has sums of, from an element of a bucket on. */
static const double *squares_of(const zero_ctx *z, int owner, size_t s, size_t element)
{
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    if (owner != z->config.rank)
        return NULL;
    return (double *)device_piece(z->device, DEVICE_SQUARES) +
           (bucket->before[owner] + element - bucket->elements[owner].offset) / BASE_GRANULE;
}

static struct base_device_segment segment_of(const zero_ctx *z, const struct eng_range *range)
{
    const struct eng_slice *slice = range->slice;
    const size_t s = slice->bucket, first = range->first;
    const struct eng_group *group = &z->model.groups[z->model.params[slice->param].group];
    const zero_dtype dtype = z->layout.buckets[s].dtype;
    const bool master = z->placement.buckets[s].master;
    size_t owned = range->count;
    const int owner = eng_layout_owner(&z->layout, s, first, &owned);
    assert(owned == range->count);
    struct base_device_segment segment = {
        .gradient = gradient_of(z, owner, s, first),
        .weight = device_field(z, 0, s, first),
        .squares = squares_of(z, owner, s, first),
        .first = eng_range_first(range),
        .count = (uint32_t)range->count,
        .group = (uint32_t)z->model.params[slice->param].group,
        .key = (uint32_t)eng_slice_number(&z->layout, slice) * BASE_DEVICE_KEYS,
        .gradient_dtype =
            (uint8_t)(z->device->state->sole ? z->placement.buckets[s].comm_dtype : ZERO_F32),
        .weight_dtype = (uint8_t)(master ? ZERO_F32 : dtype),
        .moment_dtype = (uint8_t)z->config.moment_dtype,
        .work_dtype = (uint8_t)dtype,
    };
    for (int k = 0; k < group->optimizer->moments; k++)
        segment.moment[k] = device_field(z, 1 + k, s, first);
    if (eng_apart(&z->layout.buckets[s], &z->placement.buckets[s]))
        segment.work = (uint16_t *)(void *)eng_home(z, s, first / BASE_GRANULE);
    return segment;
}

/** All segments of what trains; returns how many. */
static size_t cut_segments(const zero_ctx *z, struct base_device_segment *segments)
{
    const struct eng_range_cut cut = device_segment_cut(&z->layout, device_cut(z));
    size_t made = 0, bucket = 0;
    size_t *bucket_segments = z->device->state->bucket_segments;
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        while (bucket <= slice->bucket)
            bucket_segments[bucket++] = made;
        struct eng_range left = eng_state_range(&z->placement, slice);
        while (left.count > 0 && !eng_frozen(z, slice->param)) {
            const struct eng_range range = eng_range_next(&cut, &left);
            device_tiles_note(z, slice->bucket, range.first, made);
            segments[made++] = segment_of(z, &range);
        }
    }
    while (bucket <= z->layout.bucket_count)
        bucket_segments[bucket++] = made;
    device_tiles_noted(z, made);
    assert(made <= device_segments_count(&z->layout, &z->placement, device_cut(z)));
    return made;
}

zero_result device_segments_refresh(zero_ctx *z, struct base_error *error)
{
    struct device_state *state = z->device->state;
    state->sole = device_sole(z);
    state->segment_count = cut_segments(z, state->segments);
    state->stale = false;
    zero_result r = device_copy(z, device_segments(z), state->segments,
                                state->segment_count * sizeof *state->segments, error);
    // What does not train any more has no squares.
    if (!r)
        r = z->device->ops->zero(device_piece(z->device, DEVICE_SQUARES),
                                 state->offsets[DEVICE_BALLOT] - state->offsets[DEVICE_SQUARES],
                                 z->device->own, error);
    return r;
}

void device_stale(zero_ctx *z)
{
    // While tables are made there is no state there, and all of it is stale.
    if (z->device->state)
        z->device->state->stale = true;
}

zero_result device_update_segments(const zero_ctx *z, size_t first, size_t count,
                                   struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct base_device_update work = {
        .segments = device_segments(z) + first,
        .count = count,
        .rounds = d->state->rounds,
        .scalars = device_piece(d, DEVICE_SCALARS),
        .keys = device_piece(d, DEVICE_KEYS),
        .gate = device_piece(d, DEVICE_GATE),
        .wrong = device_piece(d, DEVICE_WRONG),
        .finite_only = d->state->fused,
    };
    if (count == 0)
        return ZERO_OK;
    assert(first + count <= d->state->segment_count);
    return d->kernels->update(d->kernel_state, &work, d->own, error);
}
