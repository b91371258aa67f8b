/**
 * zero/trainer.h: what a training program does with results and output, all of it inline.
 *
 * It is not part of <zero/zero.h>: the library itself never prints or exits, and a program that
 * wants neither leaves this header out. It compiles as C11 and C++11.
 *
 *     zero_ctx *z = zero_trainer_open(V);           joins the job; only rank 0 prints from here on
 *     zero_add_tensor(z, ...) ...
 *     zero_check(z, zero_commit(z));
 *     for (step = 1; step <= steps; step++) {
 *         zero_micro micro = zero_micro_default();
 *         for (int i = 0; i < zero_micro_count(z); i++) {
 *             zero_check(z, zero_micro_begin(z, i, &micro));
 *             ...                                   zero_unit_ptrs, zero_unit_done
 *             zero_metric(z, "loss", loss);
 *         }
 *         zero_trainer_step(z, hyper, 1.0 / V, 0);
 *         printf("loss %f norm %f\n", zero_trainer_mean(z, "loss"), zero_trainer_norm(z));
 *     }
 *     zero_trainer_close(z);                        prints the fingerprint
 */
#ifndef ZERO_TRAINER_H
#define ZERO_TRAINER_H

#include <zero/zero.h>

#include <stdio.h>
#include <stdlib.h>

/** What zero_trainer_status() says of errors that another start does not cure. */
#define ZERO_EXIT_CONFIGURATION 78

/** The exit status of a program that ends because of `result`. *Local.*
 *
 * It is 0 if result is no error. It is 78 for what the next start would meet again: a
 * configuration, a call or a file that can't be right, ranks that differ. zero-run does not start
 * the job again then. Otherwise it is 1. */
static inline int zero_trainer_status(zero_result result)
{
    if (result >= 0)
        return 0;
    return result == ZERO_E_INVALID || result == ZERO_E_STATE || result == ZERO_E_UNSUPPORTED ||
                   result == ZERO_E_VERSION || result == ZERO_E_DIVERGED
               ? ZERO_EXIT_CONFIGURATION
               : 1;
}

/**
 * Returns `result` if it is no error; ZERO_AGAIN and ZERO_NOT_FOUND are none.
 *
 * Otherwise it tells the other ranks (zero_abort()), prints the last error of z on standard error,
 * and exits with zero_trainer_status(). With z NULL the error is that of this thread's zero_open().
 * ZERO_PLANNED, by zero-run --plan, exits with 0.
 */
static inline zero_result zero_check(zero_ctx *z, zero_result result)
{
    if (result == ZERO_PLANNED)
        exit(0);
    if (result < 0) {
        const char *message = zero_last_error(z);
        fflush(stdout);
        fprintf(stderr, "zero: %s\n", message[0] ? message : zero_result_text(result));
        zero_abort(z, message[0] ? message : zero_result_text(result));
        exit(zero_trainer_status(result));
    }
    return result;
}

/** Sends the standard output of ranks other than 0 to /dev/null from here on. *Local.* Standard
 * error stays. */
static inline void zero_only_root_prints(const zero_ctx *z)
{
    if (zero_rank(z) > 0 && !freopen("/dev/null", "w", stdout))
        fprintf(stderr, "zero: rank %d can't open /dev/null\n", (int)zero_rank(z));
}

/** zero_open() with V micro-batches a step over all ranks, then zero_only_root_prints().
 * *Collective.* It exits on failure. Call it before anything is printed. */
static inline zero_ctx *zero_trainer_open(int32_t micro_batches)
{
    zero_config config = zero_config_default();
    zero_ctx *z = NULL;
    config.micro_batches = micro_batches;
    const zero_result result = zero_open(&z, &config);
    zero_check(z, result);
    zero_only_root_prints(z);
    return z;
}

/** zero_step() of a program with one group. *Collective, ordered.* It exits on failure.
 *
 * The gradient is the sum of all micro-batches times `scale` (1.0 / V makes a mean of means),
 * clipped to max_norm (0: not). */
static inline void zero_trainer_step(zero_ctx *z, zero_hyper hyper, double scale, double max_norm)
{
    const zero_step_args args = zero_step_args_for(&hyper, 1, scale, max_norm);
    zero_check(z, zero_step(z, &args, NULL));
}

/** The mean of a metric over the micro-batches of the last step or evaluation, the same on all
 * ranks. *Local.* It exits if there is none. */
static inline double zero_trainer_mean(zero_ctx *z, const char *name)
{
    double mean = 0;
    if (zero_metric_mean(z, name, &mean)) {
        fprintf(stderr, "zero: there is no metric %s of a step or an evaluation that ended\n",
                name);
        exit(ZERO_EXIT_CONFIGURATION);
    }
    return mean;
}

/** The last step's gradient norm before clipping (zero_step_result), the same on all ranks.
 * *Local.* It exits before the first step. With state on a GPU, call zero_step_wait() before. */
static inline double zero_trainer_norm(zero_ctx *z)
{
    zero_step_result info = zero_step_result_default();
    if (zero_step_info(z, &info)) {
        fprintf(stderr, "zero: there is no norm yet: no step has ended\n");
        exit(ZERO_EXIT_CONFIGURATION);
    }
    return info.norm;
}

/** The fingerprint as 32 hexadecimal digits and a zero. *Collective*, between steps. It exits on
 * failure. */
static inline void zero_fingerprint_text(zero_ctx *z, char text[33])
{
    uint8_t digest[16] = {0};
    zero_check(z, zero_fingerprint(z, digest));
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

/** Rank 0 prints "fingerprint <32 digits>" on standard output. *Collective*, between steps. It
 * exits on failure. */
static inline void zero_print_fingerprint(zero_ctx *z)
{
    char text[33];
    zero_fingerprint_text(z, text);
    if (zero_rank(z) == 0)
        printf("fingerprint %s\n", text);
}

/** zero_print_fingerprint(), then zero_close(). *Collective*, between steps. */
static inline void zero_trainer_close(zero_ctx *z)
{
    zero_print_fingerprint(z);
    zero_close(z);
}

#endif
