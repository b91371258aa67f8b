#include "tests/numerics/own_state.h"

#include "zero/core/addresses.h"
#include "zero/core/context.h"

static struct own_element read_element(const zero_ctx *z, const struct eng_slice *slice, size_t e)
{
    const zero_dtype dtype = z->config.moment_dtype;
    const size_t at = slice->granule * BASE_GRANULE + e;
    struct own_element own = {(zero_param)slice->param, (int32_t)slice->index, e, 0, {0}};
    size_t size;
    const void *weight = eng_best_weights(z, slice->bucket, at, &size);
    const zero_dtype stored = z->layout.buckets[slice->bucket].dtype;
    eng_widen(z->cpu.kernels, size == sizeof(float) ? ZERO_F32 : stored, weight, 1, &own.weight);
    for (int k = 0; k < z->layout.buckets[slice->bucket].moments; k++)
        eng_widen(z->cpu.kernels, dtype, eng_moments(z, k, slice->bucket, at), 1, &own.moment[k]);
    return own;
}

bool own_state_each(const zero_ctx *z, bool (*good)(void *user, const struct own_element *element),
                    void *user)
{
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_bucket_place *place = &z->placement.buckets[slice->bucket];
        for (size_t e = 0; e < slice->numel; e++) {
            const size_t granule = slice->granule + e / BASE_GRANULE;
            if (granule < place->state_first ||
                granule >= place->state_first + place->state_granules)
                continue;
            const struct own_element own = read_element(z, slice, e);
            if (!good(user, &own))
                return false;
        }
    }
    return true;
}
