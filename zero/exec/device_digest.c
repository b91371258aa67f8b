// Hashes of what is on the device, of parts of arrays whose table is made once: the sums of
// tensors that a fingerprint is made of, where state is there; and those of gradients that are
// compared. Nothing of it comes to the host but the sums.

#include "zero/core/progress.h"
#include "zero/core/state_fields.h"
#include "zero/exec/device_parts.h"
#include "zero/model/ranges.h"

#include <assert.h>

enum { PART = BASE_DEVICE_GRANULES * BASE_GRANULE };

size_t device_digest_count(const zero_ctx *z, const struct eng_placement *placement)
{
    size_t parts = 0;
    for (size_t i = 0; i < z->layout.slice_count && !z->config.streamed; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t count = eng_own_range(placement, slice).count;
        parts += (count + PART - 1) / PART * (size_t)eng_state_fields(z, slice->param);
    }
    return parts;
}

/** Cuts what lies together in one array, of which `all` would be the part, into those a digest
 * takes. */
static struct base_device_granules *cut(struct base_device_granules *parts,
                                        const struct base_device_granules *all, size_t count)
{
    for (size_t at = 0; at < count; at += PART, parts++) {
        *parts = *all;
        parts->elements = (const unsigned char *)all->elements + at * all->element_bytes;
        parts->first += at / BASE_GRANULE;
        parts->count = (uint32_t)(count - at < PART ? count - at : PART);
    }
    return parts;
}

/** What this rank owns of a slice's field. */
static struct base_device_granules *cut_field(const zero_ctx *z, struct base_device_granules *parts,
                                              const struct eng_slice *slice, int field)
{
    const struct ckpt_digest_place place = eng_digest_place(z, slice, field);
    const struct eng_range own = eng_own_range(&z->placement, slice);
    const size_t begin = eng_range_first(&own);
    const struct base_device_granules all = {
        .elements = own.count > 0 ? eng_state_memory(z, slice, field, begin) : NULL,
        .name = place.name,
        .first = begin / BASE_GRANULE,
        .slice = (uint32_t)place.slice,
        .array = (uint32_t)ckpt_digest_array(&place),
        .element_bytes = (uint32_t)place.element_bytes,
        .sum = (uint32_t)slice->param,
    };
    return cut(parts, &all, own.count);
}

static zero_result make_state(const zero_ctx *z, struct base_error *error)
{
    const size_t count = device_digest_count(z, &z->placement);
    struct base_device_granules *table, *end;
    if (count == 0)
        return ZERO_OK;
    end = table = device_table(count, sizeof *table, error);
    if (!table)
        return error->result;
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        for (int f = 0; f < eng_state_fields(z, slice->param); f++)
            end = cut_field(z, end, slice, f);
    }
    assert(end == table + count);
    return device_upload(z, DEVICE_HASHED, table, count * sizeof *table, error);
}

/* ------------------------------------------------------------------ gradients */

size_t device_gradients_count(const zero_ctx *z)
{
    size_t parts = 0;
    for (size_t i = 0; i < z->layout.slice_count && z->config.verify_micro; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (!z->layout.buckets[slice->bucket].frozen)
            parts += (slice->numel + PART - 1) / PART;
    }
    return parts;
}

/** A slice's gradient in the first slot. */
static struct base_device_granules gradient_of(const zero_ctx *z, size_t slice)
{
    const struct eng_slice *of = &z->layout.slices[slice];
    const size_t size = eng_dtype_size(z->layout.buckets[of->bucket].grad_dtype);
    return (struct base_device_granules){
        .elements = z->memory.grads + z->placement.buckets[of->bucket].grad_offset +
                    of->granule * BASE_GRANULE * size,
        .element_bytes = (uint32_t)size,
        .sum = (uint32_t)slice,
    };
}

