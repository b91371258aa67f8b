// Whether all ranks registered the same model, and where they did not.
#include "zero/api/compare.h"
#include "zero/core/api_call.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 80, VALUE_BYTES = 256 };

/** What has to be the same of a tensor, in fixed width. */
struct identity {
    char name[NAME_BYTES]; /**< cut */
    char optimizer[NAME_BYTES];
    char decay[NAME_BYTES];
    uint64_t shape[ZERO_MAX_DIMS];
    int32_t ndim, dtype, grad_dtype, unit, unit_count, group, nesterov, frozen;
};

static struct identity identity_of(const struct eng_model *model, size_t p)
{
    const struct eng_param *param = &model->params[p];
    const struct eng_group *group = &model->groups[param->group];
    struct identity out = {.ndim = param->ndim,
                           .dtype = (int32_t)param->dtype,
                           .grad_dtype = (int32_t)param->grad_dtype,
                           .unit = param->unit,
                           .unit_count = param->slice_count,
                           .group = param->group,
                           .nesterov = group->choice.nesterov,
                           .frozen = param->frozen};
    memcpy(out.shape, param->shape, sizeof out.shape);
    snprintf(out.name, sizeof out.name, "%s", param->name);
    snprintf(out.optimizer, sizeof out.optimizer, "%s", group->optimizer->name);
    snprintf(out.decay, sizeof out.decay, "%s", eng_decay_name(group));
    return out;
}

/* ------------------------------------------------------------------ what differs */

/** The first value that two ranks have differently, as text. */
struct difference {
    const char *what;
    char values[2][VALUE_BYTES];
};

static bool numbers_differ(struct difference *out, const char *what, int32_t a, int32_t b)
{
    out->what = what;
    snprintf(out->values[0], VALUE_BYTES, "%d", a);
    snprintf(out->values[1], VALUE_BYTES, "%d", b);
    return a != b;
}

static bool texts_differ(struct difference *out, const char *what, const char *a, const char *b)
{
    out->what = what;
    snprintf(out->values[0], VALUE_BYTES, "%s", a);
    snprintf(out->values[1], VALUE_BYTES, "%s", b);
    return strcmp(a, b) != 0;
}

static bool shapes_differ(struct difference *out, const struct identity *a,
                          const struct identity *b)
{
    char shapes[2][BASE_SHAPE_BYTES];
    return texts_differ(out, "shape", base_shape_text(a->shape, a->ndim, shapes[0]),
                        base_shape_text(b->shape, b->ndim, shapes[1]));
}

static bool types_differ(struct difference *out, const char *what, int32_t a, int32_t b)
{
    return texts_differ(out, what, eng_dtype_name((zero_dtype)a), eng_dtype_name((zero_dtype)b));
}

/** false: what differs is none of this, such as a longer name. */
static bool find_difference(struct difference *out, const struct identity *a,
                            const struct identity *b)
{
    return texts_differ(out, "name", a->name, b->name) || shapes_differ(out, a, b) ||
           types_differ(out, "dtype", a->dtype, b->dtype) ||
           types_differ(out, "grad_dtype", a->grad_dtype, b->grad_dtype) ||
           numbers_differ(out, "unit", a->unit, b->unit) ||
           numbers_differ(out, "unit_count", a->unit_count, b->unit_count) ||
           numbers_differ(out, "group", a->group, b->group) ||
           numbers_differ(out, "frozen", a->frozen, b->frozen) ||
           texts_differ(out, "optimizer", a->optimizer, b->optimizer) ||
           texts_differ(out, "decay", a->decay, b->decay) ||
           numbers_differ(out, "nesterov", a->nesterov, b->nesterov);
}

/** Collective: all ranks have found that tensor p of this rank is another one than rank 0's. */
static zero_result tell_difference(zero_ctx *z, size_t p, size_t rank, struct base_error *error)
{
    assert(rank > 0 && rank < (size_t)z->config.world && p < z->model.param_count);
    const struct identity mine = identity_of(&z->model, p);
    struct identity first = mine, other = mine;
    struct difference difference;
    zero_result r = coll_broadcast(z->comm, &first, sizeof first, 0);
    if (!r)
        r = coll_broadcast(z->comm, &other, sizeof other, (int)rank);
    if (r)
        return eng_comm_failed(z, r);
    if (find_difference(&difference, &first, &other))
        return zero_fail(error, ZERO_E_DIVERGED,
                         "ranks 0 and %zu differ in tensor %zu (%s here): its %s is %s on rank 0, "
                         "and %s on rank %zu",
                         rank, p, z->model.params[p].name, difference.what, difference.values[0],
                         difference.values[1], rank);
    return zero_fail(error, ZERO_E_DIVERGED,
                     "ranks 0 and %zu differ in tensor %zu (%s here): its name, behind %d bytes",
                     rank, p, z->model.params[p].name, NAME_BYTES - 1);
}

/* ------------------------------------------------------------------ comparing */

zero_result eng_compare_model(zero_ctx *z, struct base_error *error)
{
    const size_t world = (size_t)z->config.world, params = z->model.param_count;
    uint64_t *mine = base_calloc(1, eng_compare_model_bytes(z));
    if (!mine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to compare %zu tensors", params);
    uint64_t *all = mine + params;
    for (size_t p = 0; p < params; p++)
        mine[p] = eng_model_param_hash(&z->model, p);
    zero_result r = coll_exchange(z->comm, mine, params * sizeof *mine, all);
    if (r)
        r = eng_comm_failed(z, r);
    for (size_t i = params; !r && i < params * world; i++)
        if (all[i] != all[i % params])
            r = tell_difference(z, i % params, i / params, error);
    base_free(mine);
    return r;
}

size_t eng_compare_model_bytes(const zero_ctx *z)
{
    return (1 + (size_t)z->config.world) * z->model.param_count * sizeof(uint64_t);
}
