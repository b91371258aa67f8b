/**
 * zero/exec/update_alarm.h: values that an update has stored and that are not finite, or large.
 */
#ifndef ZERO_EXEC_UPDATE_ALARM_H
#define ZERO_EXEC_UPDATE_ALARM_H

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
    bool large;      /**< the update under way has made a value that is large, or not finite */
    bool doubtful;   /**< and it may be the latter: ranks ask each other when it is over */
    bool some_large; /**< before it, some rank may have had a value that is large */
    uint64_t small;  /**< version of the parameters of which no weight or moment is large */
};

void eng_outcome_open(struct eng_outcome *outcome);
void eng_outcome_close(struct eng_outcome *outcome);

/** Looks at elements of a slice, from element `first` of its section on, of which an update has
 * raised an alarm. *Local*, any thread. */
void eng_outcome_look(zero_ctx *z, const struct eng_slice *slice, size_t first, size_t count);

/** Makes *to the earlier one of both. */
void eng_wrong_min(struct eng_wrong *to, const struct eng_wrong *from);

#endif
