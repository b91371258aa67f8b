/**
 * gpt2_trainer.h: one rank's training loop.
 */
#ifndef GPT2_TRAINER_H
#define GPT2_TRAINER_H

#include "compute.h"
#include "data.h"
#include "gpt2_options.h"
#include "gpt2_pool.h"
#include "units.h"

#include <zero/zero.h>

#define EVALUATED_MOST 64

/** What steps took, in seconds: inside the library, and in matrix products of all threads. */
struct step_time {
    double gathers, reductions, updates, agreement;
    double products, operations; /**< and how many operations these were */
};

/** One rank. */
struct trainer {
    const struct options *options;
    const struct data *data;
    zero_ctx *z;
    struct pool *pool;
    struct units *units;
    const struct compute_ops *ops; /**< of the device, */
    void *compute;                 /**< and this rank's; NULL: not yet */
    uint16_t *token, *target;      /**< of one micro-batch */
    int micro_total;               /**< V */
    bool recovered;                /**< it goes on from its state on NVMe */
    uint64_t step;                 /**< how many there were */
    double train_s;                /**< seconds in trainer_step(), */
    struct step_time time;         /**< and where they went */
    struct reason failure;         /**< of what failed outside of the library, or "" */
};

/** What is known of a step when it is done. */
struct step_report {
    uint64_t step; /**< from 1 */
    double loss;   /**< mean over the step's tokens, before the update */
    double norm;   /**< of the mean gradient, before clipping */
    double lr;
    double tokens_per_s;
    double loss_scale; /**< its gradients were multiplied by it; 1 if there is none */
    bool skipped;      /**< they were not finite, and nothing was updated */
};

/** Where this rank belongs: team NULL: rank and world are the launcher's. */
struct place {
    zero_team *team;
    int world, rank;
};

/**
 * Joins the job, registers the model, commits. *Collective.* ZERO_PLANNED: only the plan was asked
 * for. On failure trainer_failure() has the reason; trainer_close() is due in every case.
 */
zero_result trainer_open(struct trainer *trainer, const struct options *options,
                         const struct data *data, const struct place *place);

/** Leaves the job. */
void trainer_close(struct trainer *trainer);

/** Takes the first weights from options->init, if that is given. *Collective.* */
zero_result trainer_import(struct trainer *trainer);

/** One step. *Collective.* */
zero_result trainer_step(struct trainer *trainer, struct step_report *report);

/** The mean loss over at most EVALUATED_MOST micro-batches of the data held back; training goes on
 * as without it. ZERO_AGAIN: the job is to stop, and there is none. *Collective.* */
zero_result trainer_evaluate(struct trainer *trainer, double *loss);

/** Forward only, outside of a step: the logits of the last of `length` tokens. *Collective.* */
zero_result trainer_logits(struct trainer *trainer, const uint16_t *token, int length,
                           float *logits);

/** The reason of the last failure, in one line. */
const char *trainer_failure(const struct trainer *trainer);

#endif
