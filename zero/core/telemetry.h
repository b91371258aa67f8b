/**
 * zero/core/telemetry.h: what zero-run sees of a context: calls, steps, stretches of time.
 */
#ifndef ZERO_CORE_TELEMETRY_H
#define ZERO_CORE_TELEMETRY_H

#include "zero/core/context.h"

/** Looks whether zero-run listens. ZERO_E_INVALID, ZERO_E_VERSION, ZERO_E_NOMEM. */
zero_result eng_watch_open(zero_ctx *z, struct base_error *error);
void eng_watch_close(zero_ctx *z);
/** The program has entered `call`, which is about `unit` (-1: none). eng_leave() says that it has
 * returned. */
void eng_watch_call(const zero_ctx *z, const char *call, zero_unit unit);
/** The first step is timed from here. */
void eng_watch_start(zero_ctx *z);
/** Ends a stretch of time: adds it to *seconds, and records it if zero-run makes a trace. unit -1:
 * it is about none. */
void eng_stretch(zero_ctx *z, enum control_what what, zero_unit unit, uint64_t begin_ns,
                 double *seconds);
/** The time at which zero_step() was entered, for eng_watch_step(); 0 if no reader wants it. */
uint64_t eng_watch_step_begin(const zero_ctx *z);
/** A step has ended: tells what it was like. */
void eng_watch_step(zero_ctx *z, uint64_t begin_ns);
/** An evaluation begins, and has ended: its time is no step's. */
void eng_watch_evaluation_begin(zero_ctx *z);
void eng_watch_evaluation_end(zero_ctx *z);

#endif
