#include "tests/numerics/synthetic.h"

#include "base/bfloat16.h"
#include "base/kernels/kernels.h"
#include "zero/random.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

enum {
    LARGEST_DATA = sizeof((struct synthetic_memory){{{0}}}.tensors[0]) / sizeof(uint32_t),
    SEED = 11,
    HOSTILE = 0x8040 | 0x4000, // flush to zero, denormals are zero, round upwards
};

#define FIXED_SCALE "1024"
#define OVERFLOWING_SCALE 0x1p13

// What the random numbers of one element are drawn for.
enum purpose { FOR_FIRST, FOR_PATTERN, FOR_NOISE, FOR_INPUT };

const struct synthetic_tensor synthetic_tensors[SYNTHETIC_TENSORS] = {
    {"embedding", 2, {15, 16}, 0, 1, 0, FIRST_FILL, true},
    {"scalar", 0, {0}, 0, 1, 1, FIRST_FILL, false},
    {"block.weight", 2, {3, 1025}, 1, 3, 0, FIRST_DATA, true},
    {"block.bias", 2, {3, 7}, 1, 3, 1, FIRST_ZEROS, false},
    {"head.weight", 1, {1024}, 4, 1, 0, FIRST_DATA, false},
    {"head.norm", 1, {1023}, 4, 1, 1, FIRST_FILL, true},
};

uint64_t synthetic_numel(const struct synthetic_tensor *tensor)
{
    uint64_t numel = 1;
    for (int32_t d = tensor->slices > 1 ? 1 : 0; d < tensor->ndim; d++)
        numel *= tensor->shape[d];
    return numel;
}

zero_dtype synthetic_dtype(const struct synthetic *model, const struct synthetic_tensor *tensor)
{
    if (model->dtype != ZERO_DTYPE_DEFAULT)
        return model->dtype;
    return tensor->narrow ? ZERO_BF16 : ZERO_F32;
}

zero_dtype synthetic_grad_dtype(const struct synthetic *model,
                                const struct synthetic_tensor *tensor)
{
    return model->grad_dtype != ZERO_DTYPE_DEFAULT && tensor->narrow
               ? model->grad_dtype
               : synthetic_dtype(model, tensor);
}

void synthetic_configure(const struct synthetic *model, zero_config *config)
{
    config->micro_batches = model->micro_batches;
    config->sum_group = model->sum_group;
    config->comm_dtype = model->comm_dtype;
    const bool dynamic = model->scaled && model->skips;
    config->loss_scale = dynamic ? "dynamic" : model->scaled ? FIXED_SCALE : "off"; // f16, too
    config->loss_scale_init = dynamic ? (int64_t)synthetic_loss_scale(model) : 0;
    config->loss_scale_window = dynamic ? SYNTHETIC_WINDOW : 0;
    config->nonfinite = model->skips ? ZERO_NONFINITE_SKIP : ZERO_NONFINITE_ERROR;
    config->master = model->no_masters ? "none" : NULL;
    config->moments = model->narrow_moments ? "bf16" : NULL;
}

double synthetic_loss_scale(const struct synthetic *model)
{
    if (!model->scaled)
        return 1.0;
    return model->skips && model->dtype == ZERO_F16 ? OVERFLOWING_SCALE : strtod(FIXED_SCALE, NULL);
}

bool synthetic_passed(const struct synthetic *model, uint64_t step)
{
    return model->passes && step % 3 == 1;
}

// 24 random bits as a number in [-1, 1).
static double draw(enum purpose purpose, uint64_t which, zero_param param, int32_t slice,
                   uint64_t element)
{
    const uint64_t stream = (which << 16) | (uint64_t)param << 12 | (uint64_t)slice << 8 | purpose;
    return (double)(zero_random_bits(SEED, stream, element) >> 40) * 0x1p-23 - 1.0;
}

double synthetic_first_value(zero_param param, int32_t slice, uint64_t element)
{
    if (synthetic_tensors[param].first == FIRST_ZEROS)
        return 0.0;
    return 0.5 * draw(FOR_FIRST, 0, param, slice, element);
}

double synthetic_pattern(zero_param param, int32_t slice, uint64_t element)
{
    return draw(FOR_PATTERN, 0, param, slice, element);
}

