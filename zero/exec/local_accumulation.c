// reduction=local: a rank adds its micro-batches up in the unit's own gradient slot, in the
// gradient's dtype; the sum travels in the last one.

#include "zero/exec/local_accumulation.h"
#include "zero/core/context.h"

bool eng_local_adds(const zero_ctx *z)
{
    struct eng_config planned = z->config;
    planned.micro_batches = z->micro.planned;
    return planned.local && eng_config_rounds(&planned) + planned.verify_micro > 1;
}

int eng_local_slot(const zero_ctx *z, zero_unit unit, bool raw)
{
    const struct eng_unit *u = &z->units[unit];
    if (z->micro.index == 0 || !raw)
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
static void add_narrow(const struct eng_kernels *kernels, zero_dtype dtype, uint16_t *to,
                       const uint16_t *from, size_t count)
{
    float sum[ENG_GRANULE], values[ENG_GRANULE];
    for (size_t i = 0; i < count; i += ENG_GRANULE) {
        const size_t n = count - i < ENG_GRANULE ? count - i : ENG_GRANULE;
        eng_widen(kernels, dtype, to + i, n, sum);
        eng_widen(kernels, dtype, from + i, n, values);
        add_f32(sum, values, n);
        eng_narrow(kernels, dtype, sum, n, to + i);
    }
}

void eng_local_sum(const struct eng_kernels *kernels, zero_dtype dtype, void *to, const void *from,
                   size_t count)
{
    if (dtype == ZERO_F32)
        add_f32(to, from, count);
    else
        add_narrow(kernels, dtype, to, from, count);
}

void eng_local_add(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit *u = &z->units[unit];
    if (u->grad_slot == u->sum_slot)
        return;
    const struct eng_unit_layout *layout = &z->layout.units[unit];
    unsigned char *sums = z->memory.grads + z->gradients.slots[u->sum_slot].offset;
    const unsigned char *values = z->memory.grads + z->gradients.slots[u->grad_slot].offset;
    for (size_t s = layout->first_section; s < layout->first_section + layout->section_count; s++) {
        if (z->layout.sections[s].frozen)
            continue;
        const size_t at = z->placement.sections[s].grad_offset;
        const size_t count = z->layout.sections[s].granules * ENG_GRANULE;
        eng_local_sum(z->cpu.kernels, z->layout.sections[s].grad_dtype, sums + at, values + at,
                      count);
    }
}
