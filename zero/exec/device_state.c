// State on the device: one memory, laid out as the placement lays out that of the host, with what a
// step needs beside it.

#include "zero/core/link_table.h"
#include "zero/exec/device_tiles.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ------------------------------------------------------------------ sizes */

/** Whether something is stored by stochastic rounding, and so has keys. */
static bool rounds(const zero_ctx *z)
{
    return z->config.no_masters || z->config.moment_dtype != ZERO_F32;
}

static size_t count_keys(const zero_ctx *z)
{
    return rounds(z) ? z->layout.slice_count * BASE_DEVICE_KEYS : 0;
}

/** Bytes of the scalars and keys of one update. */
static size_t update_bytes(const zero_ctx *z)
{
    return z->model.group_count * sizeof(struct base_rule_scalars) +
           count_keys(z) * sizeof(uint64_t);
}

static size_t record_bytes(const zero_ctx *z)
{
    return sizeof(struct base_device_record) + z->layout.bucket_count * sizeof(uint64_t);
}

/** Bytes that other ranks, and the place of this one among them, contribute to a unit. */
static size_t unit_received(const zero_ctx *z, const struct eng_placement *p, size_t unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    size_t bytes = 0;
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        if (!z->layout.buckets[s].frozen)
            bytes += (size_t)z->config.world * p->buckets[s].own_granules * BASE_GRANULE *
                     eng_dtype_size(p->buckets[s].comm_dtype);
    return bytes;
}

static size_t received_bytes(const zero_ctx *z, const struct eng_placement *p)
{
    size_t most = 0;
    // Local sums arrive in place of a gradient.
    if (!eng_config_moves(&z->config) || z->config.local)
        return 0;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        most = unit_received(z, p, u) > most ? unit_received(z, p, u) : most;
    return 2 * aligned(most);
}

/** The segments; device_tiles.c counts those of what passes through the device. */
static size_t count_segments(const zero_ctx *z, const struct eng_placement *p)
{
    return z->config.streamed ? 0 : device_segments_count(&z->layout, p, NULL);
}

/** The most buckets that a unit has. */
static size_t most_buckets(const zero_ctx *z)
{
    size_t most = 0;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        most = z->layout.units[u].bucket_count > most ? z->layout.units[u].bucket_count : most;
    return most;
}

/** Tables in memory of the host, with so many segments. */
static void lay_tables(const zero_ctx *z, const struct eng_placement *p, size_t segments,
                       struct device_state *state)
{
    const size_t units = z->layout.unit_count, buckets = z->layout.bucket_count;
    const size_t world = (size_t)z->config.world, most = most_buckets(z);
    struct base_tables *tables = &state->tables;
    state->segments = base_tables_add(tables, segments, sizeof *state->segments);
    state->bucket_segments = base_tables_add(tables, buckets + 1, sizeof(size_t));
    state->unit_gaps = base_tables_add(tables, units + 1, sizeof(size_t));
    if (z->config.verify_micro)
        state->unit_hashed = base_tables_add(tables, units + 1, sizeof(size_t));
    if (!eng_config_moves(&z->config))
        return;
    state->scattered = base_tables_add(tables, most, sizeof *state->scattered);
    state->spans = base_tables_add(tables, most * world, sizeof *state->spans);
    state->reduced = base_tables_add(tables, most, sizeof *state->reduced);
    state->parts = base_tables_add(tables, most, sizeof *state->parts);
    state->published = base_tables_add(tables, buckets, sizeof *state->published);
    state->gathered =
        base_tables_add(tables, (size_t)p->gather.slot_count, sizeof *state->gathered);
}

