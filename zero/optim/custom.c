// Optimizers that a program brings: its callbacks behind our ops table.
#include "zero/optim/optim.h"

#include <assert.h>
#include <math.h>

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    const zero_optimizer_desc *own = choice->own;
    char message[256] = "its check gives no reason";
    if (!own->check || own->check(own->user, hyper, message, sizeof message) == ZERO_OK)
        return ZERO_OK;
    message[sizeof message - 1] = '\0';
    return zero_fail(error, ZERO_E_INVALID, "%s: %s", own->name, message);
}

static void prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                    double gradient_scale, union eng_scalars *scalars)
{
    assert(updates > 0);
    choice->own->prepare(choice->own->user, hyper, updates, gradient_scale, scalars->own);
}

/** Whether a value is not finite, or large. */
static bool is_large(const float *x, size_t count)
{
    bool large = false;
    for (size_t i = 0; x && i < count; i++)
        large = large || !(fabsf(x[i]) <= BASE_ALARM);
    return large;
}

/** Raises the alarm: where a working copy is f16 each time, for its numbers are few. */
static void look(const struct base_update *run)
{
    bool large = run->work_dtype == ZERO_F16 || is_large(run->weight, run->count);
    for (int k = 0; k < BASE_MAX_MOMENTS; k++)
        large = large || is_large(run->moment[k], run->count);
    if (run->alarm && large)
        *run->alarm = true;
}

/** A granule at a time, so that its weights are in cache when the working copy is made. */
static void update(const struct eng_choice *choice, const struct base_kernels *kernels,
                   const union eng_scalars *scalars, const struct base_update *run)
{
    const zero_optimizer_desc *own = choice->own;
    struct base_fp_state its;
    assert(own->moments <= BASE_MAX_MOMENTS);
    for (size_t i = 0; i < run->count; i += BASE_GRANULE) {
        const size_t left = run->count - i, count = left < BASE_GRANULE ? left : BASE_GRANULE;
        zero_optimizer_run part = {
            .struct_size = sizeof part,
            .count = count,
            .gradient = run->gradient + i,
            .weight = run->weight + i,
        };
        for (int k = 0; k < own->moments; k++)
            part.moment[k] = run->moment[k] + i;
        own->update(own->user, scalars->own, &part);
        base_fp_enter(&its); // whatever it has set
        if (run->work && run->work_dtype == ZERO_F16)
            kernels->to_f16(count, run->weight + i, run->work + i);
        else if (run->work)
            kernels->to_bf16(count, run->weight + i, run->work + i);
    }
    look(run);
}

struct eng_optimizer eng_optimizer_own(const zero_optimizer_desc *desc)
{
    assert(desc->moments >= 0 && desc->moments <= BASE_MAX_MOMENTS);
    return (struct eng_optimizer){
        .size = sizeof(struct eng_optimizer),
        .name = desc->name,
        .moments = desc->moments,
        .own = desc,
        .check = check,
        .prepare = prepare,
        .update = update,
    };
}
