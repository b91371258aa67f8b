#include "tests/numerics/synthetic_reference.h"

#include "tests/numerics/rounding_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// What is computed in fp64 by either side is off by less than this, relative.
static const long double lost = 0x1p-45L;

static long double rounded(zero_dtype dtype, long double value)
{
    return synthetic_round(dtype, (float)value);
}

// A value that is rounded to `value`, and at the ends of its bound to `below` and `above`. Infinite
// if it overflows, and with an infinite error if only one of them does.
static struct reference_value between(long double below, long double value, long double above)
{
    if (isinf(below) && below == above)
        return (struct reference_value){value, 0};
    return (struct reference_value){value, fmaxl(above - value, value - below)};
}

// Rounded to 16 bits, to nearest.
static struct reference_value narrowed(zero_dtype dtype, struct reference_value x)
{
    if (dtype == ZERO_F32 || !isfinite(x.value))
        return x;
    return between(rounded(dtype, x.value - x.error), rounded(dtype, x.value),
                   rounded(dtype, x.value + x.error));
}

static struct reference_value stored(zero_dtype dtype, uint64_t key, uint64_t element,
                                     struct reference_value x)
{
    return between(rounding_stochastic(dtype, key, element, x.value - x.error),
                   rounding_stochastic(dtype, key, element, x.value),
                   rounding_stochastic(dtype, key, element, x.value + x.error));
}

static zero_dtype dtype_of(const struct synthetic_reference *reference, zero_param param)
{
    return synthetic_dtype(reference->model, &synthetic_tensors[param]);
}

// Whether a tensor has no master.
static bool bare(const struct synthetic_reference *reference, zero_param param)
{
    return reference->model->no_masters && dtype_of(reference, param) != ZERO_F32;
}

static size_t place(zero_param param, int32_t slice, uint64_t element)
{
    return (size_t)slice * synthetic_numel(&synthetic_tensors[param]) + element;
}

const struct reference_element *
synthetic_reference_element(const struct synthetic_reference *reference, zero_param param,
                            int32_t slice, uint64_t element)
{
    return &reference->elements[param][place(param, slice, element)];
}

struct reference_value synthetic_reference_work(const struct synthetic_reference *reference,
                                                zero_param param, int32_t slice, uint64_t element)
{
    return reference->work[param][place(param, slice, element)];
}

void synthetic_reference_adopt(struct synthetic_reference *reference, zero_param param,
                               int32_t slice, uint64_t element, float work)
{
    const size_t i = place(param, slice, element);
    reference->work[param][i] = (struct reference_value){work, 0};
    if (bare(reference, param))
        reference->elements[param][i].weight = reference->work[param][i];
}

void synthetic_reference_adopt_moment(struct synthetic_reference *reference, zero_param param,
                                      int32_t slice, uint64_t element, int which, float moment)
{
    struct reference_element *whole = &reference->elements[param][place(param, slice, element)];
    *(which == 0 ? &whole->m : &whole->v) = (struct reference_value){moment, 0};
}

// Working copies of the new masters.
static void publish(struct synthetic_reference *reference)
{
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const size_t count = place(p, synthetic_tensors[p].slices, 0);
        for (size_t i = 0; i < count; i++) {
            const struct reference_value weight = reference->elements[p][i].weight;
            reference->work[p][i] = narrowed(dtype_of(reference, p), weight);
        }
    }
}

bool synthetic_reference_init(struct synthetic_reference *reference, const struct synthetic *model)
{
    *reference = (struct synthetic_reference){
        .model = model,
        .loss_scale = synthetic_loss_scale(model),
    };
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const struct synthetic_tensor *tensor = &synthetic_tensors[p];
        const size_t count = place(p, tensor->slices, 0);
        reference->elements[p] = calloc(count, sizeof *reference->elements[p]);
        reference->sums[p] = calloc(count, sizeof *reference->sums[p]);
        reference->work[p] = calloc(count, sizeof *reference->work[p]);
        if (!reference->elements[p] || !reference->sums[p] || !reference->work[p]) {
            synthetic_reference_free(reference);
            return false;
        }
        for (size_t i = 0; i < count; i++) {
            const uint64_t numel = synthetic_numel(tensor);
            const double first = synthetic_first_value(p, (int32_t)(i / numel), i % numel);
            // An array has the type of the working copy, a fill function gives fp32.
            const bool narrow = tensor->first == FIRST_DATA || bare(reference, p);
            reference->elements[p][i].weight.value =
                narrow ? rounded(dtype_of(reference, p), first) : first;
        }
    }
    publish(reference);
    return true;
}

void synthetic_reference_free(struct synthetic_reference *reference)
{
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        free(reference->elements[p]);
        free(reference->sums[p]);
        free(reference->work[p]);
    }
    memset(reference, 0, sizeof *reference);
}