/** Where each array begins, and the end of all. */
static void lay(const zero_ctx *z, const struct eng_placement *p, size_t offsets[DEVICE_PIECES + 1])
{
    const size_t bytes[DEVICE_PIECES] = {
        [DEVICE_PARAMS] = p->params_bytes,
        [DEVICE_GATHERED] = p->gather.bytes,
        [DEVICE_GRADS] = p->grads.bytes,
        [DEVICE_RECEIVED] = received_bytes(z, p),
        [DEVICE_SUMS] = p->sums_bytes,
        [DEVICE_BLOCKS] = p->blocks_bytes,
        [DEVICE_MOMENTS] = z->config.streamed ? 0 : p->moments_bytes,
        [DEVICE_MASTERS] = z->config.streamed ? 0 : p->masters_bytes,
        [DEVICE_SQUARES] = p->own_sums_bytes / (BASE_GRANULE * sizeof(float)) * sizeof(double),
        [DEVICE_BALLOT] = sizeof(struct base_device_ballot),
        [DEVICE_BALLOTS] = eng_config_moves(&z->config)
                               ? (size_t)z->config.world * sizeof(struct base_device_ballot)
                               : 0,
        [DEVICE_COURSE] = sizeof(struct base_device_course),
        [DEVICE_GATE] = sizeof(uint32_t),
        [DEVICE_WRONG] = sizeof(uint64_t),
        [DEVICE_BAD] = z->layout.bucket_count * sizeof(uint64_t),
        [DEVICE_RECORD] = record_bytes(z),
        [DEVICE_PREPARED] = DEVICE_OPEN_STEPS * update_bytes(z),
        [DEVICE_SCALARS] = z->model.group_count * sizeof(struct base_rule_scalars),
        [DEVICE_KEYS] = count_keys(z) * sizeof(uint64_t),
        [DEVICE_SEGMENTS] = count_segments(z, p) * sizeof(struct base_device_segment),
        [DEVICE_HASHED] = device_digest_count(z, p) * sizeof(struct base_device_granules),
        [DEVICE_DIGEST] =
            z->config.streamed ? 0 : z->model.param_count * sizeof(struct base_hash128),
        [DEVICE_GRADIENTS] = device_gradients_count(z) * sizeof(struct base_device_granules),
        [DEVICE_HASHES] =
            z->config.verify_micro ? 2 * z->layout.slice_count * sizeof(struct base_hash128) : 0,
        [DEVICE_GAPS] = device_gaps_count(z) * sizeof(struct base_device_gap),
    };
    offsets[0] = 0;
    for (int i = 0; i < DEVICE_PIECES; i++)
        offsets[i + 1] = offsets[i] + aligned(bytes[i]);
}

/** Bytes of a step's metrics. */
static size_t metric_bytes(const zero_ctx *z)
{
    const size_t values = ENG_MAX_METRICS * (size_t)(z->micro.count + z->micro.again);
    return values * (sizeof(union device_value) + 1);
}

static size_t pinned_bytes(const zero_ctx *z)
{
    return DEVICE_OPEN_STEPS * aligned(record_bytes(z)) +
           DEVICE_STEPS * aligned(DEVICE_OPEN_STEPS * update_bytes(z));
}

/** Bytes of the host that are in use while memory there is made, and no longer. */
static size_t once_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    const size_t state = device_digest_count(z, placement), gradients = device_gradients_count(z);
    const size_t parts = state > gradients ? state : gradients;
    const size_t bytes = parts * sizeof(struct base_device_granules);
    const size_t gaps = device_gaps_count(z) * sizeof(struct base_device_gap);
    return bytes > gaps ? bytes : gaps;
}

void device_state_need(const zero_ctx *z, const struct eng_placement *placement,
                       struct eng_need *need)
{
    struct device_state counted = {.tables.counts = true};
    lay(z, placement, counted.offsets);
    lay_tables(z, placement, count_segments(z, placement), &counted);
    need->rows[ENG_FOR_TABLES] += sizeof counted + counted.tables.bytes + pinned_bytes(z) +
                                  DEVICE_STEPS * aligned(metric_bytes(z));
    need->gpu[ENG_GPU_RECEIVED] = received_bytes(z, placement);
    need->gpu[ENG_GPU_TABLES] = counted.offsets[DEVICE_PIECES] - counted.offsets[DEVICE_SQUARES];
    need->once = once_bytes(z, placement);
}

