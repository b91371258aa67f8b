// SGD with momentum beta1, without dampening: its buffer is the sum of the gradients, each weighted
// by beta1 once for every later one. The buffer starts at 0, so after the first update it is the
// gradient itself.
#include "zero/optim/optim.h"

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    zero_result result = eng_check_common("sgd", choice, hyper, error);
    if (result == ZERO_OK)
        result = eng_check_beta("sgd", "beta1", hyper->beta1, error);
    if (result == ZERO_OK && choice->nesterov && hyper->beta1 == 0.0)
        result = zero_fail(error, ZERO_E_INVALID, "sgd: nesterov needs a momentum, but beta1 is 0");
    return result;
}

static void prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                    double gradient_scale, union eng_scalars *scalars)
{
    (void)updates;
    eng_rule_prepare(BASE_RULE_SGD, choice, hyper, gradient_scale, scalars);
}

const struct eng_optimizer eng_optimizer_sgd = {
    .size = sizeof(struct eng_optimizer),
    .name = "sgd",
    .moments = 1,
    .decay = ZERO_DECAY_L2,
    .nesterov = true,
    .gradient_most = eng_gradient_most,
    .check = check,
    .prepare = prepare,
    .update = eng_rule_update,
    .update_sum = eng_rule_update_sum,
};
