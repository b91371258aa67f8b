/**
 * Requests to stop (stop_request.c), and signals that are such requests (stop_signals.c).
 */
#ifndef ZERO_CORE_STOP_H
#define ZERO_CORE_STOP_H

#include "zero/core/exchange.h"

/* ---- stop_request.c */

/** Whether this rank knows of a request to stop. */
bool eng_stop_asked(const zero_ctx *z);
/** Whether this rank's program listens to requests. */
bool eng_stop_listens(const zero_ctx *z);
/** Whether some rank knows of one: a part of the exchange that ends a step. */
extern const struct eng_exchange_part eng_stop_part;
/** The step of that exchange has ended. */
void eng_stop_step_ended(zero_ctx *z);
/** All ranks have learned at this place that some rank knows of one. */
void eng_stop_agree(zero_ctx *z);
/** Whether they have. */
bool eng_stop_agreed(const zero_ctx *z);

/* ---- stop_signals.c */

/** Listens to the usual signals from now on, unless this process does already. Any thread. */
void eng_stop_listen(void);
/** Whether this process listens; whether one of the signals has come. Any thread. */
bool eng_stop_listening(void);
bool eng_stop_signalled(void);
/** Whether this process listens, and a signal or zero-run has asked it. Any thread. */
bool eng_stop_requested(void);
/** zero_open() of this rank fails for such a request: zero-run is told that its program hears. */
void eng_stop_unopened(int rank);
/** ZERO_E_INVALID: the variable that adds signals is malformed. */
zero_result eng_stop_check(struct base_error *error);
/** A context is open; it is closed: with the last one of the process listening ends. */
void eng_stop_open(zero_ctx *z);
void eng_stop_close(zero_ctx *z);

#endif
