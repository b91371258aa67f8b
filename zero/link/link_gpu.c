// State on the devices of several ranks: what travels does so between devices, in the order of the
// transport's stream. It waits for what it reads and writes over, and who needs what it brings
// waits for its ticket; the host waits for neither.

#include "zero/core/addresses.h"
#include "zero/core/progress.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"
#include "zero/link/bucket_gather.h"
#include "zero/link/links.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------------ life */

static zero_result gpu_open_peers(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    assert(!state->peers);
    for (int i = 0; i < 2; i++)
        if (d->ops->event_create(&state->summed[i], error))
            return error->result;
    const bool registers = eng_config_registers(&z->config);
    const struct gcomm_config config = {
        .transport = z->config.device_transport,
        .host = z->comm,
        .device = d->ops,
        .number = d->number,
        .nccl_comm = z->config.nccl_comm,
        .memory = registers ? state->memory : NULL,
        .bytes = registers ? state->offsets[DEVICE_PIECES] : 0,
        .must_register = strcmp(z->config.device_register, "on") == 0,
        .log = &z->config.log,
    };
    return gcomm_open(&state->peers, &config, error);
}

static bool gpu_close_peers(zero_ctx *z)
{
    struct device_state *state = z->device->state;
    const bool ended = gcomm_close(state->peers);
    for (int i = 0; i < 2; i++)
        z->device->ops->event_destroy(state->summed[i]);
    return ended;
}

/** Tells a failure of the transport, which is the host's, too. */
static zero_result told(const zero_ctx *z, zero_result result, struct base_error *error)
{
    if (!result)
        return ZERO_OK;
    coll_state(z->comm, error);
    return result;
}

/* ------------------------------------------------------------------ gradients */

/** What travels of a unit's gradient, and where what comes of it goes: how many buckets. */
static size_t list_buckets(const zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                           unsigned char *received)
{
    const struct device_state *state = z->device->state;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t world = (size_t)z->config.world;
    struct coll_span *spans = state->spans;
    size_t count = 0;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const size_t size = eng_dtype_size(place->comm_dtype);
        const size_t own = place->own_granules * BASE_GRANULE * size;
        if (!z->io[s].trains)
            continue;
        for (size_t r = 0; r < world; r++) {
            const struct coll_span *shard = &z->layout.buckets[s].elements[r];
            spans[r] = (struct coll_span){shard->offset * size, shard->count * size};
        }
        state->scattered[count++] = (struct gcomm_scattered){
            .source = gradient + place->comm_offset,
            .received = received,
            .stride = own,
            .spans = spans,
        };
        spans += world;
        received += world * own;
    }
    return count;
}

/** Sends a unit's gradient, and receives what others send of theirs. */
static zero_result scatter(zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                           unsigned char *received, struct base_error *error)
{
    struct device_state *state = z->device->state;
    const struct gcomm_scatter op = {
        .buckets = state->scattered,
        .count = list_buckets(z, unit, gradient, received),
        .contributors = eng_contributors(z, z->micro.index),
        .label = eng_unit_label(z, unit),
    };
    return told(z, gcomm_scatter(state->peers, &op, &state->last), error);
}

/** Brings together what ranks contribute one by one, in the half of that memory that was summed
 * longest ago. */
static zero_result bring_all(zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                             unsigned char *received, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct device_state *state = d->state;
    const zero_result r =
        d->ops->event_wait(state->summed[state->turn], gcomm_stream(state->peers), error);
    return r ? r : scatter(z, unit, gradient, received, error);
}

/** What of a unit's gradient travels in a dtype: how many buckets. Their sums come to where this
 * rank's part was. */
static size_t list_reduced(const zero_ctx *z, zero_unit unit, zero_dtype dtype,
                           unsigned char *gradient)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    struct gcomm_reduced *reduced = z->device->state->reduced;
    size_t count = 0;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        const struct coll_span *spans = z->layout.buckets[s].elements;
        unsigned char *source = gradient + place->comm_offset;
        if (z->io[s].trains && place->comm_dtype == dtype)
            reduced[count++] = (struct gcomm_reduced){
                .source = source,
                .sum = source + spans[z->config.rank].offset * eng_dtype_size(dtype),
                .spans = spans,
            };
    }
    return count;
}

/** An operation a dtype, of which a unit seldom has two. */
static zero_result reduce_scatter(zero_ctx *z, zero_unit unit, unsigned char *gradient,
                                  struct base_error *error)
{
    static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
    struct device_state *state = z->device->state;
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < sizeof dtypes / sizeof *dtypes; i++) {
        const struct gcomm_reduce_scatter op = {
            .buckets = state->reduced,
            .count = list_reduced(z, unit, dtypes[i], gradient),
            .dtype = dtypes[i],
            .label = eng_unit_label(z, unit),
        };
        if (op.count > 0)
            r = told(z, gcomm_reduce_scatter(state->peers, &op, &state->last), error);
    }
    return r;
}

