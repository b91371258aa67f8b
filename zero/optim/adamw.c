#include "zero/optim/optim.h"

#include <float.h>
#include <math.h>

// The kernels work with the betas in fp32. Whatever else depends on them is derived from the
// rounded values, so that the weights of the past gradients sum to one, exactly as bias correction
// supposes: with 0.999 and its own 1 - beta the sum would be 1.3e-5 too large.
static double rounded(double beta)
{
    return (double)(float)beta;
}

static zero_result check_beta(const char *name, double beta, struct base_error *error)
{
    if (!(beta >= 0.0 && beta < 1.0))
        return zero_fail(error, ZERO_E_INVALID, "adamw: %s is %g, must be in [0, 1)", name, beta);
    if (rounded(beta) >= 1.0)
        return zero_fail(error, ZERO_E_INVALID, "adamw: %s is %.17g, which is 1 in fp32", name,
                         beta);
    return ZERO_OK;
}

static zero_result check_not_negative(const char *name, double value, struct base_error *error)
{
    if (!(value >= 0.0 && value <= FLT_MAX))
        return zero_fail(error, ZERO_E_INVALID, "adamw: %s is %g, must be in [0, %g]", name, value,
                         (double)FLT_MAX);
    return ZERO_OK;
}

static zero_result check(const zero_hyper *hyper, struct base_error *error)
{
    zero_result result = check_not_negative("lr", hyper->lr, error);
    if (result == ZERO_OK)
        result = check_beta("beta1", hyper->beta1, error);
    if (result == ZERO_OK)
        result = check_beta("beta2", hyper->beta2, error);
    if (result == ZERO_OK)
        result = check_not_negative("eps", hyper->eps, error);
    if (result == ZERO_OK)
        result = check_not_negative("weight_decay", hyper->weight_decay, error);
    if (result != ZERO_OK)
        return result;

    if (hyper->eps > 0.0 && (float)hyper->eps == 0.0f)
        return zero_fail(error, ZERO_E_INVALID, "adamw: eps is %g, which is 0 in fp32", hyper->eps);
    if (hyper->lr * hyper->weight_decay > 1.0)
        return zero_fail(error, ZERO_E_INVALID,
                         "adamw: lr * weight_decay is %g * %g, more than 1: weights would change "
                         "their sign",
                         hyper->lr, hyper->weight_decay);
    if (hyper->lr / (1.0 - rounded(hyper->beta1)) > FLT_MAX)
        return zero_fail(error, ZERO_E_INVALID,
                         "adamw: lr / (1 - beta1) is %g / (1 - %.17g), more than fp32 holds",
                         hyper->lr, hyper->beta1);
    return ZERO_OK;
}

static void prepare(const zero_hyper *hyper, uint64_t updates, double gradient_scale,
                    union eng_scalars *scalars)
{
    const double beta1 = rounded(hyper->beta1), beta2 = rounded(hyper->beta2);
    scalars->adamw = (struct eng_adamw_scalars){
        .gradient_scale = (float)gradient_scale,
        .beta1 = (float)beta1,
        .one_minus_beta1 = (float)(1.0 - beta1),
        .beta2 = (float)beta2,
        .one_minus_beta2 = (float)(1.0 - beta2),
        .decay = (float)(hyper->lr * hyper->weight_decay),
        .step_size = (float)(hyper->lr / (1.0 - eng_power(beta1, updates))),
        .inverse_sqrt_correction = (float)(1.0 / sqrt(1.0 - eng_power(beta2, updates))),
        .eps = (float)hyper->eps,
    };
}

static void update(const struct eng_kernels *kernels, const union eng_scalars *scalars,
                   const struct eng_update *run)
{
    kernels->adamw(&scalars->adamw, run->count, run->gradient, run->moment[0], run->moment[1],
                   run->weight, run->work);
}

const struct eng_optimizer eng_optimizer_adamw = {
    .size = sizeof(struct eng_optimizer),
    .name = "adamw",
    .moments = 2,
    .check = check,
    .prepare = prepare,
    .update = update,
};
