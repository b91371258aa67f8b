#include "zero/engine.h"

#include <string.h>

#define TILE ((size_t)4 * ENG_GRANULE)

/** Elements [*first, *end) of a slice in `granules` granules of its section from `granule` on. */
static void part_in(const struct eng_slice *slice, size_t granule, size_t granules, size_t *first,
                    size_t *end)
{
    const size_t begin = slice->granule * ENG_GRANULE;
    const size_t in = granule * ENG_GRANULE, in_end = in + granules * ENG_GRANULE;
    *first = in > begin ? in - begin : 0;
    *end = in_end > begin ? in_end - begin : 0;
    if (*first > slice->numel)
        *first = slice->numel;
    if (*end > slice->numel)
        *end = slice->numel;
}

zero_result eng_values_read(zero_ctx *z, eng_source_fn source, void *user, struct base_error *error)
{
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_section_place *place = &z->placement.sections[slice->section];
        size_t first, end;
        part_in(slice, place->own_first, place->own_granules, &first, &end);
        if (first >= end || z->layout.sections[slice->section].frozen)
            continue;
        const size_t at = slice->granule * ENG_GRANULE + first;
        float *out = eng_own_sums(z, slice->section, at);
        const zero_result r = source(z, user, slice, first, end - first, out, error);
        if (r)
            return r;
    }
    return ZERO_OK;
}

zero_result eng_values_frozen(zero_ctx *z, eng_source_fn source, void *user, bool write,
                              struct base_error *error)
{
    float tile[TILE];
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        size_t at, end, count;
        eng_state_part(z, slice, &at, &end);
        if (!z->layout.sections[slice->section].frozen)
            continue;
        for (; at < end; at += count) {
            count = end - at < TILE ? end - at : TILE;
            const zero_result r = source(z, user, slice, at, count, tile, error);
            if (r)
                return r;
            if (write)
                eng_values_put(z, slice->section, slice->granule * ENG_GRANULE + at, count, tile);
        }
    }
    return ZERO_OK;
}

zero_result eng_values_first(const zero_ctx *z, void *user, const struct eng_slice *slice,
                             uint64_t first, uint64_t count, float *out, struct base_error *error)
{
    (void)user;
    const struct eng_param *param = &z->model.params[slice->param];
    if (param->fill) {
        const zero_result r =
            param->fill(param->fill_user, param->name, slice->index, first, count, out);
        return r ? zero_fail(error, r, "the fill callback of %s failed at slice %d, element %llu",
                             param->name, slice->index, (unsigned long long)first)
                 : ZERO_OK;
    }
    if (!param->data) {
        memset(out, 0, count * sizeof *out);
        return ZERO_OK;
    }
    const size_t at = (size_t)slice->index * param->slice_numel + first;
    const unsigned char *data = param->data;
    eng_widen(z->kernels, param->dtype, data + at * eng_dtype_size(param->dtype), count, out);
    return ZERO_OK;
}

void eng_values_put(zero_ctx *z, size_t section, size_t element, size_t count, const float *values)
{
    eng_save_hold(z);
    const zero_dtype dtype = z->layout.sections[section].dtype;
    if (z->placement.sections[section].master)
        memcpy(eng_weights(z, section, element), values, count * sizeof *values);
    if (dtype == ZERO_F32)
        return;
    unsigned char *granule = eng_home(z, section, element / ENG_GRANULE);
    eng_narrow(z->kernels, dtype, values, count,
               granule + element % ENG_GRANULE * eng_dtype_size(dtype));
}

void eng_values_refresh(zero_ctx *z, size_t section, size_t element, size_t count)
{
    const zero_dtype dtype = z->layout.sections[section].dtype;
    size_t n;
    if (dtype == ZERO_F32 || !z->placement.sections[section].master)
        return;
    for (const size_t end = element + count; element < end; element += n) {
        n = end - element < ENG_GRANULE ? end - element : ENG_GRANULE;
        eng_narrow(z->kernels, dtype, eng_weights(z, section, element), n,
                   eng_home(z, section, element / ENG_GRANULE));
    }
}

void eng_state_part(const zero_ctx *z, const struct eng_slice *slice, size_t *first, size_t *end)
{
    const struct eng_section_place *place = &z->placement.sections[slice->section];
    part_in(slice, place->state_first, place->state_granules, first, end);
}

void eng_values_get(const zero_ctx *z, size_t section, size_t element, size_t count, float *values)
{
    size_t size;
    const void *weights = eng_best_weights(z, section, element, &size);
    const bool wide = z->placement.sections[section].master;
    eng_widen(z->kernels, wide ? ZERO_F32 : z->layout.sections[section].dtype, weights, count,
              values);
}

/** The values of a rank's run of a section become weights and working copy. */
static void install(zero_ctx *z, size_t s, int owner)
{
    const struct coll_span *run = &z->layout.sections[s].elements[owner];
    if (run->count > 0)
        eng_values_put(z, s, run->offset, run->count, eng_sums(z, owner, s, run->offset));
}

zero_result eng_values_install(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    z->version++;
    for (size_t s = 0; s < z->layout.section_count; s++) {
        const bool all = z->placement.sections[s].residence == ENG_REPLICATED;
        for (int owner = 0; owner < z->config.world; owner++)
            if ((all || owner == z->config.rank) && !z->layout.sections[s].frozen)
                install(z, s, owner);
        if (!r)
            r = eng_publish_start(z, s);
    }
    if (!r)
        r = eng_sums_return(z);
    return r ? r : eng_publish_finish(z, true);
}
