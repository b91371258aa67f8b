// The sums of tensors that a fingerprint is made of, where state is on the device: of runs of
// granules, whose table is made once. Nothing of it comes to the host but the sums.

#include "zero/device/inner.h"
#include "zero/state/state.h"

#include "base/arena.h"

enum { RUN = ENG_DEVICE_GRANULES * ENG_GRANULE };

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

/** Cuts what lies together in one array, of which `all` would be the run, into those a digest
 * takes. */
static struct eng_device_granules *cut(struct eng_device_granules *runs,
                                       const struct eng_device_granules *all, size_t count)
{
    for (size_t at = 0; at < count; at += RUN, runs++) {
        *runs = *all;
        runs->elements = (const unsigned char *)all->elements + at * all->element_bytes;
        runs->first += at / ENG_GRANULE;
        runs->count = (uint32_t)(count - at < RUN ? count - at : RUN);
    }
    return runs;
}

/** What this rank owns of a slice's field. */
static struct eng_device_granules *cut_field(const zero_ctx *z, struct eng_device_granules *runs,
                                             const struct eng_slice *slice, int field)
{
    const struct ckpt_digest_place place = eng_digest_place(z, slice, field);
    size_t first;
    const size_t count = owned(&z->placement, slice, &first);
    const size_t begin = first - slice->granule * ENG_GRANULE;
    const struct eng_device_granules all = {
        .elements = count > 0 ? eng_state_memory(z, slice, field, begin) : NULL,
        .name = place.name,
        .first = begin / ENG_GRANULE,
        .slice = (uint32_t)place.slice,
        .array = (uint32_t)ckpt_digest_array(&place),
        .element_bytes = (uint32_t)place.element_bytes,
        .sum = (uint32_t)slice->param,
    };
    return cut(runs, &all, count);
}

zero_result device_digest_make(const zero_ctx *z, struct base_error *error)
{
    const size_t count = device_digest_count(z, &z->placement);
    struct eng_device_granules *const table = base_calloc(count, sizeof *table), *end = table;
    if (!table && count > 0)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a table of %zu runs", count);
    for (size_t i = 0; i < z->layout.slice_count && !z->config.streamed; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        for (int f = 0; f < eng_state_fields(z, slice->param); f++)
            end = cut_field(z, end, slice, f);
    }
    const zero_result r =
        device_copy(z, device_piece(z->device, DEVICE_HASHED), table, count * sizeof *table, error);
    base_free(table);
    return r;
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
