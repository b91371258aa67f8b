// reduction=local: gradients are added up on the device, in the unit's own slot, as
// zero/exec/local_accumulation.c does it, by the streams of the program that hand them over. So a
// buffer beside it is free again without waiting for anything that travels, to other ranks or to
// the host.

#include "zero/core/exec_table.h"
#include "zero/exec/device_parts.h"

static zero_result add_sections(const zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit_layout *layout = &z->layout.units[unit];
    unsigned char *grads = z->exec->grads(z);
    unsigned char *sums = grads + z->gradients.slots[z->units[unit].sum_slot].offset;
    const unsigned char *values = grads + z->gradients.slots[z->units[unit].grad_slot].offset;
    zero_result r = ZERO_OK;
    for (size_t s = layout->first_section; !r && s < layout->first_section + layout->section_count;
         s++) {
        const size_t at = z->placement.sections[s].grad_offset;
        const struct eng_device_addition addition = {
            .to = sums + at,
            .from = values + at,
            .dtype = z->layout.sections[s].grad_dtype,
            .count = z->layout.sections[s].granules * ENG_GRANULE,
        };
        if (z->io[s].trains)
            r = d->kernels->add(d->kernel_state, &addition, d->stream, error);
    }
    return r;
}

zero_result device_local_add(const zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit *u = &z->units[unit];
    if (u->grad_slot == u->sum_slot)
        return ZERO_OK;
    zero_result r = d->ops->event_wait(d->taken[u->sum_slot], d->stream, error);
    if (!r)
        r = add_sections(z, unit, error);
    return r ? r : d->ops->event_record(d->taken[u->grad_slot], d->stream, error);
}

zero_result device_local_search(const zero_ctx *z, zero_unit unit, const unsigned char *gradient,
                                void *stream, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const struct eng_unit_layout *u = &z->layout.units[unit];
    uint64_t *bad = device_piece(d, DEVICE_BAD);
    zero_result r = ZERO_OK;
    for (size_t s = u->first_section; !r && s < u->first_section + u->section_count; s++) {
        const struct eng_section_place *place = &z->placement.sections[s];
        const struct eng_device_search search = {
            .values = gradient + place->comm_offset,
            .dtype = place->comm_dtype,
            .count = z->layout.sections[s].granules * ENG_GRANULE,
            .number =
                (uint64_t)z->micro.index * (uint64_t)z->config.world + (uint64_t)z->config.rank,
            .bad = bad + s,
        };
        if (z->io[s].trains)
            r = d->kernels->search(d->kernel_state, &search, stream, error);
    }
    return r;
}
