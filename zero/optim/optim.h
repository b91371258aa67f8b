/**
 * Element-wise optimizers: one file and one ops table each. Adding one is a file and a line in
 * optimizers.c's list, and its arithmetic in base/kernels/rules.h; CONTRIBUTING.md has all steps. A
 * program's own ones are in custom.c.
 */
#ifndef ZERO_OPTIM_OPTIM_H
#define ZERO_OPTIM_OPTIM_H

#include "base/error.h"
#include "base/kernels/kernels.h"
#include "zero/optimizer.h"
#include "zero/zero.h"

/** Room for the scalars of any optimizer, so that a step allocates nothing. */
union eng_scalars {
    struct base_rule_scalars built_in;
    _Alignas(16) unsigned char own[ZERO_OPTIMIZER_SCALARS];
};

/** What a group chose beside its optimizer. */
struct eng_choice {
    zero_decay decay; /**< ZERO_DECAY_DECOUPLED or ZERO_DECAY_L2; of a program's own optimizer,
                           which knows better, ZERO_DECAY_DEFAULT */
    bool nesterov;
    const zero_optimizer_desc *own; /**< a program's own optimizer; else NULL */
};

/** The fields of zero_hyper, doubles one after the other, by name. */
enum { ENG_HYPERS = 5 };
extern const char *const eng_hyper_names[ENG_HYPERS];

struct eng_optimizer {
    size_t size;
    const char *name;
    int moments;                    /**< values of state an element, beside the master weight */
    unsigned never_negative;        /**< bit k: moment k, being a sum of squares */
    zero_decay decay;               /**< what ZERO_DECAY_DEFAULT stands for */
    bool nesterov;                  /**< knows Nesterov's form */
    bool divides;                   /**< by what may be as small as eps */
    const zero_optimizer_desc *own; /**< the program's; NULL if it is one of ours */

    /** Checks hyper-parameters; the message names field and value. ZERO_E_INVALID. */
    zero_result (*check)(const struct eng_choice *choice, const zero_hyper *hyper,
                         struct base_error *error);

    /** The largest gradient, scaled and clipped, which the update can take without an overflow, if
     * weights and moments are small; NULL of a program's own. */
    double (*gradient_most)(const zero_hyper *hyper);

    /** Scalars of a step: `updates` counts this one (from 1); gradient_scale = scale * clip. hyper
     * has been checked. Like update(), expects the floating-point environment of base_fp_enter().
     */
    void (*prepare)(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                    double gradient_scale, union eng_scalars *scalars);

    /** Updates a run of elements with the kernels given. */
    void (*update)(const struct eng_choice *choice, const struct base_kernels *kernels,
                   const union eng_scalars *scalars, const struct base_update *run);

    /** The kernels' update_sum; NULL if the optimizer wants its gradient summed. */
    size_t (*update_sum)(const struct base_kernels *kernels, const union eng_scalars *scalars,
                         const struct base_update *run, const struct base_contributions *from,
                         double *squares);
};

extern const struct eng_optimizer eng_optimizer_adamw, eng_optimizer_adam, eng_optimizer_sgd,
    eng_optimizer_lion, eng_optimizer_adagrad;

/** The optimizer called `name`, NULL if there is none. */
const struct eng_optimizer *eng_optimizer_find(const char *name);

/** A program's own optimizer; borrows desc, which has been checked. */
struct eng_optimizer eng_optimizer_own(const zero_optimizer_desc *desc);

/** What a group that asks for this decay and form gets. ZERO_E_INVALID: a decay that does not
 * exist, or any with a program's own optimizer, nesterov with an optimizer that does not know it,
 * or neither 0 nor 1. */
zero_result eng_optimizer_choose(const struct eng_optimizer *optimizer, zero_decay decay,
                                 int32_t nesterov, struct eng_choice *choice,
                                 struct base_error *error);

/* ---- for the optimizers' files */

/** What every optimizer checks: lr and weight_decay. `name` is the optimizer's. */
zero_result eng_check_common(const char *name, const struct eng_choice *choice,
                             const zero_hyper *hyper, struct base_error *error);
/** That a beta is in [0, 1), in fp32 too. */
zero_result eng_check_beta(const char *name, const char *field, double beta,
                           struct base_error *error);
/** That eps is not negative, and not 0 in fp32 unless it is. */
zero_result eng_check_eps(const char *name, double eps, struct base_error *error);

/** prepare(), but for what does not follow from the fields of `hyper` one by one: step_size is lr,
 * inverse_sqrt_correction 1. */
void eng_rule_prepare(enum base_rule rule, const struct eng_choice *choice, const zero_hyper *hyper,
                      double gradient_scale, union eng_scalars *scalars);
/** gradient_most() of those that do not square it: what fp32 holds. */
double eng_gradient_most(const zero_hyper *hyper);

/** update() of every optimizer that has a rule. */
void eng_rule_update(const struct eng_choice *choice, const struct base_kernels *kernels,
                     const union eng_scalars *scalars, const struct base_update *run);

/** update_sum() of every optimizer that has a rule. */
size_t eng_rule_update_sum(const struct base_kernels *kernels, const union eng_scalars *scalars,
                           const struct base_update *run, const struct base_contributions *from,
                           double *squares);

/** check(), gradient_most() and prepare() of Adam, whose two files differ in name and default
 * decay. */
zero_result eng_adam_check(const char *name, const struct eng_choice *choice,
                           const zero_hyper *hyper, struct base_error *error);
double eng_adam_gradient_most(const zero_hyper *hyper);
void eng_adam_prepare(const struct eng_choice *choice, const zero_hyper *hyper, uint64_t updates,
                      double gradient_scale, union eng_scalars *scalars);

/**
 * A beta as the kernels have it, in fp32. Whatever else depends on it is derived from this value,
 * so that the weights of the past gradients sum to one, exactly as bias correction supposes: with
 * 0.999 and its own 1 - beta the sum would be 1.3e-5 too large.
 */
static inline double eng_rounded(double beta)
{
    return (double)(float)beta;
}

/** base^exponent by repeated squaring in fp64: the same bits everywhere, unlike pow(). */
double eng_power(double base, uint64_t exponent);

#endif
