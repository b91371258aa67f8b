#include "zero/model/registry.h"

#include "base/arena.h"
#include "checkpoint/tensor_digest.h"
#include "zero/model/versioned.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

// The most elements of a tensor and of a model: the bytes of all arrays together stay far below
// 2^64.
#define MAX_ELEMENTS (UINT64_MAX >> 8)

/** Makes room for one more element; *items keeps its contents. */
static zero_result reserve(void **items, size_t *capacity, size_t count, size_t item_size,
                           struct base_error *error)
{
    assert(count <= *capacity);
    if (count < *capacity)
        return ZERO_OK;
    const size_t wanted = *capacity ? 2 * *capacity : 16;
    void *grown = base_calloc(wanted, item_size);
    if (!grown)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu entries of %zu bytes", wanted,
                         item_size);
    if (count)
        memcpy(grown, *items, count * item_size);
    base_free(*items);
    *items = grown;
    *capacity = wanted;
    return ZERO_OK;
}

static bool printable_name(const char *name, size_t max)
{
    const size_t length = name ? strlen(name) : 0;
    if (length == 0 || length > max)
        return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    return true;
}

/** The optimizer called `name`, ours or the program's; NULL if there is none. */
static const struct eng_optimizer *find_optimizer(const struct eng_model *model, const char *name)
{
    for (const struct eng_own_optimizer *own = model->own_optimizers; own; own = own->next)
        if (strcmp(own->desc.name, name) == 0)
            return &own->optimizer;
    return eng_optimizer_find(name);
}

static zero_result check_optimizer(const struct eng_model *model, const zero_optimizer_desc *desc,
                                   struct base_error *error)
{
    if (!printable_name(desc->name, 63))
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_add_optimizer: a name is 1 .. 63 printable bytes without blanks");
    if (find_optimizer(model, desc->name))
        return zero_fail(error, ZERO_E_INVALID, "optimizer %s: there is one of that name",
                         desc->name);
    if (desc->moments < 0 || desc->moments > BASE_MAX_MOMENTS)
        return zero_fail(error, ZERO_E_INVALID, "optimizer %s: %d moments, not 0 .. %d", desc->name,
                         desc->moments, BASE_MAX_MOMENTS);
    if (!desc->prepare || !desc->update)
        return zero_fail(error, ZERO_E_INVALID, "optimizer %s has no %s", desc->name,
                         desc->prepare ? "update" : "prepare");
    return ZERO_OK;
}

zero_result eng_model_add_optimizer(struct eng_model *model, const zero_optimizer_desc *user,
                                    struct base_error *error)
{
    if (!user)
        return zero_fail(error, ZERO_E_INVALID, "zero_add_optimizer needs a description");
    zero_optimizer_desc desc;
    zero_result r = eng_struct_copy(&desc, sizeof desc, user, "zero_optimizer_desc", error);
    if (!r)
        r = check_optimizer(model, &desc, error);
    if (r)
        return r;
    struct eng_own_optimizer *own = base_calloc(1, sizeof *own);
    char *name = base_strdup(desc.name);
    if (!own || !name) {
        base_free(own);
        base_free(name);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for an optimizer");
    }
    own->desc = desc;
    own->desc.name = name;
    own->optimizer = eng_optimizer_own(&own->desc);
    own->next = model->own_optimizers;
    model->own_optimizers = own;
    return ZERO_OK;
}

