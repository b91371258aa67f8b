// The program computes on a device, while what the engine keeps is in memory of the host: what is
// gathered is copied to a working copy that every unit has on the device, once after each update,
// and gradients are copied from there. Both are streams' of their own, beside what the program
// computes; its streams wait for what they need, and nobody else does, but for memory of the host
// that is about to be written over, and for a gradient before it travels: by then the next unit's
// is computed. With reduction=local it is a sum (device_local.c) that is copied, once a step. Where
// state is on the device there are no copies: working copies and gradients are the engine's own.

#include "zero/core/api_call.h"
#include "zero/debug/verify_micro.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/local_accumulation.h"
#include "zero/link/publish.h"
#include "zero/step/step_outcome.h"
#include "zero/store/host_memory.h"

#include "base/arena.h"

#include <sched.h>

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

zero_result eng_device_memory(const zero_ctx *z, struct base_device_memory *memory,
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
    base_free(events);
}

void eng_device_close(zero_ctx *z)
{
    struct eng_device *d = z->device;
    if (!d)
        return;
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
    base_free(d->sections);
    base_free(d->values);
    base_free(d->state);
    base_free(d);
    z->device = NULL;
}

static zero_result make_events(const struct eng_device *d, void ***events, size_t count,
                               struct base_error *error)
{
    *events = base_calloc(count, sizeof **events);
    if (!*events)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu events", count);
    zero_result r = ZERO_OK;
    for (size_t i = 0; !r && i < count; i++)
        r = d->ops->event_create(&(*events)[i], error);
    return r;
}

static size_t section_bytes(const struct eng_section *section)
{
    return section->granules * ENG_GRANULE * eng_dtype_size(section->dtype);
}

size_t eng_device_params(const struct eng_layout *layout)
{
    size_t bytes = 0;
    for (size_t s = 0; s < layout->section_count; s++)
        bytes += section_bytes(&layout->sections[s]);
    return bytes;
}

static zero_result make_tables(const zero_ctx *z, struct eng_device *d, struct base_error *error)
{
    const size_t sections = z->layout.section_count;
    d->sections = base_calloc(sections, sizeof *d->sections);
    d->values = base_aligned_alloc(DEVICE_VALUES_BYTES, DEVICE_VALUES_BYTES);
    if (!d->sections || !d->values)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the device's table of %zu sections",
                         sections);
    for (size_t s = 0; s < sections; s++) {
        d->sections[s] = d->params_bytes;
        d->params_bytes += section_bytes(&z->layout.sections[s]);
    }
    return ZERO_OK;
}

size_t eng_device_tables(const zero_ctx *z, const struct eng_placement *placement)
{
    if (!z->config.on_device)
        return 0;
    return z->layout.section_count * sizeof(size_t) + DEVICE_VALUES_BYTES +
           sizeof(struct eng_device) + eng_device_state_host(z, placement) +
           (2 * z->layout.unit_count + (size_t)placement->gather.slot_count +
            (size_t)placement->grads.slot_count) *
               sizeof(void *);
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
    d->kernels = eng_device_kernels_find(d->ops->name);
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
        r = make_events(d, &d->read, z->layout.unit_count, error);
    if (!r)
        r = make_events(d, &d->lent, z->layout.unit_count, error);
    if (!r)
        r = make_events(d, &d->copied, (size_t)z->placement.gather.slot_count, error);
    if (!r)
        r = make_events(d, &d->taken, (size_t)z->placement.grads.slot_count, error);
    if (!r)
        r = z->config.resident ? device_state_make(z, error) : make_copies(z, d, error);
    return r ? r : pin(z, d, error);
}

zero_result eng_device_make(zero_ctx *z, struct base_error *error)
{
    struct base_error inner = {0};
    if (!z->device || !make(z, z->device, &inner))
        return ZERO_OK;
    return zero_fail(error, inner.result, "device=%s: %s", z->config.device, inner.message);
}

/* ------------------------------------------------------------------ calls */

zero_result eng_device_enter(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    d->stream = d->own;
    d->entered = !d->ops->enter(d->number, &error);
    return d->entered ? ZERO_OK : eng_fail_from(z, &error);
}

void eng_device_leave(zero_ctx *z)
{
    if (z->device->entered)
        z->device->ops->leave();
    z->device->entered = false;
}

void eng_device_take_stream(zero_ctx *z, zero_stream stream)
{
    z->device->stream = stream;
}

zero_result device_tell(const zero_ctx *z, const struct base_error *inner, const char *what,
                        struct base_error *error)
{
    return zero_fail(error, inner->result, "device %s %d, %s: %s", z->device->ops->name,
                     z->device->number, what, inner->message);
}

zero_result device_failed(zero_ctx *z, const struct base_error *inner, const char *what)
{
    struct base_error error = {0};
    device_tell(z, inner, what, &error);
    return eng_fail_from(z, &error);
}

