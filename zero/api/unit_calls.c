// Several calls of a unit in one: what is gathered or opened, and where it is; and working copies
// in the caller's memory, all at once.

#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/progress.h"
#include "zero/core/telemetry.h"
#include "zero/exec/caller_memory.h"
#include "zero/link/publish.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

/** Where the array of all slices would begin if this one, which lies at `slice`, were in its place.
 * An address to count from: nothing lies there, so it is computed as a number. */
static void *base_of(const zero_ctx *z, zero_param param, int32_t index, const void *slice,
                     bool gradient)
{
    if (!slice)
        return NULL;
    const struct eng_param *p = &z->model.params[param];
    assert(index >= 0 && index < p->slice_count);
    const size_t size = eng_dtype_size(gradient ? p->grad_dtype : p->dtype);
    return (void *)((uintptr_t)slice - (size_t)index * p->slice_numel * size);
}

const void *zero_param_base(zero_ctx *z, zero_param param, int32_t slice)
{
    return base_of(z, param, slice, zero_param_ptr(z, param, slice), false);
}

void *zero_grad_base(zero_ctx *z, zero_param param, int32_t slice)
{
    return base_of(z, param, slice, zero_grad_ptr(z, param, slice), true);
}

/** Whether every tensor of the unit was registered frozen. */
static bool is_frozen(const zero_ctx *z, zero_unit unit)
{
    return z->placement.grads.class_of_unit[unit] < 0;
}

static bool exists(const zero_ctx *z, zero_unit unit)
{
    return z->call.committed && unit >= 0 && (size_t)unit < z->layout.unit_count;
}

/** Writes the unit's pointers into the program's arrays, whose element type is its own affair. */
static void give(zero_ctx *z, zero_unit unit, void *params, void *grads)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const zero_param param = z->layout.slices[i].param;
        const int32_t index = z->layout.slices[i].index;
        const size_t at = (size_t)param * sizeof(void *);
        const void *weight = zero_param_base(z, param, index);
        void *gradient = zero_grad_base(z, param, index);
        if (params)
            memcpy((unsigned char *)params + at, &weight, sizeof weight);
        if (grads)
            memcpy((unsigned char *)grads + at, &gradient, sizeof gradient);
    }
}

static zero_result refuse(zero_ctx *z, zero_result result, const char *message)
{
    const zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_unit_ptrs");
    return eng_leave(z, r ? r : eng_fail(z, result, "%s", message));
}

zero_result zero_unit_ptrs(zero_ctx *z, zero_unit unit, void *params, void *grads,
                           zero_stream stream)
{
    if (!z)
        return ZERO_E_INVALID;
    if (!params && !grads)
        return refuse(z, ZERO_E_INVALID,
                      "zero_unit_ptrs without an array for parameters or for gradients");
    zero_result r = params ? zero_gather(z, unit, stream) : ZERO_OK;
    if (!r && grads && !(exists(z, unit) && is_frozen(z, unit))) {
        r = zero_grad_open(z, unit, stream);
        if (r && params && !z->fatal) {
            const struct base_error why = z->error;
            zero_release(z, unit, stream);
            z->error = why;
        }
    }
    if (exists(z, unit))
        give(z, unit, params, grads);
    return r;
}

zero_result zero_unit_done(zero_ctx *z, zero_unit unit, zero_stream stream)
{
    if (!z)
        return ZERO_E_INVALID;
    const bool gathered = exists(z, unit) && z->units[unit].holds > 0;
    const bool open = exists(z, unit) && z->units[unit].grad_open;
    zero_result r = ZERO_OK;
    if (gathered || !open) // which says so if it is neither
        r = zero_release(z, unit, stream);
    return !r && open ? zero_grad_done(z, unit, stream) : r;
}

zero_result zero_refresh(zero_ctx *z)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_refresh");
    if (!r)
        r = eng_not_inside(z, "zero_refresh");
    const uint64_t begin = base_clock_ns();
    for (size_t u = 0; !r && z->model.borrows && u < z->layout.unit_count; u++) {
        r = eng_publish_wait(z, (zero_unit)u);
        if (!r)
            eng_borrow_unit(z, (zero_unit)u);
    }
    if (!r && z->model.borrows)
        eng_stretch(z, CONTROL_GATHER, -1, begin, &z->stats.gather_wait_s);
    return eng_leave(z, r);
}
