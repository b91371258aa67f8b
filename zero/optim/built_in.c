// What the built-in optimizers share: checks of hyper-parameters, scalars, and the way to the
// kernels.

#include "zero/optim/optim.h"

#include <assert.h>
#include <float.h>

/** Not negative, and in fp32, in which updates compute, neither infinite nor 0 unless it is. */
static zero_result check_not_negative(const char *name, const char *field, double value,
                                      struct base_error *error)
{
    if (!(value >= 0.0 && value <= FLT_MAX))
        return zero_fail(error, ZERO_E_INVALID, "%s: %s is %g, must be in [0, %g]", name, field,
                         value, (double)FLT_MAX);
    if (value > 0.0 && (float)value == 0.0f)
        return zero_fail(error, ZERO_E_INVALID, "%s: %s is %g, which is 0 in fp32", name, field,
                         value);
    return ZERO_OK;
}

zero_result eng_check_common(const char *name, const struct eng_choice *choice,
                             const zero_hyper *hyper, struct base_error *error)
{
    zero_result result = check_not_negative(name, "lr", hyper->lr, error);
    if (result == ZERO_OK)
        result = check_not_negative(name, "weight_decay", hyper->weight_decay, error);
    if (result != ZERO_OK)
        return result;
    if (choice->decay == ZERO_DECAY_DECOUPLED && hyper->lr * hyper->weight_decay > 1.0)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s: lr * weight_decay is %g * %g, more than 1: weights would change "
                         "their sign",
                         name, hyper->lr, hyper->weight_decay);
    return ZERO_OK;
}

zero_result eng_check_beta(const char *name, const char *field, double beta,
                           struct base_error *error)
{
    if (!(beta >= 0.0 && beta < 1.0))
        return zero_fail(error, ZERO_E_INVALID, "%s: %s is %g, must be in [0, 1)", name, field,
                         beta);
    if (eng_rounded(beta) >= 1.0)
        return zero_fail(error, ZERO_E_INVALID, "%s: %s is %.17g, which is 1 in fp32", name, field,
                         beta);
    return ZERO_OK;
}

zero_result eng_check_eps(const char *name, double eps, struct base_error *error)
{
    return check_not_negative(name, "eps", eps, error);
}

void eng_rule_prepare(enum base_rule rule, const struct eng_choice *choice, const zero_hyper *hyper,
                      double gradient_scale, union eng_scalars *scalars)
{
    assert(rule < BASE_RULES);
    const double beta1 = eng_rounded(hyper->beta1), beta2 = eng_rounded(hyper->beta2);
    const bool l2 = choice->decay == ZERO_DECAY_L2;
    scalars->built_in = (struct base_rule_scalars){
        .rule = rule,
        .gradient_scale = (float)gradient_scale,
        .beta1 = (float)beta1,
        .one_minus_beta1 = (float)(1.0 - beta1),
        .beta2 = (float)beta2,
        .one_minus_beta2 = (float)(1.0 - beta2),
        .decay = (float)(l2 ? hyper->weight_decay : hyper->lr * hyper->weight_decay),
        .step_size = (float)hyper->lr,
        .inverse_sqrt_correction = 1.0f,
        .eps = (float)hyper->eps,
        .l2 = l2,
        .nesterov = choice->nesterov,
    };
}

double eng_gradient_most(const zero_hyper *hyper)
{
    (void)hyper;
    return FLT_MAX;
}

void eng_rule_update(const struct eng_choice *choice, const struct base_kernels *kernels,
                     const union eng_scalars *scalars, const struct base_update *run)
{
    (void)choice;
    kernels->update[scalars->built_in.rule](&scalars->built_in, run);
}

size_t eng_rule_update_sum(const struct base_kernels *kernels, const union eng_scalars *scalars,
                           const struct base_update *run, const struct base_contributions *from,
                           double *squares)
{
    const enum base_rule rule = scalars->built_in.rule;
    return kernels->update_sum[rule](&scalars->built_in, run, from, squares);
}

double eng_power(double base, uint64_t exponent)
{
    double power = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1)
            power *= base;
        base *= base;
    }
    return power;
}