/* ------------------------------------------------------------------ whether it can be there */

zero_result device_can_update(const zero_ctx *z, struct base_error *error)
{
    const struct base_device_kernels *kernels = base_device_kernels_find(z->device->ops->name);
    void *state = NULL;
    const zero_result r = kernels->open(&state, error);
    kernels->close(state);
    return r;
}

zero_result device_can_move(const zero_ctx *z, struct base_error *error)
{
    return gcomm_ready(z->config.device_transport, z->device->ops, error);
}

/* ------------------------------------------------------------------ memory */

/** Tells the engine where its arrays are. */
static void show(zero_ctx *z)
{
    struct eng_device *d = z->device;
    z->memory.params = device_piece(d, DEVICE_PARAMS);
    z->memory.params_view = z->memory.params;
    z->memory.slots = device_piece(d, DEVICE_GATHERED);
    z->memory.slots_view = z->memory.slots;
    z->memory.grads = device_piece(d, DEVICE_GRADS);
    z->memory.sums = device_piece(d, DEVICE_SUMS);
    z->memory.blocks = device_piece(d, DEVICE_BLOCKS);
    if (z->config.streamed) // memory of the host
        return;
    z->memory.moments = device_piece(d, DEVICE_MOMENTS);
    z->memory.masters = device_piece(d, DEVICE_MASTERS);
}

static zero_result make_memory(zero_ctx *z, struct base_error *error)
{
    struct eng_device *d = z->device;
    struct device_state *state = d->state;
    void *memory;
    lay(z, &z->placement, state->offsets);
    const size_t bytes = state->offsets[DEVICE_PIECES];
    zero_result r = eng_config_registers(&z->config)
                        ? gcomm_alloc(&memory, z->config.device_transport, d->ops, bytes, error)
                        : d->ops->alloc(&memory, bytes, error);
    state->memory = memory;
    if (!r)
        r = d->ops->zero(memory, bytes, d->own, error);
    if (!r)
        show(z);
    return r;
}

zero_result device_bad_clear(const zero_ctx *z, struct base_error *error)
{
    const size_t bytes = z->layout.bucket_count * sizeof(uint64_t);
    assert(z->device->state->open == 0);
    uint64_t *none = device_blamed(z, z->step + 1);
    memset(none, 0xff, bytes);
    return device_copy(z, device_piece(z->device, DEVICE_BAD), none, bytes, error);
}

/** device_bad_clear() for updates. */
static zero_result clear_wrong(const zero_ctx *z, struct base_error *error)
{
    uint64_t *none = device_blamed(z, 0);
    *none = UINT64_MAX;
    return device_copy(z, device_piece(z->device, DEVICE_WRONG), none, sizeof *none, error);
}

/** Memory of the host that copies go to and come from, by pieces. */
static zero_result make_pinned(zero_ctx *z, struct base_error *error)
{
    struct eng_device *d = z->device;
    struct device_state *state = d->state;
    const size_t bytes = pinned_bytes(z);
    unsigned char *memory = base_aligned_alloc(4096, bytes);
    if (!memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes of a device's verdicts",
                         bytes);
    zero_result r = d->ops->pin(memory, bytes, error);
    if (r) {
        base_free(memory);
        return r;
    }
    state->pinned = memory;
    for (int i = 0; !r && i < DEVICE_OPEN_STEPS; i++) {
        struct device_step *step = &state->steps[i];
        step->record = (struct base_device_record *)(void *)memory;
        memory += aligned(record_bytes(z));
        r = d->ops->event_create(&step->judged, error);
    }
    for (int i = 0; i < DEVICE_STEPS; i++, memory += aligned(DEVICE_OPEN_STEPS * update_bytes(z)))
        state->prepared[i] = memory;
    assert(r || memory == state->pinned + bytes);
    return r;
}

