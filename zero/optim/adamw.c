// AdamW: Adam whose weights decay by themselves, unless the group says otherwise.
#include "zero/optim/optim.h"

static zero_result check(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error)
{
    return eng_adam_check("adamw", choice, hyper, error);
}

const struct eng_optimizer eng_optimizer_adamw = {
    .size = sizeof(struct eng_optimizer),
    .name = "adamw",
    .moments = 2,
    .never_negative = 1u << 1,
    .divides = true,
    .gradient_most = eng_adam_gradient_most,
    .decay = ZERO_DECAY_DECOUPLED,
    .check = check,
    .prepare = eng_adam_prepare,
    .update = eng_rule_update,
    .update_sum = eng_rule_update_sum,
};
