#include "tests/numerics/optimizer_reference.h"

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

// What an update knows before its formula: the gradient with its L2 decay, and the weight that a
// step is taken from.
struct start {
    struct reference_value g, weight;
};

static struct start begin(const struct reference_element *element,
                          const struct reference_optimizer *optimizer, const zero_hyper *hyper,
                          struct reference_value sum, struct reference_value scale)
{
    const struct reference_value g = reference_multiply(sum, scale), weight = element->weight;
    if (optimizer->l2)
        return (struct start){multiply_add(reference_rounded(hyper->weight_decay), weight, g),
                              weight};
    const struct reference_value decay = reference_rounded(hyper->lr * hyper->weight_decay);
    return (struct start){g, multiply_add(negated(decay), weight, weight)};
}

static void adam(struct reference_element *element, const struct start *start,
                 const zero_hyper *hyper, uint64_t updates)
{
    const struct beta one = prepare(hyper->beta1, updates);
    const struct beta two = prepare(hyper->beta2, updates);
    const long double step = hyper->lr / one.correction;
    const long double inverse = 1 / sqrtl(two.correction);
    const struct reference_value step_size = reference_round(step, step * one.correction_error);
    const struct reference_value correction =
        reference_round(inverse, inverse * two.correction_error);
    const struct reference_value eps = reference_rounded(hyper->eps), g = start->g;

    const struct reference_value m =
        multiply_add(one.beta, element->m, reference_multiply(one.rest, g));
    const struct reference_value v =
        multiply_add(two.beta, element->v, reference_multiply(reference_multiply(two.rest, g), g));
    const struct reference_value d = multiply_add(square_root(v), correction, eps);
    const struct reference_value ratio = divide(m, d, hyper->eps * (1 - 2 * unit));
    element->weight = multiply_add(negated(step_size), ratio, start->weight);
    element->m = m;
    element->v = v;
}

static void sgd(struct reference_element *element, const struct start *start,
                const zero_hyper *hyper, bool nesterov)
{
    const struct reference_value momentum = prepare(hyper->beta1, 1).beta;
    const struct reference_value m = multiply_add(momentum, element->m, start->g);
    const struct reference_value direction = nesterov ? multiply_add(momentum, m, start->g) : m;
    element->weight = multiply_add(negated(reference_rounded(hyper->lr)), direction, start->weight);
    element->m = m;
}

static void lion(struct reference_element *element, const struct start *start,
                 const zero_hyper *hyper)
{
    const struct beta one = prepare(hyper->beta1, 1), two = prepare(hyper->beta2, 1);
    const struct reference_value mixed =
        multiply_add(one.beta, element->m, reference_multiply(one.rest, start->g));
    // Where the sign is in doubt, anything between the two steps is right.
    const long double sign = mixed.value > 0 ? 1 : mixed.value < 0 ? -1 : 0;
    const bool sure = fabsl(mixed.value) > mixed.error || (element->m.value == 0 && sign == 0);
    const struct reference_value direction = {sign, sure ? 0 : 2};
    element->weight = multiply_add(negated(reference_rounded(hyper->lr)), direction, start->weight);
    element->m = multiply_add(two.beta, element->m, reference_multiply(two.rest, start->g));
}

static void adagrad(struct reference_element *element, const struct start *start,
                    const zero_hyper *hyper)
{
    const struct reference_value m = multiply_add(start->g, start->g, element->m);
    const struct reference_value eps = reference_rounded(hyper->eps), size = square_root(m);
    const struct reference_value d =
        reference_round(size.value + eps.value, size.error + eps.error);
    const struct reference_value ratio = divide(start->g, d, hyper->eps * (1 - 2 * unit));
    element->weight = multiply_add(negated(reference_rounded(hyper->lr)), ratio, start->weight);
    element->m = m;
}

void reference_update(struct reference_element *element,
                      const struct reference_optimizer *optimizer, const zero_hyper *hyper,
                      uint64_t updates, struct reference_value sum, struct reference_value scale)
{
    const struct start start = begin(element, optimizer, hyper, sum, scale);
    switch (optimizer->formula) {
    case REFERENCE_ADAM:
        adam(element, &start, hyper, updates);
        break;
    case REFERENCE_SGD:
        sgd(element, &start, hyper, optimizer->nesterov);
        break;
    case REFERENCE_LION:
        lion(element, &start, hyper);
        break;
    case REFERENCE_ADAGRAD:
        adagrad(element, &start, hyper);
        break;
    }
}

bool reference_matches(struct reference_value expected, float actual, long double *worst)
{
    const long double distance = fabsl(actual - expected.value);
    if (worst && distance > *worst * expected.error)
        *worst = distance / expected.error;
    return distance <= expected.error;
}
