#include "job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { UNITS = 4, MOST_GROUPS = 3, MOST_TENSORS = 8 };

struct tensor {
    const char *name;
    uint64_t shape[2];
    int32_t ndim;
    zero_unit unit;
    int32_t slices; // > 1: stacked, slice s in unit + s
    zero_group group;
    bool wide;   // f32, where others are bf16
    bool frozen; // registered so
    bool sparse; // 0, but for some elements: several tiles or blocks of few bytes
};

struct group {
    const char *name, *optimizer;
    zero_decay decay;
    int32_t nesterov;
    zero_hyper hyper; // lr is that of the first step
};

struct job {
    const struct tensor *tensors;
    int32_t tensor_count;
    const struct group *groups;
    int32_t group_count;
    int32_t micro_batches;
    uint64_t overflows; // step with a gradient that is infinite; UINT64_MAX: none
};

static const struct tensor adamw_tensors[] = {
    {"embedding", {37, 40}, 2, 0, 1, 0, false, false, false},
    {"block.weight", {2, 1100}, 2, 1, 2, 0, false, false, false},
    {"block.bias", {2, 9}, 2, 1, 2, 1, true, false, false},
    {"long", {9000}, 1, 3, 1, 1, false, false, true},
    {"norm", {1025}, 1, 3, 1, 1, false, false, false},
};

static const struct group adamw_groups[] = {
    {"matrices", "adamw", ZERO_DECAY_DEFAULT, 0, {2e-2, 0.9, 0.95, 1e-8, 0.1}},
    {"vectors", "adamw", ZERO_DECAY_DEFAULT, 0, {3e-3, 0.8, 0.999, 1e-6, 0.0}},
};

static const struct tensor other_tensors[] = {
    {"embedding", {37, 40}, 2, 0, 1, 0, false, false, false},
    {"table", {301}, 1, 0, 1, 0, false, true, false},
    {"block.weight", {2, 1100}, 2, 1, 2, 1, true, false, false},
    {"block.bias", {2, 9}, 2, 1, 2, 2, true, false, false},
    {"long", {33000}, 1, 3, 1, 0, true, false, true},
    {"norm", {1025}, 1, 3, 1, 2, false, false, false},
};

static const struct group other_groups[] = {
    {"momentum", "sgd", ZERO_DECAY_DEFAULT, 1, {5e-2, 0.9, 0.0, 0.0, 0.01}},
    {"signs", "lion", ZERO_DECAY_DEFAULT, 0, {1e-3, 0.9, 0.99, 0.0, 0.1}},
    {"squares", "adagrad", ZERO_DECAY_DEFAULT, 0, {1e-2, 0.0, 0.0, 1e-10, 0.0}},
};

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof *(array)))

static const struct job jobs[OLD_KINDS] = {
    [OLD_ADAMW] = {adamw_tensors, COUNT(adamw_tensors), adamw_groups, COUNT(adamw_groups), 5, 3},
    [OLD_OTHERS] = {other_tensors, COUNT(other_tensors), other_groups, COUNT(other_groups), 6,
                    UINT64_MAX},
};

const char *const old_names[OLD_KINDS] = {"adamw", "others"};

int old_world(enum old_kind kind)
{
    return kind == OLD_ADAMW ? 2 : 3;
}

void old_configure(enum old_kind kind, zero_config *config)
{
    config->name = old_names[kind]; // part of what a tile file is recognised by
    config->micro_batches = jobs[kind].micro_batches;
    config->seed = kind == OLD_ADAMW ? 0x0123456789abcdefu : 7;
    config->loss_scale = kind == OLD_ADAMW ? "dynamic" : "512";
    if (kind == OLD_ADAMW) {
        config->stage = 2;
        config->loss_scale_init = 1024;
        config->loss_scale_window = 2;
    } else {
        config->stage = 1;
        config->sum_group = 2;
        config->comm_dtype = ZERO_BF16;
    }
}