/** reduction=local: adds up on the way. */
static zero_result bring_sums(zero_ctx *z, zero_unit unit, unsigned char *gradient,
                              struct base_error *error)
{
    void *transport = gcomm_stream(z->device->state->peers);
    // Once it is summed no rank can tell whose it was.
    const zero_result r = device_local_search(z, unit, gradient, transport, error);
    return r ? r : reduce_scatter(z, unit, gradient, error);
}

/** Adds up what was brought together, bucket by bucket; received NULL: nothing of other ranks,
 * else `room` bytes. */
static zero_result sum(const zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                       const unsigned char *received, size_t room, struct base_error *error)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    size_t at = 0;
    zero_result r = ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++) {
        const struct eng_bucket_place *place = &z->placement.buckets[s];
        if (!z->io[s].trains)
            continue;
        r = device_sum(z, s, gradient, received ? received + at : NULL, error);
        at += (size_t)z->config.world * place->own_granules * BASE_GRANULE *
              eng_dtype_size(place->comm_dtype);
    }
    assert(!received || at <= room);
    return r;
}

static zero_result reduce(zero_ctx *z, zero_unit unit, unsigned char *gradient,
                          struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const bool one_by_one = state->peers && !z->config.local;
    const size_t half = (state->offsets[DEVICE_RECEIVED + 1] - state->offsets[DEVICE_RECEIVED]) / 2;
    unsigned char *received =
        one_by_one ? (unsigned char *)device_piece(d, DEVICE_RECEIVED) + state->turn * half : NULL;
    void *stream = state->peers ? gcomm_stream(state->peers) : d->own;
    zero_result r = d->ops->event_record(d->handed, d->stream, error);
    if (!r)
        r = d->ops->event_wait(d->handed, stream, error);
    if (!r)
        r = eng_grad_prepare(z, unit, gradient, stream, error);
    if (!r && state->peers)
        r = one_by_one ? bring_all(z, unit, gradient, received, error)
                       : bring_sums(z, unit, gradient, error);
    if (!r && state->peers)
        r = told(z, gcomm_before(state->peers, state->last, d->own), error);
    if (!r)
        r = sum(z, unit, gradient, received, half, error);
    if (!r && one_by_one) {
        r = d->ops->event_record(state->summed[state->turn], d->own, error);
        state->turn ^= 1;
    }
    return r;
}

static zero_result gpu_reduce(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    const int slot = z->units[unit].sum_slot;
    struct base_error error = {0};
    zero_result r = reduce(z, unit, z->memory.grads + z->gradients.slots[slot].offset, &error);
    if (!r)
        r = d->ops->event_record(d->taken[slot], d->own, &error);
    if (!r)
        r = device_update_fused(z, unit, &error);
    return r ? device_failed(z, &error, "adding a gradient up") : ZERO_OK;
}

static zero_result gpu_after_decision(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    return d->state->peers ? told(z, gcomm_after(d->state->peers, d->own), error) : ZERO_OK;
}

/* ------------------------------------------------------------------ verdict */

static zero_result gpu_exchange_stats(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const size_t bytes = sizeof(struct base_device_ballot);
    const struct coll_label label = {.what = "step", .number = (uint32_t)z->step + 1};
    zero_result r = told(z, gcomm_after(state->peers, d->own), error);
    if (!r)
        r = told(z,
                 gcomm_exchange(state->peers, device_piece(d, DEVICE_BALLOT), bytes,
                                device_piece(d, DEVICE_BALLOTS), label, &state->last),
                 error);
    if (!r)
        r = told(z, gcomm_before(state->peers, state->last, d->own), error);
    return r ? r : d->ops->zero(device_piece(d, DEVICE_BALLOT), bytes, d->own, error);
}

static zero_result gpu_share_sums(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const struct gcomm_gathered all = {
        .source = (unsigned char *)(void *)z->memory.sums +
                  z->publication.all_sums[z->config.rank].offset,
        .whole = z->memory.sums,
        .spans = z->publication.all_sums,
    };
    const struct gcomm_all_gather op = {
        .buckets = &all,
        .count = 1,
        .label = {.what = "step", .number = (uint32_t)z->step + 1, .name = "sums"},
    };
    zero_result r = told(z, gcomm_after(state->peers, d->own), error);
    if (!r)
        r = told(z, gcomm_all_gather(state->peers, &op, &state->last), error);
    return r ? r : told(z, gcomm_before(state->peers, state->last, d->own), error);
}

/* ------------------------------------------------------------------ parameters */