zero_result device_metrics_make(const zero_ctx *z, unsigned char **memory, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t bytes = DEVICE_STEPS * aligned(metric_bytes(z));
    *memory = NULL;
    unsigned char *made = base_aligned_alloc(4096, bytes);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu bytes of metrics", bytes);
    memset(made, 0, bytes);
    const zero_result r = d->ops->pin(made, bytes, error);
    if (r)
        base_free(made);
    else
        *memory = made;
    return r;
}

void device_metrics_drop(const zero_ctx *z, unsigned char *memory)
{
    if (!memory)
        return;
    z->device->ops->unpin(memory);
    base_free(memory);
}

void device_metrics_take(zero_ctx *z, unsigned char *memory)
{
    if (!memory)
        return;
    struct device_state *state = z->device->state;
    device_metrics_drop(z, state->metric_memory);
    state->metric_memory = memory;
    const size_t values = metric_bytes(z) / (sizeof(union device_value) + 1);
    for (int i = 0; i < DEVICE_STEPS; i++, memory += aligned(metric_bytes(z))) {
        state->metrics[i].values = (union device_value *)(void *)memory;
        state->metrics[i].fetched = memory + values * sizeof(union device_value);
    }
}

static zero_result make_tables(const zero_ctx *z, struct base_error *error)
{
    struct device_state *state = z->device->state;
    const size_t segments = device_segments_count(&z->layout, &z->placement, device_cut(z));
    lay_tables(z, &z->placement, segments, state);
    return state->tables.failed
               ? zero_fail(error, ZERO_E_NOMEM, "no memory for a device's tables of %zu segments",
                           segments)
               : ZERO_OK;
}

zero_result device_state_make(zero_ctx *z, struct base_error *error)
{
    struct eng_device *d = z->device;
    unsigned char *metrics = NULL;
    d->state = base_calloc(1, sizeof *d->state);
    if (!d->state)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a device's tables");
    d->state->key_count = count_keys(z);
    d->state->rounds = rounds(z);
    d->state->stale = true;
    d->state->roomy = device_gradients_fit(z);
    zero_result r = d->ops->event_create(&d->state->persisted, error);
    if (!r)
        r = make_memory(z, error);
    if (!r)
        r = device_tiles_make(z, error);
    if (!r)
        r = make_tables(z, error);
    if (!r)
        r = device_digest_make(z, error);
    if (!r)
        r = device_gaps_make(z, error);
    if (!r)
        r = make_pinned(z, error);
    if (!r)
        r = device_metrics_make(z, &metrics, error);
    device_metrics_take(z, metrics);
    if (!r)
        r = device_bad_clear(z, error);
    if (!r)
        r = clear_wrong(z, error);
    return r || !eng_config_moves(&z->config) ? r : z->link->open(z, error);
}

static void free_memory(zero_ctx *z)
{
    struct device_state *state = z->device->state;
    struct base_error error = {.result = ZERO_OK};
    if (!eng_config_registers(&z->config))
        z->device->ops->free(state->memory);
    else if (gcomm_free(state->memory, z->config.device_transport, z->device->ops, &error))
        base_logf(&z->config.log, ZERO_LOG_WARN, "core", "the GPU's memory is not freed: %s",
                  error.message);
}

void device_state_free(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct device_state *state = d->state;
    if (!state)
        return;
    const bool ended = z->link->close(z);
    device_tiles_free(z);
    for (int i = 0; i < DEVICE_OPEN_STEPS; i++)
        d->ops->event_destroy(state->steps[i].judged);
    d->ops->event_destroy(state->persisted);
    d->ops->unpin(state->pinned);
    d->ops->unpin(state->metric_memory);
    if (ended) // or what was left behind, peers included, still reads and writes it
        free_memory(z);
    base_free(state->pinned);
    base_free(state->metric_memory);
    base_tables_free(&state->tables);
}
