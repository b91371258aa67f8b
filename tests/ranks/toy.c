#include "tests/ranks/toy.h"

#include "base/bfloat16.h"

#include <string.h>

static const struct toy_tensor odd_tensors[] = {
    {.name = "scalar", .unit = 0, .slices = 1, .numel = 1, .group = 1},
    {.name = "seven", .unit = 0, .slices = 1, .numel = 7, .group = 1},
    {.name = "below", .unit = 1, .slices = 1, .numel = 1023, .wide = true},
    {.name = "granule", .unit = 1, .slices = 1, .numel = 1024},
    {.name = "above", .unit = 2, .slices = 1, .numel = 1025},
    {.name = "small", .unit = 3, .slices = 1, .numel = 240, .group = 1, .wide = true},
    {.name = "large", .unit = 4, .slices = 1, .numel = 5000},
    {.name = "tied", .unit = 0, .slices = 1, .numel = 2000},
    {.name = "stacked", .unit = 1, .slices = 3, .numel = 1500},
};

const struct toy toy_odd = {
    .tensors = odd_tensors,
    .tensor_count = sizeof odd_tensors / sizeof *odd_tensors,
    .unit_count = 5,
    .micro_batches = 7,
    .dtype = ZERO_F32,
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

float toy_value(const struct toy *toy, const char *name, int slice, uint64_t element)
{
    uint64_t seed = toy->salt + (uint64_t)slice;
    for (; *name; name++)
        seed = seed * 131 + (uint64_t)*name;
    const int32_t bits = (int32_t)(mix(seed << 32 ^ element) >> 40) - (1 << 23);
    return (float)bits * 0x1p-24f;
}

zero_dtype toy_dtype(const struct toy *toy, const struct toy_tensor *tensor)
{
    return tensor->wide ? ZERO_F32 : toy->dtype;
}

zero_dtype toy_grad_dtype(const struct toy *toy, const struct toy_tensor *tensor)
{
    return toy->grad_dtype == ZERO_DTYPE_DEFAULT || tensor->wide ? toy_dtype(toy, tensor)
                                                                 : toy->grad_dtype;
}

float toy_element(zero_dtype dtype, const void *array, uint64_t element)
{
    if (dtype == ZERO_F32)
        return ((const float *)array)[element];
    const uint16_t half = ((const uint16_t *)array)[element];
    return dtype == ZERO_BF16 ? base_f32_from_bf16(half) : base_f32_from_f16(half);
}

static void put_element(zero_dtype dtype, void *array, uint64_t element, float value)
{
    if (dtype == ZERO_F32)
        ((float *)array)[element] = value;
    else
        ((uint16_t *)array)[element] =
            dtype == ZERO_BF16 ? base_bf16_from_f32(value) : base_f16_from_f32(value);
}

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = toy_value(user, name, slice, first + i);
    return ZERO_OK;
}

static bool is_frozen(const struct toy *toy, int p)
{
    return toy->frozen >> p & 1;
}