static zero_result make_gradients(const zero_ctx *z, struct base_error *error)
{
    const size_t count = device_gradients_count(z);
    struct base_device_granules *table, *end;
    size_t *first = z->device->state->unit_hashed;
    if (count == 0)
        return ZERO_OK;
    end = table = device_table(count, sizeof *table, error);
    if (!table)
        return error->result;
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const struct eng_unit_layout *unit = &z->layout.units[u];
        for (size_t i = unit->first_slice; i < unit->first_slice + unit->slice_count; i++) {
            const struct base_device_granules all = gradient_of(z, i);
            if (!z->layout.buckets[z->layout.slices[i].bucket].frozen)
                end = cut(end, &all, z->layout.slices[i].numel);
        }
        first[u + 1] = (size_t)(end - table);
    }
    assert(end == table + count);
    return device_upload(z, DEVICE_GRADIENTS, table, count * sizeof *table, error);
}

zero_result device_digest_make(const zero_ctx *z, struct base_error *error)
{
    const zero_result r = make_state(z, error);
    return r ? r : make_gradients(z, error);
}

zero_result device_hash_gradient(const zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t first = d->state->unit_hashed[unit], end = d->state->unit_hashed[unit + 1];
    struct base_hash128 *hashes = device_piece(d, DEVICE_HASHES);
    if (eng_micro_repeats(z))
        hashes += z->layout.slice_count;
    const struct base_device_digest digest = {
        .parts = (struct base_device_granules *)device_piece(d, DEVICE_GRADIENTS) + first,
        .count = end - first,
        .sums = (uint64_t *)(void *)hashes,
        .offset = z->gradients.slots[z->units[unit].grad_slot].offset,
    };
    zero_result r = d->ops->event_record(d->handed, d->stream, error);
    if (!r)
        r = d->ops->event_wait(d->handed, d->own, error);
    if (!r)
        r = d->ops->zero(hashes + u->first_slice, u->slice_count * sizeof *hashes, d->own, error);
    if (!r)
        r = d->kernels->digest(d->kernel_state, &digest, d->own, error);
    if (!r)
        r = d->ops->event_record(d->handed, d->own, error);
    return r ? r : d->ops->event_wait(d->handed, d->stream, error);
}

zero_result device_hashes(zero_ctx *z, uint64_t *hashes)
{
    const struct eng_device *d = z->device;
    const size_t bytes = 2 * z->layout.slice_count * sizeof(struct base_hash128);
    struct base_error error = {0};
    zero_result r = d->ops->event_record(d->handed, d->own, &error);
    if (r)
        return device_failed(z, &error, "waiting for hashes of gradients");
    r = device_await(z, d->handed, "waiting for hashes of gradients");
    if (r)
        return r;
    r = d->ops->copy(hashes, device_piece(d, DEVICE_HASHES), bytes, d->own, &error);
    if (!r)
        r = d->ops->stream_sync(d->own, &error);
    return r ? device_failed(z, &error, "fetching hashes of gradients") : ZERO_OK;
}

/* ------------------------------------------------------------------ state */

static zero_result add_up(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t bytes = z->model.param_count * sizeof *sums;
    const struct base_device_digest digest = {
        .parts = device_piece(d, DEVICE_HASHED),
        .count = device_digest_count(z, &z->placement),
        .sums = device_piece(d, DEVICE_DIGEST),
    };
    zero_result r = d->ops->zero(digest.sums, bytes, d->own, error);
    if (!r)
        r = d->kernels->digest(d->kernel_state, &digest, d->own, error);
    if (!r)
        r = d->ops->copy(sums, digest.sums, bytes, d->own, error);
    return r ? r : d->ops->stream_sync(d->own, error);
}

bool device_digest(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error)
{
    struct base_error inner = {0};
    if (z->config.streamed) // state is the host's, and only passes through
        return false;
    if (!add_up(z, sums, &inner))
        return true;
    z->device->ops->stream_sync(z->device->own, NULL);
    device_tell(z, &inner, "the fingerprint", error);
    return true;
}
