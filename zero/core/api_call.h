/**
 * zero/core/api_call.h: entering and leaving a public call; failures, and how ranks agree on them.
 */
#ifndef ZERO_CORE_API_CALL_H
#define ZERO_CORE_API_CALL_H

#include "zero/core/context.h"

/** Whether this process is a child of the one that opened the context. */
bool eng_in_child(const zero_ctx *z);

/** Enters a public call: refuses without a context (ZERO_E_INVALID), after a fatal error, or in
 * the wrong phase, and sets the floating-point state. */
enum eng_phase { ENG_BEFORE_COMMIT, ENG_AFTER_COMMIT, ENG_ANY_PHASE };
zero_result eng_enter(zero_ctx *z, enum eng_phase phase, const char *call);
/** Leaves a call that has been entered, or refused, and hands the result on. */
zero_result eng_leave(zero_ctx *z, zero_result result);
/** Takes the stream of the call under way; refuses one where the program computes on the host. */
zero_result eng_check_stream(zero_ctx *z, zero_stream stream);
/** Enters a public call about one unit: eng_enter() after zero_commit(), and a look at stream and
 * unit. */
zero_result eng_unit_enter(zero_ctx *z, const char *call, zero_unit unit, zero_stream stream);

/** Lists the units for which `is` is true by number and name, "1 (h.0), 4 (h.3)", cut where it does
 * not fit. */
void eng_list_units(const zero_ctx *z, bool (*is)(const struct eng_unit *unit),
                    char list[ENG_UNIT_LIST]);

/** Where calls without a context leave their message, one a thread; cleared. */
struct base_error *eng_thread_error(void);
const char *eng_thread_message(void);

/** Tells the program's log callback, if there is one, of a fatal failure. */
void eng_log_failure(const struct base_log *log, const char *component, const char *message);
/** Records a failure with its message. Fatal ones become sticky and are told to all ranks. */
zero_result eng_fail(zero_ctx *z, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** A fatal failure that all ranks have found together: sticky, and no rank need be told. */
zero_result eng_fail_agreed(zero_ctx *z, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Takes over a failure whose message is in *error. */
zero_result eng_fail_from(zero_ctx *z, const struct base_error *error);
/** Takes over the communicator's failure; `result` is what its call returned. */
zero_result eng_comm_failed(zero_ctx *z, zero_result result);
/** coll_exchange() whose wait is in the statistics. */
zero_result eng_exchange(zero_ctx *z, const void *mine, size_t bytes, void *all);
/** Collective: ZERO_OK if no rank has a failure in *mine, else the lowest failing rank's result,
 * and its message as the last error, on every rank. Not sticky. `what` names the undertaking. */
zero_result eng_agree(zero_ctx *z, const struct base_error *mine, const char *what);
/** eng_agree() about files: ZERO_NOT_FOUND, a benign answer elsewhere, is ZERO_E_IO. */
zero_result eng_agree_on_file(zero_ctx *z, const struct base_error *mine, const char *what);

/** Collective, ordered, between steps: ZERO_E_DIVERGED, fatal, unless every rank gives the same
 * value; `what` says what they gave. */
zero_result eng_same(zero_ctx *z, uint64_t value, const char *what);

/** Keeps the failure of a registration for zero_commit(), unless there was one before. */
void eng_remember_refusal(zero_ctx *z, const struct base_error *error);

#endif
