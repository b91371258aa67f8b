// reduction=local: a rank adds its micro-batches up in the unit's own gradient slot, in the
// gradient's dtype; the sum travels in the last one.

#include "zero/exec/local_accumulation.h"
#include "zero/core/progress.h"
#include "zero/exec/executors.h"

bool eng_local_adds(const zero_ctx *z)
{
    struct eng_config planned = z->config;
    planned.micro_batches = z->micro.planned;
    return planned.local && eng_config_rounds(&planned) + planned.verify_micro > 1;
}

bool eng_grad_begins_sum(const zero_ctx *z)
{
    return !z->config.local || z->micro.index == 0;
}

bool eng_grad_ends_sum(const zero_ctx *z)
{
    return !eng_micro_repeats(z) && (!z->config.local || z->micro.index == z->micro.count - 1);
}

bool eng_local_spare(const zero_ctx *z, zero_unit unit)
{
    const struct eng_unit *u = &z->units[unit];
    return z->config.local && !eng_micro_repeats(z) && u->grad_slot != u->sum_slot;
}

int eng_local_slot(const zero_ctx *z, zero_unit unit, bool raw)
{
    const struct eng_unit *u = &z->units[unit];
    if (eng_grad_begins_sum(z) || !(raw || eng_micro_repeats(z)))
        return u->sum_slot;
    const struct eng_slot_class *class =
        &z->placement.grads.classes[z->placement.grads.class_of_unit[unit]];
    for (int i = class->first_slot; i < class->first_slot + class->slots; i++)
        if (!z->gradients.slots[i].open && z->gradients.slots[i].unit < 0)
            return i;
    return -1;
}

static void add_f32(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

/** bf16 or f16, each sum rounded to nearest even. */
static void add_narrow(const struct base_kernels *kernels, zero_dtype dtype, uint16_t *to,
                       const uint16_t *from, size_t count)
{
    float sum[BASE_GRANULE], values[BASE_GRANULE];
    for (size_t i = 0; i < count; i += BASE_GRANULE) {
        const size_t n = count - i < BASE_GRANULE ? count - i : BASE_GRANULE;
        eng_widen(kernels, dtype, to + i, n, sum);
        eng_widen(kernels, dtype, from + i, n, values);
        add_f32(sum, values, n);
        eng_narrow(kernels, dtype, sum, n, to + i);
    }
}

void eng_local_sum(const struct base_kernels *kernels, zero_dtype dtype, void *to, const void *from,
                   size_t count)
{
    if (dtype == ZERO_F32)
        add_f32(to, from, count);
    else
        add_narrow(kernels, dtype, to, from, count);
}

zero_result eng_local_add(const zero_ctx *z, zero_unit unit, struct base_error *error)
{
    const struct eng_unit *u = &z->units[unit];
    const struct eng_unit_layout *layout = &z->layout.units[unit];
    if (!eng_local_spare(z, unit))
        return ZERO_OK;
    unsigned char *grads = z->exec->grads(z);
    zero_result r = ZERO_OK;
    for (size_t s = layout->first_bucket; !r && s < layout->first_bucket + layout->bucket_count;
         s++) {
        const size_t at = z->placement.buckets[s].grad_offset;
        const struct base_device_addition addition = {
            .to = grads + z->gradients.slots[u->sum_slot].offset + at,
            .from = grads + z->gradients.slots[u->grad_slot].offset + at,
            .dtype = z->layout.buckets[s].grad_dtype,
            .count = z->layout.buckets[s].granules * BASE_GRANULE,
        };
        if (z->io[s].trains)
            r = z->exec->add(z, &addition, error);
    }
    return r;
}
