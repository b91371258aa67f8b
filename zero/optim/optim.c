#include "zero/optim/optim.h"

#include <string.h>

static const struct eng_optimizer *const optimizers[] = {
    &eng_optimizer_adamw,
};

const struct eng_optimizer *eng_optimizer_find(const char *name)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        if (strcmp(optimizers[i]->name, name) == 0)
            return optimizers[i];
    return NULL;
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
