#include "zero/store/master_weights.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/overwrite.h"
#include "zero/link/publish.h"
#include "zero/model/ranges.h"
#include "zero/store/stores.h"

#include <assert.h>
#include <string.h>

#define TILE ((size_t)4 * BASE_GRANULE)

/** Where values come from. */
struct source {
    eng_source_fn read;
    void *user;
};

/** Reads elements of a slice through a tile, and makes them its weights and working copy if `write`
 * is set. */
static zero_result read_through(zero_ctx *z, const struct source *from, const struct eng_part *part,
                                bool write, struct base_error *error)
{
    const struct eng_slice *slice = part->slice;
    assert(part->first + part->count <= slice->numel);
    float tile[TILE];
    size_t count;
    for (size_t at = part->first, end = at + part->count; at < end; at += count) {
        count = end - at < TILE ? end - at : TILE;
        const zero_result r = from->read(z, from->user, slice, at, count, tile, error);
        if (r)
            return r;
        if (write)
            eng_values_put(z, slice->bucket, slice->granule * BASE_GRANULE + at, count, tile);
    }
    return ZERO_OK;
}

static zero_result try_part(zero_ctx *z, void *user, const struct eng_part *part,
                            struct base_error *error)
{
    return read_through(z, user, part, false, error);
}

static zero_result write_part(zero_ctx *z, void *user, const struct eng_part *part,
                              struct base_error *error)
{
    return read_through(z, user, part, true, error);
}

bool eng_sums_are_scratch(const zero_ctx *z)
{
    return !z->config.grads_nvme && !eng_state_on_device(z);
}

zero_result eng_values_read(zero_ctx *z, eng_source_fn source, void *user, struct base_error *error)
{
    struct source from = {source, user};
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_range own = eng_own_range(&z->placement, slice);
        const struct eng_part part = {slice, eng_range_first(&own), own.count};
        if (own.count == 0 || z->layout.buckets[slice->bucket].frozen)
            continue;
        const zero_result r = !eng_sums_are_scratch(z)
                                  ? try_part(z, &from, &part, error)
                                  : source(z, user, slice, part.first, part.count,
                                           eng_own_sums(z, slice->bucket, own.first), error);
        if (r)
            return r;
    }
    return ZERO_OK;
}

zero_result eng_values_try_frozen(zero_ctx *z, eng_source_fn source, void *user,
                                  struct base_error *error)
{
    struct source from = {source, user};
    return z->store->walk(z, true, ENG_LOOK, try_part, &from, error);
}

zero_result eng_values_write(zero_ctx *z, enum eng_access access, eng_source_fn source, void *user,
                             struct base_error *error)
{
    struct source from = {source, user};
    const zero_result r = z->store->walk(z, true, ENG_REPLACE, write_part, &from, error);
    if (r || eng_sums_are_scratch(z))
        return r;
    return z->store->walk(z, false, access, write_part, &from, error);
}

zero_result eng_values_fit(const zero_ctx *z, zero_dtype dtype, const struct eng_slice *slice,
                           uint64_t first, uint64_t count, const float *values, const char *what,
                           struct base_error *error)
{
    const size_t i = eng_first_beyond(dtype, values, (size_t)count);
    if (i == count)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "%s: slice %d, element %llu of tensor %s is %g, and the largest %s is %g",
                     what, slice->index, (unsigned long long)(first + i),
                     z->model.params[slice->param].name, (double)values[i], eng_dtype_name(dtype),
                     (double)eng_largest(dtype));
}

zero_result eng_values_first(const zero_ctx *z, void *user, const struct eng_slice *slice,
                             uint64_t first, uint64_t count, float *out, struct base_error *error)
{
    (void)user;
    const struct eng_param *param = &z->model.params[slice->param];
    assert(first + count <= param->slice_numel);
    if (param->fill) {
        struct base_fp_state its;
        const zero_result r =
            param->fill(param->fill_user, param->name, slice->index, first, count, out);
        base_fp_enter(&its); // whatever it has set
        if (r > ZERO_OK)
            return zero_fail(error, ZERO_E_INVALID,
                             "the fill callback of %s returned %d at slice %d, element %llu: it is "
                             "to return ZERO_OK, or an error below 0",
                             param->name, (int)r, slice->index, (unsigned long long)first);
        return r ? zero_fail(error, r, "the fill callback of %s failed at slice %d, element %llu",
                             param->name, slice->index, (unsigned long long)first)
                 : eng_values_fit(z, param->dtype, slice, first, count, out, "fill", error);
    }
    if (!param->data) {
        memset(out, 0, count * sizeof *out);
        return ZERO_OK;
    }
    const size_t at = (size_t)slice->index * param->slice_numel + first;
    const unsigned char *data = param->data;
    eng_widen(z->cpu.kernels, param->dtype, data + at * eng_dtype_size(param->dtype), count, out);
    return ZERO_OK;
}

