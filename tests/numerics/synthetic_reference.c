#include "tests/numerics/synthetic_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// What is computed in fp64 by either side is off by less than this, relative.
static const long double lost = 0x1p-45L;

static long double rounded(zero_dtype dtype, long double value)
{
    return synthetic_round(dtype, (float)value);
}

// Rounded to 16 bits: exactly, unless the bound reaches over a point where rounding changes.
static struct reference_value narrowed(zero_dtype dtype, struct reference_value x)
{
    if (dtype == ZERO_F32)
        return x;
    const long double value = rounded(dtype, x.value);
    const long double above = rounded(dtype, x.value + x.error) - value;
    const long double below = value - rounded(dtype, x.value - x.error);
    return (struct reference_value){value, fmaxl(above, below)};
}

static zero_dtype dtype_of(const struct synthetic_reference *reference, zero_param param)
{
    return synthetic_dtype(reference->model, &synthetic_tensors[param]);
}

static size_t place(zero_param param, int32_t slice, uint64_t element)
{
    return (size_t)slice * synthetic_numel(&synthetic_tensors[param]) + element;
}

struct reference_value synthetic_reference_weight(const struct synthetic_reference *reference,
                                                  zero_param param, int32_t slice, uint64_t element)
{
    return reference->elements[param][place(param, slice, element)].weight;
}

struct reference_value synthetic_reference_work(const struct synthetic_reference *reference,
                                                zero_param param, int32_t slice, uint64_t element)
{
    return reference->work[param][place(param, slice, element)];
}

void synthetic_reference_adopt(struct synthetic_reference *reference, zero_param param,
                               int32_t slice, uint64_t element, float work)
{
    reference->work[param][place(param, slice, element)] = (struct reference_value){work, 0};
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
    *reference = (struct synthetic_reference){.model = model};
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
            const bool array = tensor->first == FIRST_DATA;
            reference->elements[p][i].weight.value =
                array ? rounded(dtype_of(reference, p), first) : first;
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

// What one micro-batch contributes to one element, as it is sent.
static struct reference_value contribution(const struct synthetic_reference *reference,
                                           uint64_t micro, struct reference_value h,
                                           zero_param param, int32_t slice, uint64_t element)
{
    const struct reference_value w = synthetic_reference_work(reference, param, slice, element);
    const double pattern = synthetic_pattern(param, slice, element);
    const double noise = synthetic_noise(reference->step, micro, param, slice, element);
    const long double value = 0.1L * w.value + 0.05L * h.value * pattern + noise;
    const long double error =
        0.1L * w.error + 0.05L * h.error * fabs(pattern) + lost * (fabsl(value) + 1);
    const zero_dtype dtype = synthetic_grad_dtype(reference->model, &synthetic_tensors[param]);
    if (synthetic_tensors[param].unit > 0)
        return travelling(reference, narrowed(dtype, reference_round(value, error)));
    const struct reference_value first =
        narrowed(dtype, reference_round(0.75L * value, 0.75L * error));
    const struct reference_value second = reference_round(0.25L * value, 0.25L * error);
    const struct reference_value both =
        reference_round(first.value + second.value, first.error + second.error);
    return travelling(reference, narrowed(dtype, both));
}

static void add_micro(struct synthetic_reference *reference, uint64_t micro)
{
    const struct reference_value h = forward(reference, micro);
    reference->loss.value += h.value * h.value;
    reference->loss.error += h.error * (2 * fabsl(h.value) + h.error) + lost;
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const struct synthetic_tensor *tensor = &synthetic_tensors[p];
        const uint64_t numel = synthetic_numel(tensor);
        for (int32_t slice = 0; slice < tensor->slices; slice++) {
            for (uint64_t e = 0; e < numel; e++) {
                const struct reference_value c = contribution(reference, micro, h, p, slice, e);
                struct reference_value *sum = &reference->sums[p][place(p, slice, e)];
                *sum = micro == 0 ? c : reference_round(sum->value + c.value, sum->error + c.error);
            }
        }
    }
}

// The 2-norm of all sums times scale, and the factor that brings it down to the largest one.
static void measure(struct synthetic_reference *reference, long double scale)
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
    const long double most = synthetic_max_norm();
    reference->norm = (struct reference_value){norm, scale * sqrtl(errors) + lost * norm};
    const long double smaller = norm - reference->norm.error + 1e-6L;
    reference->clip.value = fminl(1, most / (norm + 1e-6L));
    reference->clip.error =
        fminl(1, most / smaller) - fminl(1, most / (norm + reference->norm.error + 1e-6L)) + lost;
}

void synthetic_reference_step(struct synthetic_reference *reference)
{
    const int32_t total = reference->model->micro_batches;
    const long double scale = 1.0L / total;
    zero_hyper hyper[SYNTHETIC_GROUPS];
    reference->loss = (struct reference_value){0, 0};
    for (int32_t micro = 0; micro < total; micro++)
        add_micro(reference, (uint64_t)micro);
    reference->loss.value /= total;
    reference->loss.error /= total;
    measure(reference, scale);
    static const struct reference_optimizer adamw = {.formula = REFERENCE_ADAM};
    const struct reference_value factor =
        reference_round(scale * reference->clip.value, scale * (reference->clip.error + lost));
    synthetic_hyper(reference->model, reference->step, hyper);
    for (zero_param p = 0; p < SYNTHETIC_TENSORS; p++) {
        const size_t count = place(p, synthetic_tensors[p].slices, 0);
        for (size_t i = 0; i < count; i++)
            reference_update(&reference->elements[p][i], &adamw, &hyper[synthetic_tensors[p].group],
                             reference->step + 1, reference->sums[p][i], factor);
    }
    reference->step++;
    publish(reference);
}