zero_result eng_model_add_group(struct eng_model *model, zero_group *group,
                                const zero_group_desc *user, struct base_error *error)
{
    zero_group_desc desc = zero_group_default();
    zero_result r =
        user ? eng_struct_copy(&desc, sizeof desc, user, "zero_group_desc", error) : ZERO_OK;
    if (r)
        return r;
    const char *optimizer = desc.optimizer ? desc.optimizer : "adamw";
    const struct eng_optimizer *found = find_optimizer(model, optimizer);
    if (!found)
        return zero_fail(error, ZERO_E_INVALID, "group %zu: there is no optimizer \"%s\"",
                         model->group_count, optimizer);
    struct eng_choice choice;
    struct base_error reason = {0};
    if (eng_optimizer_choose(found, desc.decay, desc.nesterov, &choice, &reason))
        return zero_fail(error, ZERO_E_INVALID, "group %zu: %s", model->group_count,
                         reason.message);
    if (desc.name && !printable_name(desc.name, 255))
        return zero_fail(error, ZERO_E_INVALID,
                         "group %zu: a name is 1 .. 255 printable bytes without blanks",
                         model->group_count);
    void *items = model->groups;
    r = reserve(&items, &model->group_capacity, model->group_count, sizeof *model->groups, error);
    model->groups = items;
    if (r)
        return r;
    char name[32];
    snprintf(name, sizeof name, "group%zu", model->group_count);
    char *copy = base_strdup(desc.name ? desc.name : name);
    if (!copy)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a group's name");
    if (group)
        *group = (zero_group)model->group_count;
    model->groups[model->group_count++] = (struct eng_group){
        .name = copy, .named = desc.name != NULL, .optimizer = found, .choice = choice};
    return ZERO_OK;
}

/** Checks the shape and computes a slice's elements. */
static zero_result check_shape(const zero_param_desc *desc, struct eng_param *param,
                               struct base_error *error)
{
    if (desc->ndim < 0 || desc->ndim > ZERO_MAX_DIMS)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: ndim %d is not in 0 .. %d", desc->name,
                         desc->ndim, ZERO_MAX_DIMS);
    uint64_t numel = 1;
    for (int32_t i = 0; i < desc->ndim; i++) {
        if (desc->shape[i] == 0)
            return zero_fail(error, ZERO_E_INVALID, "tensor %s: extent %d is 0", desc->name, i);
        if (__builtin_mul_overflow(numel, desc->shape[i], &numel) || numel > MAX_ELEMENTS)
            return zero_fail(error, ZERO_E_INVALID, "tensor %s: its number of elements overflows",
                             desc->name);
        param->shape[i] = desc->shape[i];
    }
    param->ndim = desc->ndim;
    param->slice_count = desc->unit_count ? desc->unit_count : 1;
    if (param->slice_count < 1 || desc->unit < 0 || desc->unit > INT32_MAX - param->slice_count)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: unit %d with unit_count %d", desc->name,
                         desc->unit, desc->unit_count);
    if (param->slice_count > 1 &&
        (desc->ndim == 0 || desc->shape[0] != (uint64_t)param->slice_count))
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s: stacked over %d units, so its first extent must be %d",
                         desc->name, param->slice_count, param->slice_count);
    param->slice_numel = (size_t)(numel / (uint64_t)param->slice_count);
    return ZERO_OK;
}

/** Whether the tensor can be frozen, and the caller's buffers used at this stage. */
static zero_result check_buffers(const struct eng_model *model, const zero_param_desc *desc,
                                 struct eng_param *param, struct base_error *error)
{
    if (desc->borrow && model->stage > 2)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s: borrow at stage %d, where no rank has a whole working copy",
                         desc->name, model->stage);
    if (desc->borrow && model->params_nvme)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s: borrow with offload_params=nvme, where no rank has a whole "
                         "working copy",
                         desc->name);
    if (desc->grad && model->stage > 1)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s: a gradient buffer at stage %d, where no rank keeps one for "
                         "every unit",
                         desc->name, model->stage);
    if ((uintptr_t)desc->borrow % eng_dtype_size(param->dtype))
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: borrow is not aligned to its type",
                         desc->name);
    if ((uintptr_t)desc->grad % eng_dtype_size(param->grad_dtype))
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: grad is not aligned to its type",
                         desc->name);
    if (desc->frozen != 0 && desc->frozen != 1)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: frozen is %d, neither 0 nor 1",
                         desc->name, desc->frozen);
    if (desc->frozen && desc->grad)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s is frozen: it has no gradient to be in a buffer", desc->name);
    if (desc->frozen && desc->grad_dtype != ZERO_DTYPE_DEFAULT)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s is frozen: it has no gradient of a grad_dtype", desc->name);
    param->frozen = desc->frozen;
    param->borrow = desc->borrow;
    param->grad = desc->grad;
    return ZERO_OK;
}