static double noise_size(uint64_t step, uint64_t micro)
{
    return ldexp(1.0, (int)(micro * 5 % 12) - 6 - (step % 3 == 2 ? 8 : 0));
}

double synthetic_noise(uint64_t step, uint64_t micro, zero_param param, int32_t slice,
                       uint64_t element)
{
    return noise_size(step, micro) * draw(FOR_NOISE, step << 16 | micro, param, slice, element);
}

double synthetic_input(uint64_t step, uint64_t micro)
{
    return draw(FOR_INPUT, step << 16 | micro, 0, 0, 0);
}

void synthetic_hyper(const struct synthetic *model, uint64_t step,
                     zero_hyper hyper[SYNTHETIC_GROUPS])
{
    const double n = (double)(step + 1);
    hyper[0] = (zero_hyper){1e-2 / n, 0.9, 0.95, 1e-8, model->undecayed ? 0.0 : 0.1};
    hyper[1] = (zero_hyper){3e-3 * n, 0.8, 0.999, 1e-6, 0.0};
}

zero_group_desc synthetic_group(const struct synthetic *model, zero_group group)
{
    static const struct {
        const char *name;
        zero_decay other;
    } optimizers[SYNTHETIC_OPTIMIZERS] = {
        [SYNTHETIC_ADAMW] = {"adamw", ZERO_DECAY_L2},
        [SYNTHETIC_ADAM] = {"adam", ZERO_DECAY_DECOUPLED},
        [SYNTHETIC_SGD] = {"sgd", ZERO_DECAY_DECOUPLED},
        [SYNTHETIC_NESTEROV] = {"sgd", ZERO_DECAY_DECOUPLED},
        [SYNTHETIC_LION] = {"lion", ZERO_DECAY_L2},
        [SYNTHETIC_ADAGRAD] = {"adagrad", ZERO_DECAY_DECOUPLED},
    };
    const enum synthetic_optimizer optimizer = model->optimizer[group];
    zero_group_desc desc = zero_group_default();
    desc.optimizer = optimizers[optimizer].name;
    desc.nesterov = optimizer == SYNTHETIC_NESTEROV;
    if (model->other_decay)
        desc.decay = optimizers[optimizer].other;
    return desc;
}

double synthetic_max_norm(void)
{
    return 2.0;
}

/* ------------------------------------------------------------------ what is drawn again and again
 */

// All runs of a sweep draw the same numbers: those of the first steps are drawn once in a process.
// A float holds them.
enum { KEPT_STEPS = 16, KEPT_MICROS = 8 };
static _Atomic(float *) kept_patterns, kept_noise[KEPT_STEPS][KEPT_MICROS];

static void draw_slice(enum purpose purpose, uint64_t which, zero_param param, int32_t slice,
                       float *out)
{
    const uint64_t numel = synthetic_numel(&synthetic_tensors[param]);
    for (uint64_t e = 0; e < numel; e++)
        out[e] = (float)draw(purpose, which, param, slice, e);
}

// Where a slice begins among the elements of all tensors; how many elements these have.
static uint64_t place_of(zero_param param, int32_t slice)
{
    uint64_t place = 0;
    for (zero_param p = 0; p < param; p++)
        place += synthetic_numel(&synthetic_tensors[p]) * (uint64_t)synthetic_tensors[p].slices;
    return slice ? place + synthetic_numel(&synthetic_tensors[param]) * (uint64_t)slice : place;
}

static float *draw_all(enum purpose purpose, uint64_t which)
{
    float *all = malloc(place_of(SYNTHETIC_TENSORS, 0) * sizeof *all);
    if (!all)
        abort();
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++)
        for (int32_t slice = 0; slice < synthetic_tensors[p].slices; slice++)
            draw_slice(purpose, which, p, slice, all + place_of(p, slice));
    return all;
}