void eng_values_put(zero_ctx *z, size_t bucket, size_t element, size_t count, const float *values)
{
    eng_before_overwrite(z);
    const zero_dtype dtype = z->layout.buckets[bucket].dtype;
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    assert(element >= place->state_first * BASE_GRANULE);
    assert(element + count <= (place->state_first + place->state_granules) * BASE_GRANULE);
    size_t size;
    if (place->master)
        memcpy(eng_weights(z, bucket, element), values, count * sizeof *values);
    else
        eng_narrow(z->cpu.kernels, dtype, values, count,
                   eng_best_weights(z, bucket, element, &size));
    if (dtype == ZERO_F32 || !place->master || place->staged)
        return;
    unsigned char *granule = eng_home(z, bucket, element / BASE_GRANULE);
    eng_narrow(z->cpu.kernels, dtype, values, count,
               granule + element % BASE_GRANULE * eng_dtype_size(dtype));
}

void eng_values_refresh(zero_ctx *z, size_t bucket, size_t element, size_t count)
{
    const zero_dtype dtype = z->layout.buckets[bucket].dtype;
    assert(element % BASE_GRANULE == 0);
    size_t n;
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    if (dtype == ZERO_F32 || !place->master || place->staged)
        return;
    for (const size_t end = element + count; element < end; element += n) {
        n = end - element < BASE_GRANULE ? end - element : BASE_GRANULE;
        eng_narrow(z->cpu.kernels, dtype, eng_weights(z, bucket, element), n,
                   eng_home(z, bucket, element / BASE_GRANULE));
    }
}

struct eng_part eng_state_part(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct eng_range range = eng_state_range(&z->placement, slice);
    return (struct eng_part){slice, eng_range_first(&range), range.count};
}

/** Where values of a part go. */
struct values_out {
    float *values;
    size_t first; /**< element of the slice of the first one */
};

static zero_result get_part(zero_ctx *z, void *user, const struct eng_part *part,
                            struct base_error *error)
{
    const struct values_out *out = user;
    const size_t bucket = part->slice->bucket;
    const bool wide = z->placement.buckets[bucket].master;
    assert(part->first >= out->first);
    size_t size;
    const void *weights =
        eng_best_weights(z, bucket, part->slice->granule * BASE_GRANULE + part->first, &size);
    (void)error;
    eng_widen(z->cpu.kernels, wide ? ZERO_F32 : z->layout.buckets[bucket].dtype, weights,
              part->count, out->values + (part->first - out->first));
    return ZERO_OK;
}

zero_result eng_values_get(zero_ctx *z, const struct eng_part *part, float *values,
                           struct base_error *error)
{
    struct values_out out = {values, part->first};
    return z->store->visit(z, part, ENG_LOOK_AT_WEIGHTS, get_part, &out, error);
}

/** What was read for a part becomes its weights and working copy. */
static zero_result install_part(zero_ctx *z, void *user, const struct eng_part *part,
                                struct base_error *error)
{
    const size_t s = part->slice->bucket;
    size_t at = part->slice->granule * BASE_GRANULE + part->first, count;
    (void)user;
    (void)error;
    for (const size_t end = at + part->count; at < end; at += count) {
        count = end - at;
        const int owner = eng_layout_owner(&z->layout, s, at, &count);
        eng_values_put(z, s, at, count, eng_sums(z, owner, s, at));
    }
    return ZERO_OK;
}

zero_result eng_values_install(zero_ctx *z, enum eng_access access)
{
    struct base_error error = {0};
    assert(z->micro.index < 0);
    zero_result r = z->link->fetch_sums(z);
    if (r)
        return r;
    if (eng_sums_are_scratch(z) && z->store->walk(z, false, access, install_part, NULL, &error))
        return eng_fail_from(z, &error);
    r = access == ENG_REPLACE ? z->store->records->record_beginning(z)
                              : z->store->records->record(z);
    if (!r)
        r = eng_sums_return(z);
    return r ? r : eng_publish_all(z);
}
