/**
 * base/kernels/kernels_loop.h: the functions of a table of kernels.h, and the table, for the file
 * of an instruction set. The file includes the vectors (vector_ref.h says what they are) and
 * defines TABLE, the table's name, before.
 */
#ifndef BASE_KERNELS_KERNELS_LOOP_H
#define BASE_KERNELS_KERNELS_LOOP_H

#include "base/kernels/convert.h"
#include "base/kernels/norm.h"
#include "base/kernels/update_loop.h"

static bool usable(void)
{
    return runs_here();
}

static void update_adam(const struct base_rule_scalars *scalars, const struct base_update *run)
{
    update(&rule_adam, scalars, run);
}

static void update_sgd(const struct base_rule_scalars *scalars, const struct base_update *run)
{
    update(&rule_sgd, scalars, run);
}

static void update_lion(const struct base_rule_scalars *scalars, const struct base_update *run)
{
    update(&rule_lion, scalars, run);
}

static void update_adagrad(const struct base_rule_scalars *scalars, const struct base_update *run)
{
    update(&rule_adagrad, scalars, run);
}

static size_t update_sum_adam(const struct base_rule_scalars *scalars,
                              const struct base_update *run, const struct base_contributions *from,
                              double *squares)
{
    return update_sum(&rule_adam, scalars, run, from, squares);
}

static size_t update_sum_sgd(const struct base_rule_scalars *scalars, const struct base_update *run,
                             const struct base_contributions *from, double *squares)
{
    return update_sum(&rule_sgd, scalars, run, from, squares);
}

static size_t update_sum_lion(const struct base_rule_scalars *scalars,
                              const struct base_update *run, const struct base_contributions *from,
                              double *squares)
{
    return update_sum(&rule_lion, scalars, run, from, squares);
}

static size_t update_sum_adagrad(const struct base_rule_scalars *scalars,
                                 const struct base_update *run,
                                 const struct base_contributions *from, double *squares)
{
    return update_sum(&rule_adagrad, scalars, run, from, squares);
}

const struct base_kernels TABLE = {
    .size = sizeof(struct base_kernels),
    .name = ISA_NAME,
    .usable = usable,
    .update = {[BASE_RULE_ADAM] = update_adam,
               [BASE_RULE_SGD] = update_sgd,
               [BASE_RULE_LION] = update_lion,
               [BASE_RULE_ADAGRAD] = update_adagrad},
    .update_sum = {[BASE_RULE_ADAM] = update_sum_adam,
                   [BASE_RULE_SGD] = update_sum_sgd,
                   [BASE_RULE_LION] = update_sum_lion,
                   [BASE_RULE_ADAGRAD] = update_sum_adagrad},
    .sum_squares = sum_squares,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .to_f16 = to_f16,
    .from_f16 = from_f16,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
};

#endif