void old_offload(enum old_kind kind, zero_config *config, const char *directory)
{
    config->offload_optimizer = "nvme";
    config->nvme_dir = directory;
    config->tile_bytes = 65536;
    config->compress = kind == OLD_ADAMW ? "off" : "on";
}

/* ------------------------------------------------------------------ numbers */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// 24 random bits as a number in [-1, 1): a float has it exactly.
static float draw(uint64_t stream, uint64_t tensor, uint64_t slice, uint64_t element)
{
    const uint64_t bits = mix(mix(mix(stream) ^ (tensor << 8 | slice)) ^ element) >> 40;
    return (float)((int32_t)bits - (1 << 23)) * 0x1p-23f;
}

static bool is_zero(const struct tensor *tensor, uint64_t element)
{
    return tensor->sparse && element % 32768 >= 200 && element < 32700;
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest even; of values that are no NaN.
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float get(const struct tensor *tensor, const void *array, uint64_t element)
{
    return tensor->wide ? ((const float *)array)[element]
                        : from_bf16(((const uint16_t *)array)[element]);
}

static void put(const struct tensor *tensor, void *array, uint64_t element, float value)
{
    if (tensor->wide)
        ((float *)array)[element] = value;
    else
        ((uint16_t *)array)[element] = to_bf16(value);
}

static uint64_t numel(const struct tensor *tensor)
{
    uint64_t count = 1;
    for (int32_t d = tensor->slices > 1 ? 1 : 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

/* ------------------------------------------------------------------ registration */

// Where the first values of a tensor come from.
struct first {
    const struct tensor *tensor;
    uint64_t stream;
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    const struct first *from = user;
    const uint64_t unit = (uint64_t)from->tensor->unit;
    (void)name;
    for (uint64_t i = 0; i < count; i++)
        out[i] = is_zero(from->tensor, first + i)
                     ? 0.0f
                     : 0.5f * draw(from->stream, unit, (uint64_t)slice, first + i);
    return ZERO_OK;
}

static zero_result add_group(zero_ctx *z, const struct group *group)
{
    zero_group_desc desc = zero_group_default();
    desc.name = group->name;
    desc.optimizer = group->optimizer;
    desc.decay = group->decay;
    desc.nesterov = group->nesterov;
    return zero_add_group(z, NULL, &desc);
}

static zero_result add_tensor(zero_ctx *z, struct first *first)
{
    const struct tensor *tensor = first->tensor;
    zero_param_desc desc = zero_param_default();
    desc.name = tensor->name;
    desc.dtype = tensor->wide ? ZERO_F32 : ZERO_BF16;
    desc.ndim = tensor->ndim;
    memcpy(desc.shape, tensor->shape, sizeof tensor->shape);
    desc.unit = tensor->unit;
    desc.unit_count = tensor->slices;
    desc.group = tensor->group;
    desc.frozen = tensor->frozen;
    desc.fill = fill;
    desc.fill_user = first;
    return zero_add_param(z, NULL, &desc);
}

// What the blobs are after so many steps.
static struct old_blobs blobs_of(uint64_t step, uint64_t rank)
{
    return (struct old_blobs){{step, mix(step), 1000 * step}, {mix(rank << 32 | step), rank}};
}

zero_result old_commit(zero_ctx *z, enum old_kind kind, bool other_values, struct old_blobs *blobs)
{
    const struct job *job = &jobs[kind];
    struct first first[MOST_TENSORS];
    zero_result r = ZERO_OK;
    *blobs = blobs_of(0, (uint64_t)zero_rank(z));
    for (int32_t g = 0; !r && g < job->group_count; g++)
        r = add_group(z, &job->groups[g]);
    for (int32_t t = 0; !r && t < job->tensor_count; t++) {
        first[t] = (struct first){&job->tensors[t], other_values ? 2 : 1};
        r = add_tensor(z, &first[t]);
    }
    if (!r)
        r = zero_attach(z, "position", blobs->position, sizeof blobs->position, ZERO_GLOBAL);
    if (!r)
        r = zero_attach(z, "random", blobs->random, sizeof blobs->random, ZERO_OF_RANK);
    return r ? r : zero_commit(z);
}

bool old_blobs_are(const struct old_blobs *blobs, uint64_t step, int rank, bool ranks)
{
    const struct old_blobs right = blobs_of(step, (uint64_t)rank);
    return memcmp(blobs->position, right.position, sizeof right.position) == 0 &&
           (!ranks || memcmp(blobs->random, right.random, sizeof right.random) == 0);
}

/* ------------------------------------------------------------------ training */

static void add_gradient(const struct job *job, int32_t t, int32_t slice, const zero_micro *micro,
                         double loss_scale, const void *weights, void *gradient)
{
    const struct tensor *tensor = &job->tensors[t];
    const uint64_t stream = micro->step << 8 | micro->index | 1u << 31;
    for (uint64_t e = 0; e < numel(tensor); e++) {
        if (is_zero(tensor, e))
            continue;
        const float noise = 0.25f * draw(stream, (uint64_t)t, (uint64_t)slice, e);
        const float value = 0.125f * get(tensor, weights, e) + noise; // both products are exact
        put(tensor, gradient, e,
            get(tensor, gradient, e) + value * (float)loss_scale); // a power of two
    }
    if (micro->step == job->overflows && micro->index == 1 && t == 0)
        put(tensor, gradient, 11, INFINITY);
}

static zero_result backward(zero_ctx *z, const struct job *job, const zero_micro *micro,
                            zero_unit unit)
{
    zero_result r = zero_gather(z, unit, NULL);
    if (!r)
        r = zero_grad_open(z, unit, NULL);
    for (int32_t t = 0; !r && t < job->tensor_count; t++) {
        const int32_t slice = unit - job->tensors[t].unit;
        if (slice >= 0 && slice < job->tensors[t].slices && !job->tensors[t].frozen)
            add_gradient(job, t, slice, micro, zero_loss_scale(z), zero_param_ptr(z, t, slice),
                         zero_grad_ptr(z, t, slice));
    }
    if (!r)
        r = zero_grad_done(z, unit, NULL);
    return r ? r : zero_release(z, unit, NULL);
}

static zero_result train_micro(zero_ctx *z, const struct job *job, int32_t i)
{
    zero_micro micro = {.struct_size = sizeof micro};
    zero_result r = zero_micro_begin(z, i, &micro);
    for (zero_unit unit = UNITS - 1; !r && unit >= 0; unit--)
        r = backward(z, job, &micro, unit);
    return r;
}

static zero_result train_step(zero_ctx *z, const struct job *job, uint64_t step)
{
    zero_hyper hyper[MOST_GROUPS];
    zero_step_args args = zero_step_args_default();
    zero_result r = ZERO_OK;
    for (int32_t i = 0; !r && i < zero_micro_count(z); i++)
        r = train_micro(z, job, i);
    for (int32_t g = 0; g < job->group_count; g++) {
        hyper[g] = job->groups[g].hyper;
        hyper[g].lr /= (double)(step + 1);
    }
    args.group_count = job->group_count;
    args.hyper = hyper;
    args.scale = 1.0 / job->micro_batches;
    args.max_norm = 6.0;
    return r ? r : zero_step(z, &args, NULL);
}

zero_result old_train(zero_ctx *z, enum old_kind kind, struct old_blobs *blobs, uint64_t from,
                      uint64_t to)
{
    zero_result r = ZERO_OK;
    for (uint64_t step = from; !r && step < to; step++) {
        *blobs = blobs_of(step + 1, (uint64_t)zero_rank(z)); // recorded with the step
        r = train_step(z, &jobs[kind], step);
    }
    return r;
}

zero_result old_fingerprint(zero_ctx *z, char text[33])
{
    uint8_t digest[16];
    const zero_result r = zero_fingerprint(z, digest);
    for (int i = 0; !r && i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return r;
}
