// Lion: a step of size lr in every element, whose direction beta1 decides, and whose momentum is
// kept with beta2.
#include "zero/optim/optim.h"

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    zero_result result = eng_check_common("lion", choice, hyper, error);
    if (result == ZERO_OK)
        result = eng_check_beta("lion", "beta1", hyper->beta1, error);
    if (result == ZERO_OK)
        result = eng_check_beta("lion", "beta2", hyper->beta2, error);
    return result;
}

static void prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                    double gradient_scale, union eng_scalars *scalars)
{
    (void)updates;
    eng_rule_prepare(BASE_RULE_LION, choice, hyper, gradient_scale, scalars);
}

const struct eng_optimizer eng_optimizer_lion = {
    .size = sizeof(struct eng_optimizer),
    .name = "lion",
    .moments = 1,
    .decay = ZERO_DECAY_DECOUPLED,
    .gradient_most = eng_gradient_most,
    .check = check,
    .prepare = prepare,
    .update = eng_rule_update,
    .update_sum = eng_rule_update_sum,
};
