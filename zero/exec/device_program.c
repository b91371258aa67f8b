// A device that the program computes on: streams, events and memory of a context there, public
// calls, and what every executor on a GPU does the same way.

#include "zero/core/api_call.h"
#include "zero/core/exec_table.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/local_accumulation.h"

#include "base/arena.h"

#include <assert.h>

/* ------------------------------------------------------------------ life */

/** NULL: the error says so. */
static const struct base_device *find(const struct eng_config *config, struct base_error *error)
{
    const struct base_device *ops = base_device_find("cuda");
    if (!ops)
        zero_fail(error, ZERO_E_UNSUPPORTED, "device=%s: this library was built without CUDA",
                  config->device);
    return ops;
}

zero_result eng_device_open(zero_ctx *z, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    if (!config->on_device || config->plan)
        return ZERO_OK;
    const struct base_device *ops = find(config, error);
    if (!ops)
        return ZERO_E_UNSUPPORTED;
    struct eng_device *d = base_calloc(1, sizeof *d);
    if (!d)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a device");
    assert(!z->device);
    z->device = d;
    d->ops = ops;
    d->number = config->device_number;
    d->waiting = -1;
    struct base_error inner = {0};
    if (ops->enter(d->number, &inner))
        return zero_fail(error, inner.result, "device=%s: %s", config->device, inner.message);
    ops->leave();
    return ZERO_OK;
}

zero_result eng_exec_memory(const zero_ctx *z, struct base_device_memory *memory,
                            struct base_error *error)
{
    const struct eng_config *config = &z->config;
    struct base_error inner = {0};
    *memory = (struct base_device_memory){0};
    const struct base_device *ops = find(config, error);
    if (!ops)
        return ZERO_E_UNSUPPORTED;
    zero_result r = ops->enter(config->device_number, &inner);
    if (!r) {
        r = ops->memory(memory, &inner);
        ops->leave();
    }
    return r ? zero_fail(error, r, "device=%s: %s", config->device, inner.message) : ZERO_OK;
}

static void destroy_events(const struct eng_device *d, void **events, size_t count)
{
    for (size_t i = 0; events && i < count; i++)
        d->ops->event_destroy(events[i]);
}

void device_close(zero_ctx *z)
{
    struct eng_device *d = z->device;
    if (d->own && !d->ops->enter(d->number, NULL)) {
        for (size_t u = 0; d->read && u < z->layout.unit_count; u++)
            d->ops->event_sync(d->read[u], NULL);
        for (size_t u = 0; d->lent && u < z->layout.unit_count; u++)
            d->ops->event_sync(d->lent[u], NULL);
        for (int i = 0; d->taken && i < z->placement.grads.slot_count; i++)
            d->ops->event_sync(d->taken[i], NULL);
        d->ops->event_sync(d->shown, NULL);
        d->ops->event_sync(d->valued, NULL);
        d->ops->stream_sync(d->own, NULL);
        device_state_free(z);
        if (d->kernels)
            d->kernels->close(d->kernel_state);
        d->ops->event_destroy(d->shown);
        d->ops->event_destroy(d->valued);
        d->ops->event_destroy(d->handed);
        destroy_events(d, d->read, z->layout.unit_count);
        destroy_events(d, d->lent, z->layout.unit_count);
        destroy_events(d, d->copied, (size_t)z->placement.gather.slot_count);
        destroy_events(d, d->taken, (size_t)z->placement.grads.slot_count);
        d->ops->free(d->params);
        d->ops->free(d->grads);
        for (int i = 0; i < DEVICE_PINS; i++)
            d->ops->unpin(d->pinned[i]);
        d->ops->stream_destroy(d->down);
        d->ops->stream_destroy(d->up);
        d->ops->stream_destroy(d->own);
        d->ops->leave();
    }
    base_tables_free(&d->tables);
    base_free(d->values);
    base_free(d->state);
    base_free(d);
    z->device = NULL;
}

static void lay_tables(const zero_ctx *z, const struct eng_placement *p, struct eng_device *d)
{
    d->buckets = base_tables_add(&d->tables, z->layout.bucket_count, sizeof *d->buckets);
    d->read = base_tables_add(&d->tables, z->layout.unit_count, sizeof *d->read);
    d->lent = base_tables_add(&d->tables, z->layout.unit_count, sizeof *d->lent);
    d->copied = base_tables_add(&d->tables, (size_t)p->gather.slot_count, sizeof *d->copied);
    d->taken = base_tables_add(&d->tables, (size_t)p->grads.slot_count, sizeof *d->taken);
}

size_t device_tables_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    struct eng_device counted = {.tables.counts = true};
    lay_tables(z, placement, &counted);
    return sizeof counted + counted.tables.bytes + DEVICE_VALUES_BYTES;
}

static zero_result make_events(const struct eng_device *d, void **events, size_t count,
                               struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < count; i++)
        r = d->ops->event_create(&events[i], error);
    return r;
}

static zero_result make_tables(const zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    const size_t buckets = z->layout.bucket_count;
    lay_tables(z, &z->placement, d);
    d->values = base_aligned_alloc(DEVICE_VALUES_BYTES, DEVICE_VALUES_BYTES);
    if (d->tables.failed || !d->values)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the device's tables of %zu buckets",
                         buckets);
    for (size_t s = 0; s < buckets; s++) {
        d->buckets[s] = d->params_bytes;
        d->params_bytes += device_bucket_bytes(&z->layout.buckets[s]);
    }
    return ZERO_OK;
}

