// Adam, with L2 decay unless the group says otherwise; and what AdamW shares with it.
#include "zero/optim/optim.h"

#include <assert.h>
#include <float.h>
#include <math.h>

zero_result eng_adam_check(const char *name, const struct eng_choice *choice,
                           const zero_hyper *hyper, struct base_error *error)
{
    zero_result result = eng_check_common(name, choice, hyper, error);
    if (result == ZERO_OK)
        result = eng_check_beta(name, "beta1", hyper->beta1, error);
    if (result == ZERO_OK)
        result = eng_check_beta(name, "beta2", hyper->beta2, error);
    if (result == ZERO_OK)
        result = eng_check_eps(name, hyper->eps, error);
    if (result == ZERO_OK && hyper->lr / (1.0 - eng_rounded(hyper->beta1)) > FLT_MAX)
        result = zero_fail(error, ZERO_E_INVALID,
                           "%s: lr / (1 - beta1) is %g / (1 - %.17g), more than fp32 holds", name,
                           hyper->lr, hyper->beta1);
    return result;
}

double eng_adam_gradient_most(const zero_hyper *hyper)
{
    // Its square counts with this weight; a part in a million is for rounding.
    const double most = sqrt((double)FLT_MAX / (1.0 - eng_rounded(hyper->beta2)) * (1 - 1e-6));
    return most < (double)FLT_MAX ? most : (double)FLT_MAX;
}

void eng_adam_prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                      double gradient_scale, union eng_scalars *scalars)
{
    assert(updates > 0);
    const double power1 = eng_power(eng_rounded(hyper->beta1), updates);
    const double power2 = eng_power(eng_rounded(hyper->beta2), updates);
    eng_rule_prepare(BASE_RULE_ADAM, choice, hyper, gradient_scale, scalars);
    scalars->built_in.step_size = (float)(hyper->lr / (1.0 - power1));
    scalars->built_in.inverse_sqrt_correction = (float)(1.0 / sqrt(1.0 - power2));
}

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    return eng_adam_check("adam", choice, hyper, error);
}

const struct eng_optimizer eng_optimizer_adam = {
    .size = sizeof(struct eng_optimizer),
    .name = "adam",
    .moments = 2,
    .never_negative = 1u << 1,
    .divides = true,
    .gradient_most = eng_adam_gradient_most,
    .decay = ZERO_DECAY_L2,
    .check = check,
    .prepare = eng_adam_prepare,
    .update = eng_rule_update,
    .update_sum = eng_rule_update_sum,
};