// The number that goes through the units, in their order.
static struct reference_value forward(const struct synthetic_reference *reference, uint64_t micro)
{
    struct reference_value h = {synthetic_input(reference->step, micro), 0};
    for (zero_unit unit = 0; unit < SYNTHETIC_UNITS; unit++) {
        for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
            const struct synthetic_tensor *tensor = &synthetic_tensors[p];
            const int32_t slice = unit - tensor->unit;
            if (slice < 0 || slice >= tensor->slices)
                continue;
            const uint64_t numel = synthetic_numel(tensor);
            struct reference_value sum = {0, 0};
            for (uint64_t e = 0; e < numel; e++) {
                const struct reference_value w = synthetic_reference_work(reference, p, slice, e);
                const double pattern = synthetic_pattern(p, slice, e);
                sum.value += w.value * pattern;
                sum.error += w.error * fabs(pattern) + lost * fabsl(w.value);
            }
            h.value = h.value / 2 + sum.value / (long double)numel;
            h.error = h.error / 2 + sum.error / (long double)numel;
        }
    }
    return h;
}

// A gradient as its owner receives it.
static struct reference_value travelling(const struct synthetic_reference *reference,
                                         struct reference_value gradient)
{
    const zero_dtype dtype = reference->model->comm_dtype;
    return dtype == ZERO_DTYPE_DEFAULT ? gradient : narrowed(dtype, gradient);
}

static bool is_bad(const struct synthetic_reference *reference, uint64_t micro, zero_param param,
                   int32_t slice, uint64_t element)
{
    for (int i = 0; i < SYNTHETIC_FAULTS; i++) {
        const struct synthetic_fault *fault = &reference->model->faults[i];
        if (fault->on && fault->step == reference->step && fault->micro == micro &&
            fault->param == param && fault->slice == slice && fault->element == element)
            return true;
    }
    return false;
}

// The gradient of one micro-batch and one element, with the loss scale, before any rounding.
static struct reference_value gradient(const struct synthetic_reference *reference, uint64_t micro,
                                       struct reference_value h, zero_param param, int32_t slice,
                                       uint64_t element)
{
    const struct reference_value w = synthetic_reference_work(reference, param, slice, element);
    const double pattern = synthetic_pattern(param, slice, element);
    const double noise = synthetic_noise(reference->step, micro, param, slice, element);
    const long double value = 0.1L * w.value + 0.05L * h.value * pattern + noise;
    const long double error =
        0.1L * w.error + 0.05L * h.error * fabs(pattern) + lost * (fabsl(value) + 1);
    return (struct reference_value){reference->loss_scale * value, reference->loss_scale * error};
}

// What one micro-batch contributes to one element, as it is sent.
static struct reference_value contribution(const struct synthetic_reference *reference,
                                           uint64_t micro, struct reference_value h,
                                           zero_param param, int32_t slice, uint64_t element)
{
    const zero_dtype dtype = synthetic_grad_dtype(reference->model, &synthetic_tensors[param]);
    if (is_bad(reference, micro, param, slice, element))
        return (struct reference_value){INFINITY, 0};
    const struct reference_value g = gradient(reference, micro, h, param, slice, element);
    if (synthetic_tensors[param].unit > 0)
        return travelling(reference, narrowed(dtype, reference_round(g.value, g.error)));
    const struct reference_value first =
        narrowed(dtype, reference_round(0.75L * g.value, 0.75L * g.error));
    if (isinf(first.value))
        return first;
    const struct reference_value second = reference_round(0.25L * g.value, 0.25L * g.error);
    const struct reference_value both =
        reference_round(first.value + second.value, first.error + second.error);
    return travelling(reference, narrowed(dtype, both));
}

static void add_slice(struct synthetic_reference *reference, uint64_t micro,
                      struct reference_value h, zero_param p, int32_t slice)
{
    for (uint64_t e = 0; e < synthetic_numel(&synthetic_tensors[p]); e++) {
        const struct reference_value c = contribution(reference, micro, h, p, slice, e);
        struct reference_value *sum = &reference->sums[p][place(p, slice, e)];
        if (!isfinite(c.error))
            reference->doubtful = true;
        if (!isfinite(c.value))
            reference->finite = false;
        *sum = micro == 0 ? c : reference_round(sum->value + c.value, sum->error + c.error);
    }
}

static void add_micro(struct synthetic_reference *reference, uint64_t micro)
{
    const struct reference_value h = forward(reference, micro);
    reference->loss.value += h.value * h.value;
    reference->loss.error += h.error * (2 * fabsl(h.value) + h.error) + lost;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++)
        for (int32_t slice = 0; slice < synthetic_tensors[p].slices; slice++)
            add_slice(reference, micro, h, p, slice);
}