static zero_result check_param(const struct eng_model *model, const zero_param_desc *desc,
                               struct eng_param *param, struct base_error *error)
{
    if (!printable_name(desc->name, 255))
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %zu: a name is 1 .. 255 printable bytes without blanks",
                         model->param_count);
    if (strcmp(desc->name, "__metadata__") == 0)
        return zero_fail(
            error, ZERO_E_INVALID,
            "tensor __metadata__: safetensors has another use for the name, so that it "
            "could never be exported");
    if (eng_model_find(model, desc->name) >= 0)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s is registered already", desc->name);
    param->dtype = desc->dtype == ZERO_DTYPE_DEFAULT ? ZERO_F32 : desc->dtype;
    param->grad_dtype = desc->grad_dtype == ZERO_DTYPE_DEFAULT ? param->dtype : desc->grad_dtype;
    if (eng_dtype_size(param->dtype) == 0 || eng_dtype_size(param->grad_dtype) == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "tensor %s: dtype %d, grad_dtype %d: tensors and gradients are f32, bf16 "
                         "or f16",
                         desc->name, (int)desc->dtype, (int)desc->grad_dtype);
    const size_t groups = model->group_count ? model->group_count : 1;
    if (desc->group < 0 || (size_t)desc->group >= groups)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s: group %d does not exist (%zu do)",
                         desc->name, desc->group, groups);
    if (desc->data && desc->fill)
        return zero_fail(error, ZERO_E_INVALID, "tensor %s has both data and fill", desc->name);
    param->unit = desc->unit;
    param->group = desc->group;
    param->data = desc->data;
    param->fill = desc->fill;
    param->fill_user = desc->fill_user;
    const zero_result r = check_buffers(model, desc, param, error);
    return r ? r : check_shape(desc, param, error);
}

zero_result eng_model_add_param(struct eng_model *model, zero_param *id,
                                const zero_param_desc *user, struct base_error *error)
{
    if (!user)
        return zero_fail(error, ZERO_E_INVALID, "zero_add_param needs a description");
    zero_param_desc desc;
    struct eng_param param = {0};
    zero_result r = eng_struct_copy(&desc, sizeof desc, user, "zero_param_desc", error);
    if (!r)
        r = check_param(model, &desc, &param, error);
    if (r)
        return r;
    void *items = model->params;
    r = reserve(&items, &model->param_capacity, model->param_count, sizeof *model->params, error);
    model->params = items;
    if (r)
        return r;
    param.name = base_strdup(desc.name);
    param.name_hash = ckpt_digest_name(desc.name);
    if (!param.name)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a tensor's name");
    assert(param.unit >= 0 && param.slice_count >= 1 && param.slice_numel > 0);
    const size_t end = (size_t)param.unit + (size_t)param.slice_count;
    if (end > model->unit_count)
        model->unit_count = end;
    model->borrows = model->borrows || param.borrow;
    if (id)
        *id = (zero_param)model->param_count;
    model->params[model->param_count++] = param;
    return ZERO_OK;
}