static struct gcomm_gathered gathered_bucket(const zero_ctx *z, size_t bucket, void *whole)
{
    return (struct gcomm_gathered){
        .source = eng_home(z, bucket, z->placement.buckets[bucket].own_first),
        .whole = whole,
        .spans = z->layout.buckets[bucket].bytes,
    };
}

static zero_result gpu_publish(zero_ctx *z, size_t bucket)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    struct base_error error = {0};
    if (z->placement.buckets[bucket].residence != ENG_COPIED)
        return ZERO_OK;
    const struct gcomm_gathered all = gathered_bucket(z, bucket, eng_home(z, bucket, 0));
    const struct gcomm_all_gather op = {
        .buckets = &all,
        .count = 1,
        .label = eng_unit_label(z, z->layout.buckets[bucket].unit),
    };
    // Also where this rank has nothing new of its own, and has waited for no reader yet.
    zero_result r = d->ops->event_wait(d->read[z->layout.buckets[bucket].unit],
                                       gcomm_stream(state->peers), &error);
    if (!r)
        r = told(z, gcomm_after(state->peers, d->own), &error);
    if (!r)
        r = told(z, gcomm_all_gather(state->peers, &op, &state->published[bucket]), &error);
    if (r)
        return device_failed(z, &error, "sending parameters");
    state->last = state->published[bucket];
    return ZERO_OK;
}

static zero_result gpu_gather(zero_ctx *z, zero_unit unit, int slot)
{
    const struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    unsigned char *memory = z->memory.slots + z->gathers.slots[slot].offset;
    void *transport = gcomm_stream(state->peers);
    struct base_error error = {0};
    size_t count = 0;
    assert(z->gathers.slots[slot].in_flight);
    if (z->config.stage == 0) // the rank's own file has all of it
        return ZERO_OK;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        if (z->placement.buckets[s].residence == ENG_SHARDED)
            state->parts[count++] =
                gathered_bucket(z, s, memory + z->placement.buckets[s].slot_offset);
    const struct gcomm_all_gather op = {state->parts, count, eng_unit_label(z, unit)};
    // What the slot had before may still be read, and what it gets may still be written.
    zero_result r = d->ops->event_wait(d->copied[slot], transport, &error);
    if (!r)
        r = d->ops->event_wait(device_updated(z, unit), transport, &error);
    if (!r)
        r = told(z, gcomm_all_gather(state->peers, &op, &state->gathered[slot]), &error);
    if (r)
        return device_failed(z, &error, "gathering parameters");
    state->last = state->gathered[slot];
    z->gathers.slots[slot].in_flight = false; // for the host, which never waits for it
    return ZERO_OK;
}

/** The stream of the call waits for a bucket that was sent. */
static zero_result arrived(zero_ctx *z, size_t bucket, struct base_error *error)
{
    const struct device_state *state = z->device->state;
    if (z->placement.buckets[bucket].residence != ENG_COPIED || !state->published[bucket])
        return ZERO_OK;
    return told(z, gcomm_before(state->peers, state->published[bucket], z->device->stream), error);
}

static zero_result gpu_await_all(const zero_ctx *z, struct base_error *error)
{
    const struct device_state *state = z->device->state;
    if (!state->peers)
        return ZERO_OK;
    return told(z, gcomm_before(state->peers, state->last, z->device->own), error);
}

static zero_result await_unit(zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct device_state *state = z->device->state;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const int slot = z->units[unit].slot;
    zero_result r = ZERO_OK;
    for (size_t s = u->first_bucket; !r && s < u->first_bucket + u->bucket_count; s++)
        r = arrived(z, s, error);
    if (!r && slot >= 0)
        r = told(z, gcomm_before(state->peers, state->gathered[slot], z->device->stream), error);
    return r;
}

static zero_result await_persistent(zero_ctx *z, struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (size_t s = 0; !r && s < z->layout.bucket_count; s++)
        if (z->layout.buckets[s].persistent)
            r = arrived(z, s, error);
    return r;
}

static zero_result gpu_await_values(zero_ctx *z, zero_unit unit, struct base_error *error)
{
    return unit < 0 ? await_persistent(z, error) : await_unit(z, unit, error);
}

const struct eng_link eng_link_gpu = {
    .size = sizeof(struct eng_link),
    .name = "gpu",
    .gather = gpu_gather,
    .publish = gpu_publish,
    .fetch_sums = eng_no_work, // the executor shares them before the update
    .open = gpu_open_peers,
    .close = gpu_close_peers,
    .reduce = gpu_reduce,
    .after_decision = gpu_after_decision,
    .exchange_stats = gpu_exchange_stats,
    .share_sums = gpu_share_sums,
    .await_values = gpu_await_values,
    .await_all = gpu_await_all,
};