zero_result device_await(zero_ctx *z, void *event, const char *what)
{
    struct base_error error = {0};
    zero_result r;
    while ((r = z->device->ops->event_query(event, &error)) == ZERO_AGAIN) {
        const zero_result progress = coll_progress(z->comm);
        if (progress)
            return eng_comm_failed(z, progress);
        sched_yield();
    }
    return r ? device_failed(z, &error, what) : ZERO_OK;
}

/* ------------------------------------------------------------------ parameters */

/** Copies a section's working copy to the device, in a stream, if that has another version. Its
 * bytes lie together. */
static zero_result show_section(zero_ctx *z, size_t s, uint64_t version, void *stream,
                                struct base_error *error)
{
    struct eng_device *d = z->device;
    const struct eng_section *section = &z->layout.sections[s];
    const struct eng_section_place *place = &z->placement.sections[s];
    const int slot = z->units[section->unit].slot;
    const unsigned char *from = z->memory.params + place->home;
    if (z->io[s].lent >= version) // of a fused step the next one is there early
        return ZERO_OK;
    if (place->residence == ENG_SHARDED)
        from = z->memory.slots + z->gathers.slots[slot].offset + place->slot_offset;
    // What the program has queued with the values before, by whatever stream, and older copies.
    zero_result r = d->ops->event_wait(d->read[section->unit], stream, error);
    if (!r)
        r = d->ops->event_wait(d->lent[section->unit], stream, error);
    if (!r)
        r = d->ops->copy(d->params + d->sections[s], from, section_bytes(section), stream, error);
    if (!r && place->residence == ENG_SHARDED)
        r = d->ops->event_record(d->copied[slot], stream, error);
    if (!r)
        r = d->ops->event_record(d->lent[section->unit], stream, error);
    if (!r)
        z->io[s].lent = version;
    return r;
}

/** The same of what is current here without a gather of its own. */
static zero_result show_ahead(zero_ctx *z, size_t s, struct base_error *error)
{
    if (z->placement.sections[s].residence == ENG_SHARDED || !eng_publish_ended(z, s))
        return ZERO_OK;
    return show_section(z, s, z->io[s].version, z->device->up, error);
}

/** The stream waits until the unit's working copy is current, or (-1) what persists is. */
static zero_result wait_shown(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    zero_result r = d->ops->event_wait(device_updated(z, unit), d->stream, &error);
    if (!r && d->state->peers)
        r = unit < 0 ? device_arrived_persistent(z, &error) : device_arrived(z, unit, &error);
    return r ? device_failed(z, &error, "waiting for parameters") : ZERO_OK;
}

