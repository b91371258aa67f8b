// Tensors that are not updated: their sections stay where they are, and where they share one with
// others, their gradients are zeros.

#include "zero/param/frozen.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"

#include <string.h>

void eng_frozen_refresh(zero_ctx *z)
{
    eng_trains_refresh(z);
    z->exec->stale(z);
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
