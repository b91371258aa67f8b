#include "zero/core/state_fields.h"
#include "zero/core/addresses.h"

#include <assert.h>

int eng_state_fields(const zero_ctx *z, zero_param param)
{
    const struct eng_param *p = &z->model.params[param];
    return p->frozen ? 1 : 1 + z->model.groups[p->group].optimizer->moments;
}

zero_dtype eng_state_dtype(const zero_ctx *z, zero_param param, int field)
{
    const struct eng_param *p = &z->model.params[param];
    assert(field >= 0 && field < eng_state_fields(z, param));
    if (field > 0)
        return z->config.moment_dtype;
    return p->frozen || z->config.no_masters ? p->dtype : ZERO_F32;
}

void *eng_state_memory(const zero_ctx *z, const struct eng_slice *slice, int field, uint64_t first)
{
    const size_t at = slice->granule * BASE_GRANULE + (size_t)first;
    assert(first < slice->numel);
    size_t size;
    if (field > 0)
        return eng_moments(z, field - 1, slice->bucket, at);
    return eng_best_weights(z, slice->bucket, at, &size);
}

struct ckpt_digest_place eng_digest_place(const zero_ctx *z, const struct eng_slice *slice,
                                          int field)
{
    const struct eng_param *param = &z->model.params[slice->param];
    return (struct ckpt_digest_place){
        .name = param->name_hash,
        .slice = (uint64_t)slice->index,
        .field = field,
        .trains = !param->frozen,
        .element_bytes = eng_dtype_size(eng_state_dtype(z, slice->param, field)),
    };
}