// The numbers of a slice, which are kept, or else drawn into `room`.
static const float *numbers_of(enum purpose purpose, uint64_t step, uint64_t micro,
                               zero_param param, int32_t slice, float room[LARGEST_DATA])
{
    const uint64_t which = step << 16 | micro;
    if (purpose == FOR_NOISE && (step >= KEPT_STEPS || micro >= KEPT_MICROS)) {
        draw_slice(purpose, which, param, slice, room);
        return room;
    }
    _Atomic(float *) *kept = purpose == FOR_NOISE ? &kept_noise[step][micro] : &kept_patterns;
    float *all = atomic_load(kept);
    if (!all) {
        float *mine = draw_all(purpose, which);
        if (atomic_compare_exchange_strong(kept, &all, mine))
            all = mine;
        else
            free(mine);
    }
    return all + place_of(param, slice);
}

/* ------------------------------------------------------------------ elements */

float synthetic_element(zero_dtype dtype, const void *array, uint64_t element)
{
    if (dtype == ZERO_F32)
        return ((const float *)array)[element];
    const uint16_t half = ((const uint16_t *)array)[element];
    return dtype == ZERO_BF16 ? base_f32_from_bf16(half) : base_f32_from_f16(half);
}

static void put(zero_dtype dtype, void *array, uint64_t element, float value)
{
    if (dtype == ZERO_F32)
        ((float *)array)[element] = value;
    else
        ((uint16_t *)array)[element] =
            dtype == ZERO_BF16 ? base_bf16_from_f32(value) : base_f16_from_f32(value);
}

float synthetic_round(zero_dtype dtype, float value)
{
    float room;
    put(dtype, &room, 0, value);
    return synthetic_element(dtype, &room, 0);
}

/* ------------------------------------------------------------------ registration */

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    zero_param param = 0;
    while (strcmp(synthetic_tensors[param].name, name) != 0)
        param++;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)synthetic_first_value(param, slice, first + i);
    return ZERO_OK;
}

// The first values of all tensors that are given as arrays.
struct data {
    float wide[SYNTHETIC_TENSORS][LARGEST_DATA];
    uint16_t half[SYNTHETIC_TENSORS][LARGEST_DATA];
};

static zero_result add_tensor(zero_ctx *z, const struct synthetic *model, zero_param param,
                              struct data *data)
{
    const struct synthetic_tensor *tensor = &synthetic_tensors[param];
    zero_param_desc desc = zero_param_default();
    desc.name = tensor->name;
    desc.dtype = synthetic_dtype(model, tensor);
    desc.ndim = tensor->ndim;
    memcpy(desc.shape, tensor->shape, sizeof tensor->shape);
    desc.unit = tensor->unit;
    desc.unit_count = tensor->slices;
    desc.group = tensor->group;
    if (tensor->first == FIRST_FILL)
        desc.fill = fill;
    if (tensor->first == FIRST_DATA) {
        const uint64_t numel = synthetic_numel(tensor);
        for (uint64_t i = 0; i < numel * (uint64_t)tensor->slices; i++) {
            data->wide[param][i] =
                (float)synthetic_first_value(param, (int32_t)(i / numel), i % numel);
            put(desc.dtype, desc.dtype == ZERO_F32 ? (void *)data->wide[param] : data->half[param],
                i, data->wide[param][i]);
        }
        desc.data = desc.dtype == ZERO_F32 ? (void *)data->wide[param] : data->half[param];
    }
    desc.frozen = model->frozen >> param & 1;
    if (!desc.frozen)
        desc.grad_dtype = synthetic_grad_dtype(model, tensor);
    if (model->borrow)
        desc.borrow = model->borrow->tensors[param];
    if (model->own && !desc.frozen)
        desc.grad = model->own->tensors[param];
    return zero_add_param(z, NULL, &desc);
}

zero_result synthetic_commit(zero_ctx *z, const struct synthetic *model)
{
    struct data data;
    zero_result result = ZERO_OK;
    for (zero_group g = 0; g < SYNTHETIC_GROUPS && result == ZERO_OK; g++) {
        const zero_group_desc desc = synthetic_group(model, g);
        result = zero_add_group(z, NULL, &desc);
    }
    for (zero_param p = 0; p < SYNTHETIC_TENSORS && result == ZERO_OK; p++)
        result = add_tensor(z, model, p, &data);
    return result == ZERO_OK ? zero_commit(z) : result;
}

/* ------------------------------------------------------------------ training */

