#include "tests/numerics/adamw_reference.h"

#include <math.h>

// Half a unit in the last place of fp32, relative, and of the denormals, absolute.
static const long double unit = 0x1p-24L;
static const long double denormal = 0x1p-150L;

static long double largest(struct reference_value x)
{
    return fabsl(x.value) + x.error;
}

// Rounding adds half a unit in the last place to an error that is there already.
struct reference_value reference_round(long double value, long double error)
{
    return (struct reference_value){value, error + unit * (fabsl(value) + error) + denormal};
}

struct reference_value reference_multiply(struct reference_value a, struct reference_value b)
{
    const long double error = a.error * largest(b) + b.error * fabsl(a.value);
    return reference_round(a.value * b.value, error);
}

struct reference_value reference_rounded(double value)
{
    return reference_round(value, 0);
}

// fp32(a * b + c)
static struct reference_value multiply_add(struct reference_value a, struct reference_value b,
                                           struct reference_value c)
{
    const long double error = a.error * largest(b) + b.error * fabsl(a.value) + c.error;
    return reference_round(a.value * b.value + c.value, error);
}

static struct reference_value negated(struct reference_value x)
{
    return (struct reference_value){-x.value, x.error};
}

static struct reference_value square_root(struct reference_value x)
{
    const long double value = sqrtl(x.value);
    const long double below = value - sqrtl(fmaxl(x.value - x.error, 0));
    const long double above = sqrtl(x.value + x.error) - value;
    return reference_round(value, fmaxl(below, above));
}

// a / b, where the fp32 b is known to be at least `least`.
static struct reference_value divide(struct reference_value a, struct reference_value b,
                                     long double least)
{
    const long double value = a.value / b.value;
    const long double smallest = fmaxl(b.value - b.error, least);
    const long double error = a.error / smallest + fabsl(a.value) * (1 / smallest - 1 / b.value);
    return reference_round(value, error);
}

// A coefficient and how much the rounding of beta to fp32 moves it, before its own rounding.
struct beta {
    struct reference_value beta, rest; // beta, 1 - beta
    long double correction;            // 1 - beta^updates
    long double correction_error;      // relative
};

static struct beta prepare(double beta, uint64_t updates)
{
    const long double moved = fabsl((long double)(float)beta - beta);
    const long double power = powl(beta, (long double)updates);
    const long double slope =
        updates == 1 ? 1 : (long double)updates * powl(beta, (long double)(updates - 1));
    struct beta b = {
        .beta = {beta, moved},
        .rest = reference_round(1 - (long double)beta, moved),
        .correction = 1 - power,
    };
    // 2^-50: what the powers lose in fp64, relative, for each factor.
    const long double lost = 0x1p-50L * (long double)updates * power;
    b.correction_error = (moved * slope * 1.01L + lost) / b.correction;
    return b;
}

void reference_adamw(struct reference_element *element, const zero_hyper *hyper, uint64_t updates,
                     struct reference_value sum, struct reference_value scale)
{
    const struct beta one = prepare(hyper->beta1, updates);
    const struct beta two = prepare(hyper->beta2, updates);
    const long double step = hyper->lr / one.correction;
    const long double inverse = 1 / sqrtl(two.correction);
    const struct reference_value step_size = reference_round(step, step * one.correction_error);
    const struct reference_value correction =
        reference_round(inverse, inverse * two.correction_error);
    const struct reference_value eps = reference_rounded(hyper->eps);
    const struct reference_value decay = reference_rounded(hyper->lr * hyper->weight_decay);

    const struct reference_value g = reference_multiply(sum, scale);
    const struct reference_value m =
        multiply_add(one.beta, element->m, reference_multiply(one.rest, g));
    const struct reference_value v =
        multiply_add(two.beta, element->v, reference_multiply(reference_multiply(two.rest, g), g));
    const struct reference_value d = multiply_add(square_root(v), correction, eps);
    const struct reference_value ratio = divide(m, d, hyper->eps * (1 - 2 * unit));
    const struct reference_value decayed =
        multiply_add(negated(decay), element->weight, element->weight);
    element->weight = multiply_add(negated(step_size), ratio, decayed);
    element->m = m;
    element->v = v;
}

bool reference_matches(struct reference_value expected, float actual, long double *worst)
{
    const long double distance = fabsl(actual - expected.value);
    if (worst && distance > *worst * expected.error)
        *worst = distance / expected.error;
    return distance <= expected.error;
}