/** Memory of the host that copies go to and come from. */
static zero_result pin(const zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    const struct eng_placement *p = &z->placement;
    void *const memory[DEVICE_PINS] = {d->values, z->memory.params, z->memory.slots,
                                       z->memory.grads};
    const size_t bytes[DEVICE_PINS] = {DEVICE_VALUES_BYTES, p->params_bytes, p->gather.bytes,
                                       p->grads.bytes};
    const int count = z->config.resident ? 1 : DEVICE_PINS;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < count; i++) {
        if (bytes[i] > 0)
            r = d->ops->pin(memory[i], bytes[i], error);
        if (!r && bytes[i] > 0)
            d->pinned[i] = memory[i];
    }
    return r;
}

/** What computes there: all of a step, or, of state of the host, what has to be added up before it
 * leaves. */
static zero_result make_kernels(const zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    struct base_error inner = {0};
    if (!z->config.resident && !eng_local_adds(z))
        return ZERO_OK;
    d->kernels = base_device_kernels_find(d->ops->name);
    const zero_result r = d->kernels->open(&d->kernel_state, &inner);
    return r ? zero_fail(error, r, "%s%s",
                         z->config.resident ? "" : "reduction=local: ", inner.message)
             : ZERO_OK;
}

/** Working copies and gradients of the device's own, where the engine's are the host's. */
static zero_result make_copies(const zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    void *params = NULL, *grads = NULL;
    zero_result r = d->ops->stream_create(&d->down, false, error);
    if (!r)
        r = d->ops->stream_create(&d->up, false, error);
    if (!r)
        r = d->ops->alloc(&params, d->params_bytes, error);
    d->params = params;
    if (!r)
        r = d->ops->alloc(&grads, z->placement.grads.bytes, error);
    d->grads = grads;
    return r;
}

static zero_result make(zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    zero_result r = d->ops->stream_create(&d->own, z->config.resident, error);
    d->stream = d->own; // of the rest of this call
    if (!r)
        r = make_kernels(z, d, error);
    if (!r)
        r = make_tables(z, d, error);
    if (!r)
        r = d->ops->event_create(&d->shown, error);
    if (!r)
        r = d->ops->event_create(&d->valued, error);
    if (!r)
        r = d->ops->event_create(&d->handed, error);
    if (!r)
        r = make_events(d, d->read, z->layout.unit_count, error);
    if (!r)
        r = make_events(d, d->lent, z->layout.unit_count, error);
    if (!r)
        r = make_events(d, d->copied, (size_t)z->placement.gather.slot_count, error);
    if (!r)
        r = make_events(d, d->taken, (size_t)z->placement.grads.slot_count, error);
    if (!r)
        r = z->config.resident ? device_state_make(z, error) : make_copies(z, d, error);
    return r ? r : pin(z, d, error);
}

zero_result device_exec_make(zero_ctx *z, struct base_error *error)
{
    struct base_error inner = {0};
    if (!make(z, z->device, &inner))
        return ZERO_OK;
    return zero_fail(error, inner.result, "device=%s: %s", z->config.device, inner.message);
}

/* ------------------------------------------------------------------ calls */

zero_result device_enter(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    d->stream = d->own;
    d->entered = !d->ops->enter(d->number, &error);
    return d->entered ? ZERO_OK : eng_fail_from(z, &error);
}

void device_leave(zero_ctx *z)
{
    if (z->device->entered)
        z->device->ops->leave();
    z->device->entered = false;
}

zero_result device_take_stream(zero_ctx *z, zero_stream stream)
{
    z->device->stream = stream;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ what executors share */

zero_result device_released(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    // Behind what other streams have queued with it, too.
    zero_result r = d->ops->event_wait(d->read[unit], d->stream, &error);
    if (!r)
        r = d->ops->event_record(d->read[unit], d->stream, &error);
    return r ? device_failed(z, &error, "releasing a unit") : ZERO_OK;
}

bool eng_device_waits(const zero_ctx *z, zero_unit unit)
{
    return z->device && z->device->waiting == unit;
}

zero_result device_value(zero_ctx *z, float *to, const float *from)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    zero_result r = d->ops->copy(to, from, sizeof *to, d->stream, &error);
    if (!r)
        r = d->ops->event_wait(d->valued, d->stream, &error); // those before, of other streams
    if (!r)
        r = d->ops->event_record(d->valued, d->stream, &error);
    return r ? device_failed(z, &error, "copying a metric from it") : ZERO_OK;
}

zero_result device_metric_fetch(zero_ctx *z, int metric, const float *value)
{
    struct eng_device *d = z->device;
    assert(d->value_count < ENG_MAX_METRICS);
    d->metrics[d->value_count] = metric;
    return device_value(z, &d->values[d->value_count++], value);
}

zero_result device_metric_values(zero_ctx *z)
{
    struct eng_device *d = z->device;
    if (d->value_count == 0)
        return ZERO_OK;
    const zero_result r = device_await(z, d->valued, "waiting for metrics");
    if (r)
        return r;
    for (int i = 0; i < d->value_count; i++)
        z->stepping.hooks->value(z, d->metrics[i], (double)d->values[i]);
    d->value_count = 0;
    return ZERO_OK;
}