// One micro-batch under way.
struct pass {
    zero_ctx *z;
    const struct synthetic *model;
    zero_micro micro;
    double h, loss;
    zero_result result; // the first that was not ZERO_OK
};

static bool good(struct pass *pass, zero_result result)
{
    if (pass->result == ZERO_OK)
        pass->result = result;
    return pass->result == ZERO_OK;
}

// The slice a tensor has in a unit; false if it has none.
static bool in_unit(const struct synthetic_tensor *tensor, zero_unit unit, int32_t *slice)
{
    *slice = unit - tensor->unit;
    return *slice >= 0 && *slice < tensor->slices;
}

// h = h / 2 + the mean of w * pattern, tensor by tensor.
static void forward_unit(struct pass *pass, zero_unit unit)
{
    int32_t slice;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const struct synthetic_tensor *tensor = &synthetic_tensors[p];
        if (!in_unit(tensor, unit, &slice))
            continue;
        const zero_dtype dtype = synthetic_dtype(pass->model, tensor);
        const void *weights = zero_param_ptr(pass->z, p, slice);
        const float *pattern = numbers_of(FOR_PATTERN, 0, 0, p, slice, NULL);
        const uint64_t numel = synthetic_numel(tensor);
        double sum = 0.0;
        for (uint64_t e = 0; e < numel; e++)
            sum += (double)synthetic_element(dtype, weights, e) * (double)pattern[e];
        pass->h = 0.5 * pass->h + sum / (double)numel;
    }
}

static void put_faults(const struct pass *pass, zero_param param, int32_t slice, zero_dtype dtype,
                       void *gradient)
{
    for (int i = 0; i < SYNTHETIC_FAULTS; i++) {
        const struct synthetic_fault *fault = &pass->model->faults[i];
        if (fault->on && fault->step == pass->micro.step && fault->micro == pass->micro.index &&
            fault->param == param && fault->slice == slice)
            put(dtype, gradient, fault->element, fault->value);
    }
}

static bool is_frozen(const struct pass *pass, zero_param param)
{
    return pass->model->frozen >> param & 1;
}

static bool is_paused(const struct pass *pass, zero_param param)
{
    return pass->micro.step >= SYNTHETIC_PAUSE && pass->micro.step < SYNTHETIC_RESUME &&
           synthetic_tensors[param].group < pass->model->paused;
}

// Adds a part of the gradient to what the buffer holds.
static void backward_tensor(const struct pass *pass, zero_param param, int32_t slice, double part)
{
    const struct synthetic_tensor *tensor = &synthetic_tensors[param];
    const zero_dtype dtype = synthetic_dtype(pass->model, tensor);
    const zero_dtype grad_dtype = synthetic_grad_dtype(pass->model, tensor);
    const void *weights = zero_param_ptr(pass->z, param, slice);
    void *gradient = zero_grad_ptr(pass->z, param, slice);
    const uint64_t step = pass->micro.step, micro = pass->micro.index;
    float room[LARGEST_DATA];
    const float *pattern = numbers_of(FOR_PATTERN, 0, 0, param, slice, NULL);
    const float *noise = numbers_of(FOR_NOISE, step, micro, param, slice, room);
    const double size = noise_size(step, micro);
    const double scaled_part = part * zero_loss_scale(pass->z);
    const bool used = pass->micro.counts && !is_paused(pass, param);
    for (uint64_t e = 0; e < synthetic_numel(tensor); e++) {
        const double w = (double)synthetic_element(dtype, weights, e);
        const double value =
            0.1 * w + 0.05 * pass->h * (double)pattern[e] + size * (double)noise[e];
        const float before = synthetic_element(grad_dtype, gradient, e);
        put(grad_dtype, gradient, e, used ? before + (float)(scaled_part * value) : NAN);
    }
    put_faults(pass, param, slice, grad_dtype, gradient);
}

static void backward_unit(struct pass *pass, zero_unit unit, double part)
{
    int32_t slice;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++)
        if (in_unit(&synthetic_tensors[p], unit, &slice) && !is_frozen(pass, p))
            backward_tensor(pass, p, slice, part);
    base_fp_leave(&saved);
}

