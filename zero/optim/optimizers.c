// The list of optimizers. What the built-in ones share is in built_in.c, which knows none of them.
#include "zero/optim/optim.h"

#include <string.h>

static const struct eng_optimizer *const optimizers[] = {
    &eng_optimizer_adamw, &eng_optimizer_adam,    &eng_optimizer_sgd,
    &eng_optimizer_lion,  &eng_optimizer_adagrad,
};

const struct eng_optimizer *eng_optimizer_find(const char *name)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        if (strcmp(optimizers[i]->name, name) == 0)
            return optimizers[i];
    return NULL;
}
