// Tensors that are not updated: their sections stay where they are, and where they share one with
// others, their gradients are zeros.

#include "zero/param/frozen.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/step/gradient.h"

#include <string.h>

bool eng_frozen(const zero_ctx *z, zero_param param)
{
    const struct eng_param *p = &z->model.params[param];
    return p->frozen || z->model.groups[p->group].frozen;
}

void eng_frozen_refresh(zero_ctx *z)
{
    for (size_t s = 0; s < z->layout.section_count; s++)
        z->io[s].trains = false;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].trains = false;
    eng_device_stale(z);
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (eng_frozen(z, slice->param))
            continue;
        z->io[slice->section].trains = true;
        z->units[z->layout.sections[slice->section].unit].trains = true;
    }
}

void eng_frozen_clear(zero_ctx *z, zero_unit unit, unsigned char *gradient)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (!z->io[slice->section].trains || !eng_frozen(z, slice->param))
            continue;
        const size_t size = eng_dtype_size(z->layout.sections[slice->section].grad_dtype);
        memset(gradient + z->placement.sections[slice->section].grad_offset +
                   slice->granule * ENG_GRANULE * size,
               0, slice->numel * size);
    }
}

static zero_result set_frozen(zero_ctx *z, zero_group group, bool frozen)
{
    if (group < 0 || (size_t)group >= z->model.group_count)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_set_frozen: group %d does not exist: there are %zu", group,
                        z->model.group_count);
    zero_result r = eng_between_steps(z, "zero_set_frozen");
    if (!r)
        r = eng_same(z, (uint64_t)group << 1 | frozen, "what zero_set_frozen is to do");
    if (r)
        return r;
    z->model.groups[group].frozen = frozen;
    eng_frozen_refresh(z);
    return ZERO_OK;
}

zero_result zero_set_frozen(zero_ctx *z, zero_group group, int32_t frozen)
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_set_frozen");
    if (!r)
        r = set_frozen(z, group, frozen != 0);
    return eng_leave(z, r);
}