bool toy_register(struct team_rank *rank, const struct toy *toy)
{
    for (int g = 0; g < 2; g++)
        TEAM_OK(rank, zero_add_group(rank->z, NULL, toy->groups ? &toy->groups[g] : NULL));
    for (int p = 0; p < toy->tensor_count; p++) {
        const struct toy_tensor *tensor = &toy->tensors[p];
        zero_param_desc desc = zero_param_default();
        desc.name = tensor->name;
        desc.dtype = toy_dtype(toy, tensor);
        desc.unit = tensor->unit;
        desc.unit_count = tensor->slices;
        desc.group = tensor->group;
        desc.ndim = tensor->slices > 1 ? 2 : 1;
        desc.shape[0] = (uint64_t)tensor->slices;
        desc.shape[desc.ndim - 1] = tensor->numel;
        desc.frozen = is_frozen(toy, p);
        if (!desc.frozen)
            desc.grad_dtype = toy_grad_dtype(toy, tensor);
        desc.borrow = toy->borrow ? toy->borrow[p] : NULL;
        desc.grad = toy->own && !desc.frozen ? toy->own[p] : NULL;
        desc.fill = fill;
        desc.fill_user = (void *)(uintptr_t)toy;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    return true;
}

bool toy_open(struct team_rank *rank, const struct toy *toy)
{
    rank->config.micro_batches = toy->micro_batches;
    if (!team_open(rank) || !toy_register(rank, toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

int toy_slice_in(const struct toy_tensor *tensor, zero_unit unit)
{
    const int slice = unit - tensor->unit;
    return slice < tensor->slices ? slice : -1;
}

double toy_unit_sum(const struct team_rank *rank, const struct toy *toy, zero_unit unit)
{
    double sum = 0;
    for (int p = 0; p < toy->tensor_count; p++) {
        const struct toy_tensor *tensor = &toy->tensors[p];
        const int slice = toy_slice_in(tensor, unit);
        if (slice < 0)
            continue;
        const zero_dtype dtype = toy_dtype(toy, tensor);
        const void *weights = zero_param_ptr(rank->z, p, slice);
        for (uint64_t k = 0; k < tensor->numel; k++)
            sum += toy_element(dtype, weights, k);
    }
    return sum;
}

void toy_add_gradient(const struct toy *toy, const struct toy_tensor *tensor,
                      const zero_micro *micro, float factor, const void *weights, void *gradient)
{
    const zero_dtype dtype = toy_dtype(toy, tensor), grad_dtype = toy_grad_dtype(toy, tensor);
    if (toy->raw)
        memset(gradient, 0, tensor->numel * (grad_dtype == ZERO_F32 ? 4 : 2));
    uint64_t phase = micro->index * 13 + micro->step * 3;
    for (uint64_t k = 0; k < tensor->numel; k++) {
        phase = (phase + 7) % 11;
        const float value =
            (toy_element(dtype, weights, k) * 0.1f + (float)phase * 0.01f - 0.05f) * factor;
        put_element(grad_dtype, gradient, k, value + toy_element(grad_dtype, gradient, k));
    }
}

/** What is done about a unit's gradient. */
enum way { HAND_OVER, SAY_NONE, DO_NOTHING };

static enum way way_of(const struct toy *toy, zero_unit unit, const zero_micro *micro)
{
    bool trains = false;
    for (int p = 0; p < toy->tensor_count; p++)
        trains |= toy_slice_in(&toy->tensors[p], unit) >= 0 && !is_frozen(toy, p);
    if (!trains)
        return DO_NOTHING;
    return toy->absent && (micro->step * 5 + micro->index * 2 + (uint64_t)unit) % 4 == 1
               ? SAY_NONE
               : HAND_OVER;
}

static bool add_gradients(struct team_rank *rank, const struct toy *toy, zero_unit unit,
                          const zero_micro *micro)
{
    const float factor = (float)zero_loss_scale(rank->z) * (toy->boost > 0 ? toy->boost : 1.0f);
    TEAM_OK(rank, toy->raw ? zero_grad_open_raw(rank->z, unit, NULL)
                           : zero_grad_open(rank->z, unit, NULL));
    for (int p = 0; p < toy->tensor_count; p++) {
        const struct toy_tensor *tensor = &toy->tensors[p];
        const int slice = toy_slice_in(tensor, unit);
        if (slice >= 0 && !is_frozen(toy, p))
            toy_add_gradient(toy, tensor, micro, factor, zero_param_ptr(rank->z, p, slice),
                             zero_grad_ptr(rank->z, p, slice));
    }
    return true;
}

static bool backward_unit(struct team_rank *rank, const struct toy *toy, zero_unit unit,
                          const zero_micro *micro)
{
    const enum way way = way_of(toy, unit, micro);
    TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    if (way == HAND_OVER && !add_gradients(rank, toy, unit, micro))
        return false;
    if (toy->fused)
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    if (way == HAND_OVER)
        TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
    if (way == SAY_NONE)
        TEAM_OK(rank, zero_grad_none(rank->z, unit, NULL));
    if (!toy->fused)
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    return true;
}

bool toy_micro(struct team_rank *rank, const struct toy *toy, int i, const zero_unit *forward,
               const zero_unit *backward)
{
    const int units = toy->unit_count;
    double sums[TOY_UNITS_MAX] = {0}, sum = 0;
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_OK(rank, zero_micro_begin(rank->z, i, &micro));
    for (int u = 0; u < units; u++) {
        const zero_unit unit = forward ? forward[u] : u;
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        sums[unit] = toy_unit_sum(rank, toy, unit);
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    if (toy->fused && i == zero_micro_count(rank->z) - 1)
        TEAM_OK(rank, toy_fuse(rank, toy));
    for (int u = 0; u < units; u++)
        if (!backward_unit(rank, toy, backward ? backward[u] : units - 1 - u, &micro))
            return false;
    for (int u = 0; u < units; u++)
        sum += sums[u];
    TEAM_OK(rank, zero_metric(rank->z, "sum", sum));
    return true;
}

static zero_step_args step_args(const struct toy *toy)
{
    static const zero_hyper hyper[] = {{1e-2, 0.9, 0.95, 1e-8, 0.1}, {3e-2, 0.8, 0.99, 1e-6, 0}};
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = 2;
    args.scale = 1.0 / toy->micro_batches / (toy->boost > 0 ? toy->boost : 1.0);
    args.max_norm = toy->unclipped ? 0 : 1;
    return args;
}

zero_result toy_update_on(const struct team_rank *rank, const struct toy *toy, zero_stream stream)
{
    const zero_step_args args = step_args(toy);
    return zero_step(rank->z, &args, stream);
}

zero_result toy_update(const struct team_rank *rank, const struct toy *toy)
{
    return toy_update_on(rank, toy, NULL);
}

zero_result toy_fuse(const struct team_rank *rank, const struct toy *toy)
{
    const zero_step_args args = step_args(toy);
    return zero_step_in_backward(rank->z, &args);
}

bool toy_train(struct team_rank *rank, const struct toy *toy, int steps)
{
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!toy_micro(rank, toy, i, NULL, NULL))
                return false;
        TEAM_OK(rank, toy_update(rank, toy));
    }
    return true;
}