zero_result eng_model_complete(struct eng_model *model, struct base_error *error)
{
    if (model->param_count == 0)
        return zero_fail(error, ZERO_E_INVALID, "no tensor was registered before zero_commit");
    if (model->group_count == 0) {
        zero_result r = eng_model_add_group(model, NULL, NULL, error);
        if (r)
            return r;
    }
    size_t slices = 0;
    uint64_t elements = 0; // each tensor has at most MAX_ELEMENTS, so that the sum can't wrap
    for (size_t p = 0; p < model->param_count; p++) {
        const struct eng_param *param = &model->params[p];
        slices += (size_t)param->slice_count;
        elements += (uint64_t)param->slice_numel * (uint64_t)param->slice_count;
        if (elements > MAX_ELEMENTS)
            return zero_fail(error, ZERO_E_INVALID,
                             "the number of elements overflows at tensor %s (%zu)", param->name, p);
    }
    if (model->unit_count > slices)
        return zero_fail(error, ZERO_E_INVALID,
                         "%zu units, but only %zu slices to fill them: number units densely",
                         model->unit_count, slices);
    uint8_t *used = base_calloc(model->unit_count, 1);
    if (!used)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %zu units", model->unit_count);
    for (size_t p = 0; p < model->param_count; p++)
        memset(used + model->params[p].unit, 1, (size_t)model->params[p].slice_count);
    const uint8_t *empty = memchr(used, 0, model->unit_count);
    zero_result r = ZERO_OK;
    if (empty)
        r = zero_fail(error, ZERO_E_INVALID, "unit %zu has no tensor: number units densely",
                      (size_t)(empty - used));
    base_free(used);
    return r;
}

zero_param eng_model_find(const struct eng_model *model, const char *name)
{
    const uint64_t hash = ckpt_digest_name(name);
    for (size_t p = 0; p < model->param_count; p++)
        if (model->params[p].name_hash == hash && strcmp(model->params[p].name, name) == 0)
            return (zero_param)p;
    return -1;
}

const char *eng_decay_name(const struct eng_group *group)
{
    switch (group->choice.decay) {
    case ZERO_DECAY_L2:
        return "l2";
    case ZERO_DECAY_DECOUPLED:
        return "decoupled";
    default:
        return "own";
    }
}

uint64_t eng_model_param_hash(const struct eng_model *model, size_t p)
{
    const struct eng_param *param = &model->params[p];
    const struct eng_group *group = &model->groups[param->group];
    const int32_t fields[] = {param->ndim,
                              (int32_t)param->dtype,
                              (int32_t)param->grad_dtype,
                              param->unit,
                              param->slice_count,
                              param->group,
                              (int32_t)group->choice.decay,
                              group->choice.nesterov,
                              param->frozen};
    uint64_t hash = base_hash64(param->shape, sizeof param->shape, param->name_hash);
    hash = base_hash64(fields, sizeof fields, hash);
    return base_hash64(group->optimizer->name, strlen(group->optimizer->name), hash);
}

uint64_t eng_model_elements(const struct eng_model *model)
{
    uint64_t elements = 0;
    for (size_t p = 0; p < model->param_count; p++)
        elements += (uint64_t)model->params[p].slice_numel * (uint64_t)model->params[p].slice_count;
    return elements;
}

void eng_model_borrowed(const struct eng_model *model, uint64_t *work, uint64_t *gradients)
{
    *work = *gradients = 0;
    for (size_t p = 0; p < model->param_count; p++) {
        const struct eng_param *param = &model->params[p];
        const uint64_t numel = (uint64_t)param->slice_numel * (uint64_t)param->slice_count;
        if (param->borrow)
            *work += numel * eng_dtype_size(param->dtype);
        if (param->grad)
            *gradients += numel * eng_dtype_size(param->grad_dtype);
    }
}

int eng_model_moments(const struct eng_model *model, size_t p)
{
    const struct eng_param *param = &model->params[p];
    return param->frozen ? 0 : model->groups[param->group].optimizer->moments;
}

void eng_model_free(struct eng_model *model)
{
    for (size_t g = 0; g < model->group_count; g++)
        base_free(model->groups[g].name);
    for (size_t p = 0; p < model->param_count; p++)
        base_free(model->params[p].name);
    while (model->own_optimizers) {
        struct eng_own_optimizer *own = model->own_optimizers;
        model->own_optimizers = own->next;
        base_free((void *)(uintptr_t)own->desc.name);
        base_free(own);
    }
    base_free(model->groups);
    base_free(model->params);
    memset(model, 0, sizeof *model);
}