zero_result eng_device_show(zero_ctx *z, zero_unit unit)
{
    struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    const size_t end = u->first_section + u->section_count;
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (d->state)
        return wait_shown(z, unit);
    for (size_t s = u->first_section; !r && s < end; s++)
        r = show_section(z, s, z->io[s].version, d->up, &error);
    if (!r)
        r = d->ops->event_wait(d->lent[unit], d->stream, &error);
    // Forward passes go up.
    for (size_t s = end; !r && s < z->layout.section_count && s < end + u[1].section_count; s++)
        r = show_ahead(z, s, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

zero_result eng_device_renew(zero_ctx *z)
{
    struct eng_device *d = z->device;
    struct base_error error = {0};
    bool shows = false;
    zero_result r = ZERO_OK;
    if (d->state)
        return wait_shown(z, -1);
    for (size_t s = 0; !r && s < z->layout.section_count; s++) {
        if (!z->layout.sections[s].persistent)
            continue;
        shows = shows || z->io[s].lent != z->io[s].version;
        r = show_section(z, s, z->io[s].version, d->stream, &error);
    }
    // What has just been sent may be here, where nobody has looked yet.
    const zero_result progress = r ? ZERO_OK : coll_progress(z->comm);
    if (progress)
        return eng_comm_failed(z, progress);
    for (size_t s = 0; !r && s < z->layout.section_count; s++)
        r = show_ahead(z, s, &error);
    // Who gave no stream cannot order what comes next behind it.
    if (!r && shows && d->stream == d->own)
        r = d->ops->stream_sync(d->own, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

zero_result eng_device_renew_early(zero_ctx *z, size_t section)
{
    struct base_error error = {0};
    if (z->placement.sections[section].residence == ENG_SHARDED)
        return ZERO_OK;
    // zero_step() will make these values the next version.
    const zero_result r =
        show_section(z, section, z->publication.version + 1, z->device->up, &error);
    return r ? device_failed(z, &error, "copying parameters to it") : ZERO_OK;
}

zero_result eng_device_join(zero_ctx *z)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    const zero_result r = d->ops->event_record(d->handed, d->stream, &error);
    return r ? device_failed(z, &error, "waiting for parameters")
             : device_await(z, d->handed, "waiting for parameters");
}

zero_result eng_device_released(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    // Behind what other streams have queued with it, too.
    zero_result r = d->ops->event_wait(d->read[unit], d->stream, &error);
    if (!r)
        r = d->ops->event_record(d->read[unit], d->stream, &error);
    if (!r && d->state && z->units[unit].slot >= 0)
        r = d->ops->event_record(d->copied[z->units[unit].slot], d->stream, &error);
    return r ? device_failed(z, &error, "releasing a unit") : ZERO_OK;
}

zero_result eng_device_settle(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    for (size_t u = 0; !r && !z->device->state && u < z->layout.unit_count; u++)
        r = device_await(z, z->device->lent[u], "waiting for parameters");
    return r;
}

zero_result eng_device_settle_slot(zero_ctx *z, int slot)
{
    if (z->device->state)
        return ZERO_OK;
    return device_await(z, z->device->copied[slot], "waiting for parameters");
}

const void *eng_device_param(const zero_ctx *z, const struct eng_slice *slice)
{
    const size_t size = eng_dtype_size(z->layout.sections[slice->section].dtype);
    if (z->device->state) {
        const void *gathered = eng_gathered(z, slice);
        return gathered || !z->fatal ? gathered : z->memory.slots; // large enough for any unit
    }
    return z->device->params + z->device->sections[slice->section] +
           slice->granule * ENG_GRANULE * size;
}

/* ------------------------------------------------------------------ gradients */

unsigned char *eng_device_grads(const zero_ctx *z)
{
    return z->device->state ? z->memory.grads : z->device->grads;
}

zero_result eng_device_claim(zero_ctx *z, zero_unit unit, bool keeps)
{
    const struct eng_device *d = z->device;
    const int slot = z->units[unit].grad_slot;
    unsigned char *gradient = d->grads + z->gradients.slots[slot].offset;
    struct base_error error = {0};
    zero_result r = d->ops->event_wait(d->taken[slot], d->stream, &error);
    if (!r && !keeps)
        r = d->ops->zero(gradient, z->placement.units[unit].grad_bytes, d->stream, &error);
    return r ? device_failed(z, &error, "clearing a gradient") : ZERO_OK;
}

/** The slot whose gradient goes to the host: what is computed again is only looked at, and else it
 * is the one that is reduced. */
static int leaving(const zero_ctx *z, zero_unit unit)
{
    return eng_verifying(z) ? z->units[unit].grad_slot : z->units[unit].sum_slot;
}

/** Begins to copy a slot to the host. */
static zero_result bring_down(zero_ctx *z, zero_unit unit, int slot, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t offset = z->gradients.slots[slot].offset;
    zero_result r = d->ops->event_record(d->handed, d->stream, error);
    if (!r)
        r = d->ops->event_wait(d->handed, d->down, error);
    // Once it is there the unit may be updated: nobody copies its parameters any more then.
    if (!r)
        r = d->ops->event_wait(d->lent[unit], d->down, error);
    if (!r)
        r = d->ops->copy(z->memory.grads + offset, d->grads + offset,
                         z->placement.units[unit].grad_bytes, d->down, error);
    return r ? r : d->ops->event_record(d->taken[slot], d->down, error);
}

zero_result eng_device_take(zero_ctx *z, zero_unit unit)
{
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (z->config.local && !eng_verifying(z))
        r = device_local_add(z, unit, &error);
    if (!r)
        r = bring_down(z, unit, leaving(z, unit), &error);
    return r ? device_failed(z, &error, "copying a gradient from it") : ZERO_OK;
}

zero_result eng_device_keep(zero_ctx *z, zero_unit unit)
{
    const struct eng_device *d = z->device;
    struct base_error error = {0};
    zero_result r = device_local_add(z, unit, &error);
    if (!r)
        r = d->ops->event_record(d->taken[z->units[unit].sum_slot], d->stream, &error);
    return r ? device_failed(z, &error, "adding a gradient up") : ZERO_OK;
}

zero_unit eng_device_waiting(zero_ctx *z, zero_unit next)
{
    const zero_unit unit = z->device->waiting;
    z->device->waiting = next;
    return unit;
}

bool eng_device_waits(const zero_ctx *z, zero_unit unit)
{
    return z->device && z->device->waiting == unit;
}

zero_result eng_device_await(zero_ctx *z, zero_unit unit)
{
    return device_await(z, z->device->taken[leaving(z, unit)], "waiting for a gradient");
}

/* ------------------------------------------------------------------ metrics */

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

zero_result eng_device_value(zero_ctx *z, int metric, const float *value)
{
    struct eng_device *d = z->device;
    if (d->state && !z->evaluation.active)
        return device_step_value(z, metric, value);
    d->metrics[d->value_count] = metric;
    return device_value(z, &d->values[d->value_count++], value);
}

zero_result eng_device_values(zero_ctx *z)
{
    struct eng_device *d = z->device;
    if (d->value_count == 0)
        return ZERO_OK;
    const zero_result r = device_await(z, d->valued, "waiting for metrics");
    if (r)
        return r;
    for (int i = 0; i < d->value_count; i++)
        eng_metric_set(z, d->metrics[i], (double)d->values[i]);
    d->value_count = 0;
    return ZERO_OK;
}
