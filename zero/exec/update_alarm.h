/**
 * zero/exec/update_alarm.h: values that an update has stored and that are not finite, or large.
 */
#ifndef ZERO_EXEC_UPDATE_ALARM_H
#define ZERO_EXEC_UPDATE_ALARM_H

#include "zero/core/context.h"

void eng_outcome_open(struct eng_outcome *outcome);
void eng_outcome_close(struct eng_outcome *outcome);

/** Looks at elements of a slice, from element `first` of its bucket on, of which an update has
 * raised an alarm. *Local*, any thread. */
void eng_outcome_look(zero_ctx *z, const struct eng_slice *slice, size_t first, size_t count);

/** Makes *to the earlier one of both. */
void eng_wrong_min(struct eng_wrong *to, const struct eng_wrong *from);

#endif
