// Gradients where state is on the device: the program adds into slots there, and the engine's own
// stream adds up what ranks contribute (zero/link/link_gpu.c).

#include "zero/core/addresses.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/local_accumulation.h"

#include <assert.h>

/* ------------------------------------------------------------------ gaps */

/** Whether something lies behind a slice of a gradient and is in its sums; nothing does of what was
 * frozen from the beginning. */
static bool has_gap(const zero_ctx *z, const struct eng_slice *slice)
{
    return slice->numel % BASE_GRANULE > 0 && !z->layout.buckets[slice->bucket].frozen;
}

static struct base_device_gap gap_of(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct eng_bucket *bucket = &z->layout.buckets[slice->bucket];
    const size_t size = eng_dtype_size(bucket->grad_dtype);
    const size_t left = slice->granules * BASE_GRANULE - slice->numel;
    return (struct base_device_gap){
        .first = z->placement.buckets[slice->bucket].grad_offset +
                 (slice->granule * BASE_GRANULE + slice->numel) * size,
        .bytes = left * size,
    };
}

size_t device_gaps_count(const zero_ctx *z)
{
    size_t gaps = 0;
    for (size_t i = 0; i < z->layout.slice_count; i++)
        gaps += has_gap(z, &z->layout.slices[i]);
    return gaps;
}

zero_result device_gaps_make(const zero_ctx *z, struct base_error *error)
{
    const size_t count = device_gaps_count(z);
    struct base_device_gap *table, *end;
    size_t *first = z->device->state->unit_gaps;
    if (count == 0)
        return ZERO_OK;
    end = table = device_table(count, sizeof *table, error);
    if (!table)
        return error->result;
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const struct eng_unit_layout *unit = &z->layout.units[u];
        for (size_t i = unit->first_slice; i < unit->first_slice + unit->slice_count; i++)
            if (has_gap(z, &z->layout.slices[i]))
                *end++ = gap_of(z, &z->layout.slices[i]);
        first[u + 1] = (size_t)(end - table);
    }
    assert(end == table + count);
    return device_upload(z, DEVICE_GAPS, table, count * sizeof *table, error);
}

static zero_result clear_gaps(const zero_ctx *z, zero_unit unit, unsigned char *gradient,
                              struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t *first = &d->state->unit_gaps[unit];
    const struct base_device_clearing clearing = {
        .gaps = (struct base_device_gap *)device_piece(d, DEVICE_GAPS) + first[0],
        .count = first[1] - first[0],
        .buffer = gradient,
    };
    return d->kernels->clear(d->kernel_state, &clearing, d->stream, error);
}

/* ------------------------------------------------------------------ gradients */

static size_t bucket_sums(const zero_ctx *z, size_t s)
{
    return z->layout.buckets[s].before[z->config.rank] * sizeof(float);
}

bool device_gradients_fit(const zero_ctx *z)
{
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const struct eng_unit_layout *unit = &z->layout.units[u];
        const size_t end = unit->first_bucket + unit->bucket_count;
        const size_t sums =
            end < z->layout.bucket_count ? bucket_sums(z, end) : z->placement.own_sums_bytes;
        if (z->placement.units[u].grad_bytes > sums - bucket_sums(z, unit->first_bucket))
            return false;
    }
    return true;
}

bool device_sole(const zero_ctx *z)
{
    const struct eng_config *config = &z->config;
    return config->world == 1 && config->micro_batches == 1 && !config->local &&
           !config->verify_micro && (config->stage < 2 || z->device->state->roomy);
}

unsigned char *device_gradient(const zero_ctx *z, zero_unit unit)
{
    if (z->config.stage < 2)
        return z->memory.grads + z->gradients.slots[z->units[unit].sum_slot].offset;
    return (unsigned char *)(void *)z->memory.sums +
           bucket_sums(z, z->layout.units[unit].first_bucket);
}

/** Moves a slot to where the unit's gradient is written, and says whether it was there. Sums may
 * have been there since. */
static bool place(zero_ctx *z, zero_unit unit, struct eng_grad_slot *slot)
{
    const size_t before = slot->offset;
    const bool moves = z->config.stage >= 2 && z->device->state->sole;
    slot->offset = moves ? (size_t)(device_gradient(z, unit) - z->memory.grads) : slot->home;
    return !moves && slot->offset == before;
}

/** The event behind what has last read the buffer that is opened now. The only contribution is read
 * until its update is done, whichever slot it was opened in; where a step was left out, the host
 * has waited for its sums. Any other is read by what adds it up, or compares it, and by no update.
 * Between the two kinds device_segments_refresh() waits. */
static void *last_read(const zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    return d->state->sole ? device_updated(z, unit) : d->taken[z->units[unit].grad_slot];
}

