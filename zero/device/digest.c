// The sums of tensors that a fingerprint is made of, where state is on the device: of runs of
// granules, whose table is made once. Nothing of it comes to the host but the sums.

#include "zero/device/inner.h"
#include "zero/state/state.h"

enum { RUN = ENG_DEVICE_GRANULES * ENG_GRANULE, TOGETHER = 64 };

/** Elements of a slice that are a rank's own, from one of the section on. */
static size_t owned(const struct eng_placement *placement, const struct eng_slice *slice,
                    size_t *first)
{
    const struct eng_section_place *place = &placement->sections[slice->section];
    return device_covered(slice, place->own_first, place->own_granules, first);
}

size_t device_digest_count(const zero_ctx *z, const struct eng_placement *placement)
{
    size_t runs = 0, first;
    for (size_t i = 0; i < z->layout.slice_count && !z->config.streamed; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t count = owned(placement, slice, &first);
        runs += (count + RUN - 1) / RUN * (size_t)eng_state_fields(z, slice->param);
    }
    return runs;
}

/** The table on its way to the device. */
struct table {
    struct eng_device_granules runs[TOGETHER];
    size_t count;  /**< of them, */
    size_t before; /**< and of those that are there */
};

static zero_result hand_over(const zero_ctx *z, struct table *table, struct base_error *error)
{
    struct eng_device_granules *there = device_piece(z->device, DEVICE_HASHED);
    const size_t count = table->count;
    there += table->before;
    table->before += count;
    table->count = 0;
    return device_copy(z, there, table->runs, count * sizeof *table->runs, error);
}

/** A field of elements of a slice, from one of the slice on. */
static zero_result add_field(const zero_ctx *z, struct table *table, const struct eng_slice *slice,
                             int field, size_t first, size_t count, struct base_error *error)
{
    const struct ckpt_digest_place place = eng_digest_place(z, slice, field);
    zero_result r = ZERO_OK;
    for (size_t at = 0; !r && at < count; at += RUN) {
        if (table->count == TOGETHER)
            r = hand_over(z, table, error);
        table->runs[table->count++] = (struct eng_device_granules){
            .elements = eng_state_memory(z, slice, field, first + at),
            .name = place.name,
            .first = (first + at) / ENG_GRANULE,
            .slice = (uint32_t)place.slice,
            .array = (uint32_t)ckpt_digest_array(&place),
            .count = (uint32_t)(count - at < RUN ? count - at : RUN),
            .element_bytes = (uint32_t)place.element_bytes,
            .sum = (uint32_t)slice->param,
        };
    }
    return r;
}

zero_result device_digest_make(const zero_ctx *z, struct base_error *error)
{
    struct table table = {.count = 0};
    size_t first;
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < z->layout.slice_count && !z->config.streamed; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t count = owned(&z->placement, slice, &first);
        const size_t begin = first - slice->granule * ENG_GRANULE;
        for (int f = 0; !r && f < eng_state_fields(z, slice->param); f++)
            r = add_field(z, &table, slice, f, begin, count, error);
    }
    return r ? r : hand_over(z, &table, error);
}

static zero_result add_up(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t bytes = z->model.param_count * sizeof *sums;
    const struct eng_device_digest digest = {
        .runs = device_piece(d, DEVICE_HASHED),
        .count = device_digest_count(z, &z->placement),
        .sums = device_piece(d, DEVICE_DIGEST),
    };
    zero_result r = d->ops->zero(digest.sums, bytes, d->own, error);
    if (!r)
        r = d->state->kernels->digest(d->state->kernel_state, &digest, d->own, error);
    if (!r)
        r = d->ops->copy(sums, digest.sums, bytes, d->own, error);
    return r ? r : d->ops->stream_sync(d->own, error);
}

zero_result eng_device_digest(const zero_ctx *z, struct base_hash128 *sums,
                              struct base_error *error)
{
    struct base_error inner = {0};
    if (!add_up(z, sums, &inner))
        return ZERO_OK;
    z->device->ops->stream_sync(z->device->own, NULL);
    return device_tell(z, &inner, "the fingerprint", error);
}