// What is done about a unit's gradient.
enum way { HAND_OVER, HAND_ZEROS_OVER, SAY_NONE, DO_NOTHING };

static enum way way_of(const struct pass *pass, zero_unit unit)
{
    static const enum way ignored[] = {HAND_OVER, SAY_NONE, DO_NOTHING};
    const uint64_t step = pass->micro.step, micro = pass->micro.index;
    bool has = false, needed = false;
    int32_t slice;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++)
        if (in_unit(&synthetic_tensors[p], unit, &slice) && !is_frozen(pass, p)) {
            has = true;
            needed = needed || !is_paused(pass, p);
        }
    if (!has)
        return DO_NOTHING;
    if (!needed)
        return ignored[step % 3];
    if (pass->model->absent && (step * 5 + micro * 2 + (uint64_t)unit) % 4 == 1)
        return pass->model->none ? SAY_NONE : HAND_ZEROS_OVER;
    return HAND_OVER;
}

static void forward(struct pass *pass, double input)
{
    pass->h = input;
    struct base_fp_state saved;
    for (zero_unit unit = 0; unit < SYNTHETIC_UNITS; unit++) {
        if (!good(pass, zero_gather(pass->z, unit, NULL)))
            return;
        base_fp_enter(&saved);
        forward_unit(pass, unit);
        pass->loss = pass->h * pass->h;
        base_fp_leave(&saved);
        // A tied unit is used again at the other end and stays gathered all the while.
        if (unit > 0 || !pass->model->tied)
            good(pass, zero_release(pass->z, unit, NULL));
    }
}

// Gathers a unit and opens its gradient, unless they are open from the other end on.
static bool open_unit(struct pass *pass, zero_unit unit, enum way way)
{
    if (pass->model->tied && unit == 0)
        return true;
    if (!good(pass, zero_gather(pass->z, unit, NULL)))
        return false;
    return way == SAY_NONE || way == DO_NOTHING || good(pass, zero_grad_open(pass->z, unit, NULL));
}

static void close_unit(struct pass *pass, zero_unit unit, enum way way)
{
    if (pass->model->fused)
        good(pass, zero_release(pass->z, unit, NULL));
    if (way == SAY_NONE)
        good(pass, zero_grad_none(pass->z, unit, NULL));
    else if (way != DO_NOTHING)
        good(pass, zero_grad_done(pass->z, unit, NULL));
    if (!pass->model->fused)
        good(pass, zero_release(pass->z, unit, NULL));
}

// Three quarters of the tied unit's gradient come from where it is used last, a quarter from where
// it is used first.
static void backward(struct pass *pass)
{
    const bool tied = pass->model->tied;
    const enum way first = way_of(pass, 0);
    if (tied && (first == HAND_OVER || first == HAND_ZEROS_OVER)) {
        if (!good(pass, zero_grad_open(pass->z, 0, NULL)))
            return;
        if (first == HAND_OVER)
            backward_unit(pass, 0, 0.75);
    }
    for (zero_unit unit = SYNTHETIC_UNITS - 1; unit >= 0; unit--) {
        const enum way way = way_of(pass, unit);
        if (!open_unit(pass, unit, way))
            return;
        if (way == HAND_OVER && unit == 0 && !tied)
            backward_unit(pass, 0, 0.75);
        if (way == HAND_OVER)
            backward_unit(pass, unit, unit == 0 ? 0.25 : 1.0);
        close_unit(pass, unit, way);
    }
}

// Arguments of a step; `hyper` has room for every group's.
static zero_step_args step_args(const struct synthetic *model, uint64_t step, zero_hyper *hyper)
{
    zero_step_args args = zero_step_args_default();
    synthetic_hyper(model, step, hyper);
    args.group_count = SYNTHETIC_GROUPS;
    args.hyper = hyper;
    args.scale = 1.0 / model->micro_batches;
    args.max_norm = model->unclipped ? 0.0 : synthetic_max_norm();
    return args;
}

static zero_result fuse(struct pass *pass)
{
    zero_hyper hyper[SYNTHETIC_GROUPS];
    struct base_fp_state saved;
    base_fp_enter(&saved);
    const zero_step_args args = step_args(pass->model, pass->micro.step, hyper);
    base_fp_leave(&saved);
    return zero_step_in_backward(pass->z, &args);
}