zero_result device_grad_open(zero_ctx *z, zero_unit unit, const struct eng_grad_opening *opening)
{
    const struct eng_device *d = z->device;
    const int slot = z->units[unit].grad_slot;
    const bool stays = opening->keeps || opening->purpose == ENG_GRAD_WRITE;
    const bool same = place(z, unit, &z->gradients.slots[slot]) && opening->again;
    unsigned char *gradient = z->memory.grads + z->gradients.slots[slot].offset;
    struct base_error error = {0};
    zero_result r = d->ops->event_wait(last_read(z, unit), d->stream, &error);
    if (!r && !stays)
        r = d->ops->zero(gradient, z->placement.units[unit].grad_bytes, d->stream, &error);
    // The host may not know yet that a step is skipped, and would not doubt the buffer in time.
    else if (!r && (!same || z->config.nonfinite == ZERO_NONFINITE_SKIP))
        r = clear_gaps(z, unit, gradient, &error);
    return r ? device_failed(z, &error, "clearing a gradient") : ZERO_OK;
}

zero_result device_sum(const zero_ctx *z, size_t s, const unsigned char *gradient,
                       const void *received, struct base_error *error)
{
    const struct eng_bucket_place *place = &z->placement.buckets[s];
    const struct eng_device *d = z->device;
    const size_t first = z->layout.buckets[s].elements[z->config.rank].offset;
    const size_t before = z->layout.buckets[s].before[z->config.rank];
    const size_t size = eng_dtype_size(place->comm_dtype);
    const uint64_t number = (uint64_t)z->micro.index * (uint64_t)z->config.world;
    const bool local = z->config.local; // one rank has the sum of all
    const int count = local ? 1 : eng_contributors(z, z->micro.index);
    const bool last = z->micro.index == z->micro.count - 1;
    assert(count >= 1 && count <= z->config.world);
    double *squares = device_piece(d, DEVICE_SQUARES);
    uint64_t *bad = device_piece(d, DEVICE_BAD);
    const struct base_device_sum sum = {
        .received = received,
        .stride = place->own_granules * BASE_GRANULE * size,
        .own = gradient + place->comm_offset + first * size,
        .own_index = local                    ? 0
                     : z->config.rank < count ? z->config.rank
                                              : -1,
        .dtype = place->comm_dtype,
        .count = count,
        .granules = place->own_granules,
        .accumulator = d->state->sole ? NULL : eng_own_sums(z, s, first),
        .block = eng_own_blocks(z, s),
        .number = number,
        .sum_group = (uint32_t)z->config.sum_group,
        .store = local || number < (uint64_t)z->config.sum_group,
        .last = last,
        .squares = last ? squares + before / BASE_GRANULE : NULL,
        .element = first,
        .bad = local && d->state->peers ? NULL : bad + s,
    };
    if (sum.granules == 0)
        return ZERO_OK;
    return d->kernels->sum(d->kernel_state, &sum, d->own, error);
}

/* ------------------------------------------------------------------ reduction=local */

// Streams of the program add up in the unit's own slot, as they hand gradients over. So a buffer
// beside it is free again without waiting for anything that travels, to other ranks or to the host.

zero_result device_grad_add(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    const struct eng_unit *u = &z->units[unit];
    assert(u->sum_slot >= 0 && u->grad_slot >= 0);
    const bool spare = eng_local_spare(z, unit);
    const bool stays = !eng_grad_ends_sum(z) && !eng_micro_repeats(z);
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (spare)
        r = d->ops->event_wait(d->taken[u->sum_slot], d->stream, &error);
    if (!r && spare)
        r = eng_local_add(z, unit, &error);
    if (!r && spare)
        r = d->ops->event_record(d->taken[u->grad_slot], d->stream, &error);
    if (!r && stays) // else the stream that the sum leaves on records it
        r = d->ops->event_record(d->taken[u->sum_slot], d->stream, &error);
    return r ? device_failed(z, &error, "adding a gradient up") : ZERO_OK;
}

zero_result device_add(const zero_ctx *z, const struct base_device_addition *work,
                       struct base_error *error)
{
    return z->device->kernels->add(z->device->kernel_state, work, z->device->stream, error);
}

zero_result device_local_search(const zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                                void *stream, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    uint64_t *bad = device_piece(d, DEVICE_BAD);
    zero_result r = ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const struct base_device_search search = {
            .values = gradient + place->comm_offset,
            .dtype = place->comm_dtype,
            .count = z->layout.buckets[s].granules * BASE_GRANULE,
            .number =
                (uint64_t)z->micro.index * (uint64_t)z->config.world + (uint64_t)z->config.rank,
            .bad = bad + s,
        };
        if (z->io[s].trains)
            r = d->kernels->search(d->kernel_state, &search, stream, error);
    }
    return r;
}
