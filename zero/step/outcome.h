/**
 * Whether what updates have made is finite: what kernels raise an alarm about is looked at, and all
 * ranks are told. outcome.c says why that ends a context.
 *
 * Ranks tell each other nothing behind an update that is not expected to overflow: which that is,
 * follows from what all of them know, gradient and hyper-parameters, and from what each tells in
 * the step's verdict, whether its weights and moments are small. If one does all the same its rank
 * tells the others, whose next call fails.
 */
#ifndef ZERO_STEP_OUTCOME_H
#define ZERO_STEP_OUTCOME_H

#include "zero/model/layout.h"

#include <pthread.h>
#include <stdbool.h>

/** Fields of eng_wrong; moment k is the first one's plus k; of a device's it is not known. */
enum { ENG_WRONG_WEIGHT, ENG_WRONG_COPY, ENG_WRONG_MOMENT, ENG_WRONG_SOMETHING = 8 };

/** The first value that an update has made and that is not finite, ordered by its fields. */
struct eng_wrong {
    uint64_t param; /**< UINT64_MAX: none */
    uint64_t slice, element;
    uint32_t field; /**< one of these */
    float value;    /**< of a working copy: its weight */
};

/** What updates have made; threads of the pool add to it. */
struct eng_outcome {
    pthread_mutex_t lock;
    struct eng_wrong first;
    bool large;     /**< the update under way has made a value that is large, or not finite */
    bool doubtful;  /**< and it may be the latter: ranks ask each other when it is over */
    uint64_t small; /**< version of the parameters of which no weight or moment is large */
};

void eng_outcome_open(struct eng_outcome *outcome);
void eng_outcome_close(struct eng_outcome *outcome);

/** Looks at elements of a slice, from element `first` of its section on, of which an update has
 * raised an alarm. *Local*, any thread. */
void eng_outcome_look(zero_ctx *z, const struct eng_slice *slice, size_t first, size_t count);

/** Makes *to the earlier one of both. */
void eng_wrong_min(struct eng_wrong *to, const struct eng_wrong *from);

/** Whether some weight or moment of this rank is large, or nobody has looked. */
bool eng_outcome_large(const zero_ctx *z);
/** An update follows: `gradient` is the norm that optimizers see, and some rank's values are
 * large, or none's. The same on all ranks. */
void eng_outcome_begin(zero_ctx *z, double gradient, bool large);
/** It is over: ZERO_E_NONFINITE, fatal and agreed, if a value of it is not finite. Collective, if
 * the update could overflow; else a failure is this rank's, who tells the others. */
zero_result eng_outcome_agree(zero_ctx *z, uint64_t step);
/** The same of what is known elsewhere. Collective. */
zero_result eng_outcome_all(zero_ctx *z, struct eng_wrong first, uint64_t step);
/** Fails by this; agreed: all ranks do. */
zero_result eng_outcome_fail(zero_ctx *z, const struct eng_wrong *wrong, uint64_t step,
                             bool agreed);

#endif
