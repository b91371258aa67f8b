// Tensors of a checkpoint: every rank reads what it holds, in place, or tries what may not fit.

#include "zero/core/addresses.h"
#include "zero/core/context.h"
#include "zero/snapshot/load_parts.h"
#include "zero/store/master_weights.h"

#include <assert.h>

/* ------------------------------------------------------------------ trying */

static zero_dtype type_of(enum ckpt_dtype dtype)
{
    static const zero_dtype types[] = {
        [CKPT_F32] = ZERO_F32, [CKPT_BF16] = ZERO_BF16, [CKPT_F16] = ZERO_F16};
    return types[dtype];
}

/** Whether elements of the block that were read, of which `first` is the first, fit in what they
 * are to become. */
static zero_result check_range(zero_ctx *z, const struct eng_load *job,
                               const struct eng_slice *slice, int field, uint64_t first,
                               uint64_t count, struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    const struct ckpt_table_tensor *saved = &eng_load_manifest(job)->tensors[tensor];
    const zero_dtype stored = type_of(saved->field[field]);
    const zero_dtype narrow = eng_match_narrows(z, saved, slice->param, field);
    float values[BASE_GRANULE];
    zero_result r = ZERO_OK;
    if (narrow == ZERO_F32)
        return ZERO_OK;
    assert(job->block && count <= CKPT_BLOCK_ELEMENTS);
    for (uint64_t at = 0, n; !r && at < count; at += n) {
        n = count - at < BASE_GRANULE ? count - at : BASE_GRANULE;
        eng_widen(z->cpu.kernels, stored, job->block + at * eng_dtype_size(stored), (size_t)n,
                  values);
        r = eng_values_fit(z, narrow, slice, first + at, n, values,
                           field == 0 ? job->path : "moments", error);
    }
    return r;
}

zero_result eng_load_check_slice(zero_ctx *z, struct eng_load *job, const struct eng_slice *slice,
                                 struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    assert(job->block);
    zero_result r = ZERO_OK;
    const struct eng_part mine = eng_state_part(z, slice);
    const uint64_t end = mine.first + mine.count;
    const int fields = tensor == SIZE_MAX ? 0 : eng_state_fields(z, slice->param);
    const struct ckpt_table_tensor *saved =
        fields ? &eng_load_manifest(job)->tensors[tensor] : NULL;
    for (int f = 0; f < fields; f++) {
        if (!job->checked && eng_match_narrows(z, saved, slice->param, f) == ZERO_F32)
            continue;
        for (uint64_t at = mine.first, n; !r && at < end; at += n) {
            n = ckpt_block_end(at, end) - at;
            r = ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, f, at, n, job->block,
                                 error);
            if (!r)
                r = check_range(z, job, slice, f, at, n, error);
        }
    }
    return r;
}

/* ------------------------------------------------------------------ reading */

/** Reads elements that are stored with another type than they have here. */
static zero_result read_converted(zero_ctx *z, struct eng_load *job, size_t tensor,
                                  const struct eng_slice *slice, int field, uint64_t first,
                                  uint64_t count, struct base_error *error)
{
    const zero_dtype stored = type_of(eng_load_manifest(job)->tensors[tensor].field[field]);
    const zero_dtype mine = eng_state_dtype(z, slice->param, field);
    float values[BASE_GRANULE];
    assert(job->match.converted && job->block);
    zero_result r = ZERO_OK;
    for (uint64_t at = first, n; !r && at < first + count; at += n) {
        n = first + count - at < BASE_GRANULE ? first + count - at : BASE_GRANULE;
        r = ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, field, at, n, job->block,
                             error);
        if (r)
            break;
        eng_widen(z->cpu.kernels, stored, job->block, (size_t)n, values);
        eng_narrow(z->cpu.kernels, mine, values, (size_t)n, eng_state_memory(z, slice, field, at));
    }
    return r;
}

static zero_result read_field(zero_ctx *z, struct eng_load *job, const struct eng_slice *slice,
                              int field, uint64_t first, uint64_t count, struct base_error *error)
{
    const size_t tensor = job->match.tensor[slice->param];
    const enum ckpt_dtype stored = eng_load_manifest(job)->tensors[tensor].field[field];
    if (stored != eng_ckpt_dtype(eng_state_dtype(z, slice->param, field)))
        return read_converted(z, job, tensor, slice, field, first, count, error);
    return ckpt_loader_read(job->loader, tensor, (uint32_t)slice->index, field, first, count,
                            eng_state_memory(z, slice, field, first), error);
}

/** Reads a part of what this rank writes, and makes its working copy. */
static zero_result read_part(zero_ctx *z, void *user, const struct eng_part *part,
                             struct base_error *error)
{
    struct eng_load *job = user;
    const struct eng_slice *slice = part->slice;
    if (job->match.tensor[slice->param] == SIZE_MAX)
        return ZERO_OK;
    zero_result r = ZERO_OK;
    for (int f = 0; !r && f < eng_state_fields(z, slice->param); f++)
        r = read_field(z, job, slice, f, part->first, part->count, error);
    if (!r)
        eng_values_refresh(z, slice->bucket, slice->granule * BASE_GRANULE + part->first,
                           part->count);
    return r;
}

zero_result eng_load_read_all(zero_ctx *z, struct eng_load *job, struct base_error *error)
{
    const enum eng_access access = job->options.partial ? ENG_CHANGE : ENG_REPLACE;
    zero_result r = z->store->walk(z, false, access, read_part, job, error);
    if (!r)
        r = z->store->walk(z, true, access, read_part, job, error);
    if (r)
        z->store->records->abandon(z);
    return r;
}
