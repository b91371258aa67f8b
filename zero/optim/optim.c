// The names of hyper-parameters, and what a group may choose of its optimizer.

#include "zero/optim/optim.h"

#include <assert.h>

const char *const eng_hyper_names[ENG_HYPERS] = {"lr", "beta1", "beta2", "eps", "weight_decay"};
_Static_assert(sizeof(zero_hyper) == ENG_HYPERS * sizeof(double), "every field has its name");

zero_result eng_optimizer_choose(const struct eng_optimizer *optimizer, zero_decay decay,
                                 int32_t nesterov, struct eng_choice *choice,
                                 struct base_error *error)
{
    if (decay != ZERO_DECAY_DEFAULT && decay != ZERO_DECAY_DECOUPLED && decay != ZERO_DECAY_L2)
        return zero_fail(error, ZERO_E_INVALID, "decay mode %d does not exist", (int)decay);
    if (nesterov != 0 && nesterov != 1)
        return zero_fail(error, ZERO_E_INVALID, "nesterov is %d, must be 0 or 1", nesterov);
    if (nesterov && !optimizer->nesterov)
        return zero_fail(error, ZERO_E_INVALID, "optimizer \"%s\" has no Nesterov form",
                         optimizer->name);
    if (decay && optimizer->own)
        return zero_fail(error, ZERO_E_INVALID,
                         "optimizer \"%s\" is the program's: decay is its own", optimizer->name);
    *choice = (struct eng_choice){
        .decay = decay ? decay : optimizer->decay,
        .nesterov = nesterov != 0,
        .own = optimizer->own,
    };
    assert(!choice->own || choice->decay == ZERO_DECAY_DEFAULT);
    return ZERO_OK;
}