// The 2-norm of all sums times scale, and the factor that brings it down to the largest one.
static void measure(struct synthetic_reference *reference, long double scale, bool clipped)
{
    long double squares = 0, errors = 0;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const size_t count = place(p, synthetic_tensors[p].slices, 0);
        for (size_t i = 0; i < count; i++) {
            const struct reference_value sum = reference->sums[p][i];
            squares += sum.value * sum.value;
            errors += sum.error * sum.error;
        }
    }
    const long double norm = scale * sqrtl(squares);
    reference->norm = (struct reference_value){norm, scale * sqrtl(errors) + lost * norm};
    reference->clip = (struct reference_value){1, 0};
    if (!clipped)
        return;
    const long double most = synthetic_max_norm();
    const long double smaller = norm - reference->norm.error + 1e-6L;
    reference->clip.value = fminl(1, most / (norm + 1e-6L));
    reference->clip.error =
        fminl(1, most / smaller) - fminl(1, most / (norm + reference->norm.error + 1e-6L)) + lost;
}

static struct reference_optimizer optimizer_of(const struct synthetic *model, zero_group group)
{
    static const struct reference_optimizer optimizers[SYNTHETIC_OPTIMIZERS] = {
        [SYNTHETIC_ADAMW] = {.formula = REFERENCE_ADAM},
        [SYNTHETIC_ADAM] = {.formula = REFERENCE_ADAM, .l2 = true},
        [SYNTHETIC_SGD] = {.formula = REFERENCE_SGD, .l2 = true},
        [SYNTHETIC_NESTEROV] = {.formula = REFERENCE_SGD, .l2 = true, .nesterov = true},
        [SYNTHETIC_LION] = {.formula = REFERENCE_LION},
        [SYNTHETIC_ADAGRAD] = {.formula = REFERENCE_ADAGRAD, .l2 = true},
    };
    struct reference_optimizer optimizer = optimizers[model->optimizer[group]];
    optimizer.l2 ^= model->other_decay;
    return optimizer;
}

// What of an element is kept with 16 bits.
static void store(const struct synthetic_reference *reference, zero_param p, int32_t slice,
                  uint64_t e, struct reference_element *element)
{
    const char *name = synthetic_tensors[p].name;
    uint64_t keys[3];
    for (uint64_t k = 0; k < 3; k++)
        keys[k] = rounding_key(0, name, slice, reference->updates, ROUNDED_WEIGHT + k);
    if (bare(reference, p))
        element->weight = stored(dtype_of(reference, p), keys[ROUNDED_WEIGHT], e, element->weight);
    if (reference->model->narrow_moments) {
        element->m = stored(ZERO_BF16, keys[ROUNDED_MOMENT], e, element->m);
        element->v = stored(ZERO_BF16, keys[ROUNDED_MOMENT + 1], e, element->v);
    }
}

static void update(struct synthetic_reference *reference, long double scale)
{
    zero_hyper hyper[SYNTHETIC_GROUPS];
    synthetic_hyper(reference->model, reference->step, hyper);
    const struct reference_value factor =
        reference_round(scale * reference->clip.value, scale * (reference->clip.error + lost));
    reference->updates++;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const zero_group group = synthetic_tensors[p].group;
        const struct reference_optimizer optimizer = optimizer_of(reference->model, group);
        const uint64_t numel = synthetic_numel(&synthetic_tensors[p]);
        for (size_t i = 0; i < numel * (size_t)synthetic_tensors[p].slices; i++) {
            struct reference_element *element = &reference->elements[p][i];
            reference_update(element, &optimizer, &hyper[group], reference->updates,
                             reference->sums[p][i], factor);
            store(reference, p, (int32_t)(i / numel), i % numel, element);
        }
    }
}

// A dynamic loss scale is halved by a step that is not finite, doubled by a row of clean ones.
static void next_scale(struct synthetic_reference *reference)
{
    if (!reference->model->scaled || !reference->model->skips)
        return;
    reference->clean = reference->finite ? reference->clean + 1 : 0;
    if (!reference->finite)
        reference->loss_scale /= 2;
    if (reference->clean == SYNTHETIC_WINDOW) {
        reference->loss_scale *= 2;
        reference->clean = 0;
    }
}

void synthetic_reference_step(struct synthetic_reference *reference)
{
    const int32_t total = reference->model->micro_batches;
    const bool passed = synthetic_passed(reference->model, reference->step);
    const long double scale = (passed ? 1.0L : 1.0L / total) / reference->loss_scale;
    reference->loss = (struct reference_value){0, 0};
    reference->finite = true;
    for (int32_t micro = 0; micro < total; micro++)
        add_micro(reference, (uint64_t)micro);
    reference->loss.value /= total;
    reference->loss.error /= total;
    measure(reference, scale, !reference->model->unclipped && !passed);
    reference->skipped = passed || !reference->finite;
    if (!reference->skipped)
        update(reference, scale);
    if (!passed)
        next_scale(reference);
    reference->step++;
    publish(reference);
}
