// Adagrad: squares of the gradients are added up from 0, and lr does not decay by itself.
#include "zero/optim/optim.h"

#include <float.h>
#include <math.h>

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    zero_result result = eng_check_common("adagrad", choice, hyper, error);
    if (result == ZERO_OK)
        result = eng_check_eps("adagrad", hyper->eps, error);
    return result;
}

static double gradient_most(const zero_hyper *hyper)
{
    (void)hyper;
    return sqrt((double)FLT_MAX * (1 - 1e-6));
}

static void prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                    double gradient_scale, union eng_scalars *scalars)
{
    (void)updates;
    eng_rule_prepare(BASE_RULE_ADAGRAD, choice, hyper, gradient_scale, scalars);
}

const struct eng_optimizer eng_optimizer_adagrad = {
    .size = sizeof(struct eng_optimizer),
    .name = "adagrad",
    .moments = 1,
    .never_negative = 1u << 0,
    .divides = true,
    .gradient_most = gradient_most,
    .decay = ZERO_DECAY_L2,
    .check = check,
    .prepare = prepare,
    .update = eng_rule_update,
    .update_sum = eng_rule_update_sum,
};