static void give_metrics(struct pass *pass)
{
    const bool counts = pass->micro.counts;
    good(pass, zero_metric(pass->z, "loss", counts ? pass->loss : (double)NAN));
    good(pass, zero_metric(pass->z, "index", counts ? (double)pass->micro.index : (double)NAN));
}

zero_result synthetic_micro(zero_ctx *z, const struct synthetic *model, int32_t i)
{
    struct pass pass = {.z = z, .model = model, .micro = {.struct_size = sizeof pass.micro}};
    if (!good(&pass, zero_micro_begin(z, i, &pass.micro)))
        return pass.result;
    forward(&pass, synthetic_input(pass.micro.step, pass.micro.index));
    give_metrics(&pass);
    if (model->fused && i == zero_micro_count(z) - 1 && !synthetic_passed(model, pass.micro.step))
        good(&pass, fuse(&pass));
    if (pass.result == ZERO_OK)
        backward(&pass);
    return pass.result;
}

zero_result synthetic_evaluate(zero_ctx *z, const struct synthetic *model, int32_t count)
{
    struct pass pass = {.z = z, .model = model, .micro = {.struct_size = sizeof pass.micro}};
    good(&pass, zero_eval_begin(z, count));
    for (int32_t i = 0; pass.result == ZERO_OK && i < zero_micro_count(z); i++) {
        good(&pass, zero_micro_begin(z, i, &pass.micro));
        forward(&pass, synthetic_input(SYNTHETIC_HELD_OUT, pass.micro.index));
        give_metrics(&pass);
        if (model->tied)
            good(&pass, zero_release(z, 0, NULL));
    }
    return good(&pass, pass.result) ? zero_eval_end(z) : pass.result;
}

// Freezes groups for some of the steps.
static zero_result pause(zero_ctx *z, const struct synthetic *model, uint64_t step)
{
    zero_result result = ZERO_OK;
    if (step == SYNTHETIC_PAUSE || step == SYNTHETIC_RESUME)
        for (zero_group g = 0; g < model->paused && result == ZERO_OK; g++)
            result = zero_set_frozen(z, g, step == SYNTHETIC_PAUSE);
    return result;
}

zero_result synthetic_step(zero_ctx *z, const struct synthetic *model, uint64_t step)
{
    zero_hyper hyper[SYNTHETIC_GROUPS];
    const zero_step_args args = step_args(model, step, hyper);
    const unsigned environment = _mm_getcsr();
    if (model->hostile)
        _mm_setcsr(environment | HOSTILE);
    zero_result result = pause(z, model, step);
    for (int32_t i = 0; i < zero_micro_count(z) && result == ZERO_OK; i++)
        result = synthetic_micro(z, model, i);
    if (result == ZERO_OK && synthetic_passed(model, step))
        result = zero_skip_step(z);
    else if (result == ZERO_OK)
        result = zero_step(z, model->fused && step % 2 ? NULL : &args, NULL);
    _mm_setcsr(environment);
    return result;
}

static bool same_numerics(const struct synthetic *a, const struct synthetic *b)
{
    return a->dtype == b->dtype && a->micro_batches == b->micro_batches &&
           a->sum_group == b->sum_group && a->grad_dtype == b->grad_dtype &&
           a->comm_dtype == b->comm_dtype && a->no_masters == b->no_masters &&
           a->narrow_moments == b->narrow_moments && a->absent == b->absent &&
           a->frozen == b->frozen && a->paused == b->paused && a->unclipped == b->unclipped &&
           memcmp(a->optimizer, b->optimizer, sizeof a->optimizer) == 0 &&
           a->undecayed == b->undecayed && a->other_decay == b->other_decay &&
           a->scaled == b->scaled && a->skips == b->skips && a->passes == b->passes;
}

const char *synthetic_golden(const struct synthetic *model)
{
    static const struct {
        struct synthetic model;
        const char *digest;
    } golden[] = {
        {{.dtype = ZERO_F32, .micro_batches = 5}, "b565baff1aa5598ff005f6bf599b8036"},
        {{.dtype = ZERO_F32, .micro_batches = 8}, "e60733077acd6b5467d387faac726b9b"},
        {{.dtype = ZERO_BF16, .micro_batches = 5}, "ba0e51eabf715265a93f27e025c60b03"},
        {{.dtype = ZERO_BF16, .micro_batches = 8}, "2c574252ae4c3a82be8a3e8a82ff27ba"},
        {{.micro_batches = 8}, "d8d31b1160da8f2043f016de9b054ebf"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2},
         "4b5c46c2946901e2cf4fe49b88f96a6b"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 8},
         "6835dca58758357311dd5720660be47b"},
        {{.dtype = ZERO_BF16, .micro_batches = 5, .sum_group = 4},
         "8b3eff8440d6e015fd6f008f89e1ab81"},
        {{.micro_batches = 8, .sum_group = 4}, "8b1d03326b45357d273599c4fc61092c"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .absent = true},
         "07f7fc7d3b6f9de1825f61fc382b00b7"},
        {{.micro_batches = 8, .paused = 1}, "5cf135c2a6c46831e56e4f7b59b2468e"},
        {{.dtype = ZERO_BF16, .micro_batches = 5, .absent = true, .paused = 2},
         "9eb53b3d0ef9d58a6a40c8fc8a821424"},
        {{.micro_batches = 8, .frozen = SYNTHETIC_TAIL | SYNTHETIC_TIED},
         "324cbfbb301802a6e5b7dcb885b07dc2"},
        {{.dtype = ZERO_BF16, .micro_batches = 5, .frozen = SYNTHETIC_BIASES, .paused = 1},
         "74781213223700fda849acf5606aa1cf"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .unclipped = true},
         "3ad1355126b7deb2ad981d58bf819a87"},
        {{.dtype = ZERO_BF16, .micro_batches = 8, .unclipped = true},
         "48f5535f0db2a514c4e85bb42381bca7"},
        {{.micro_batches = 4, .unclipped = true}, "3a1b0e5689b636779a3d5843ec74f7ff"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2, .unclipped = true},
         "a5632970befbf182e60b13b9e3fe58f3"},
        {{.micro_batches = 8, .sum_group = 4, .unclipped = true},
         "6891d44151fd80ed0cbd02c3cab02ec6"},
        {{.dtype = ZERO_F16, .micro_batches = 5}, "1979a5fec42dfeabf10aa6ec217d5576"},
        {{.dtype = ZERO_BF16, .micro_batches = 5, .grad_dtype = ZERO_F32},
         "8e63f44ea4d9cc58a2da6917dfccb600"},
        {{.dtype = ZERO_BF16, .micro_batches = 8, .grad_dtype = ZERO_F32, .comm_dtype = ZERO_BF16},
         "a4a3996561eed531d2379ebabe375259"},
        {{.micro_batches = 5, .sum_group = 2, .comm_dtype = ZERO_F16},
         "20395b4d14e4929a2204ac371daf759b"},
        {{.dtype = ZERO_BF16, .micro_batches = 5, .no_masters = true},
         "9f7bca7c1a541d106a24cca037dea8f3"},
        {{.dtype = ZERO_F16, .micro_batches = 8, .no_masters = true, .narrow_moments = true},
         "d44983f45012a46521129013be68179e"},
        {{.dtype = ZERO_F32, .micro_batches = 5, .narrow_moments = true},
         "6002afea33354bcf6660faedbcb73781"},
        {{.dtype = ZERO_F16,
          .micro_batches = 5,
          .sum_group = 2,
          .grad_dtype = ZERO_F32,
          .comm_dtype = ZERO_BF16,
          .no_masters = true,
          .narrow_moments = true},
         "fb03dc6afd502bd4ba6b923ae61ac565"},
        {{.dtype = ZERO_F16,
          .micro_batches = 5,
          .grad_dtype = ZERO_BF16,
          .no_masters = true,
          .narrow_moments = true,
          .unclipped = true},
         "e8f31a1154b8cc7851a541ce1a9a8596"},
    };
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        if (same_numerics(&golden[i].model, model))
            return golden[i].digest;
    return NULL;
}
