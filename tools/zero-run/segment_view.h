/**
 * tools/zero-run/segment_view.h: what zero-run makes of the control segment: who never arrived, how
 * the training goes, a trace. Nothing here knows processes or the loop, so tests take hand-made
 * segments.
 */
#ifndef TOOLS_ZERO_RUN_SEGMENT_VIEW_H
#define TOOLS_ZERO_RUN_SEGMENT_VIEW_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/control/control.h"

/* ------------------------------------------------------------------ blame.c */

/** Takes one line, without its newline. */
typedef void (*run_line_fn)(void *user, const char *line);

/**
 * Says, from what the ranks have recorded, which call rank `failed` was in or had made last (-1: no
 * rank has failed; then of the first ranks that are in their program's own code), and for each
 * communicator in which a rank waits which ranks never arrived where:
 *
 *     rank 3 was in the program's own code, after zero_gather(unit 16 "h.3") of step 12
 *     rank 3 never posted #1234 reduce-scatter, unit 17 (h.4); ranks 0-2 wait since 812 ms
 *
 * Contexts and groups are named where there are several. Of an operation that every rank has
 * posted, only the ranks in a call are named. Says nothing if no rank has attached, or none is in
 * an operation or its own code. now_ns is of base_clock_ns().
 */
void run_blame(const struct control_segment *segment, int failed, uint64_t now_ns, run_line_fn line,
               void *user);

/* ------------------------------------------------------------------ run_progress.c */

/** How the training goes. */
struct run_progress {
    char context[CONTROL_NAME_BYTES]; /**< whose; "" if it has no name */
    uint64_t step;                    /**< finished ones; 0: nothing is known yet */
    double step_s;                    /**< duration of one, mean of the ranks */
    bool has_loss, has_tokens;
    double loss;
    double tokens;                          /**< a step */
    double gather, reduce, verdict, update; /**< shares of a step, mean of the ranks */
    uint64_t memory;                        /**< bytes of all ranks; 0: not known */
    bool resident; /**< they are resident sets: memory that ranks share is counted by each */
    int restarts;  /**< before */
};

/** Reads all but the memory. */
void run_progress_read(const struct control_segment *segment, struct run_progress *progress);

/** A process's memory in bytes, with its share of what is mapped by several; *resident is 1 where
 * that cannot be read, and all of it is meant. 0: it is gone. */
uint64_t run_progress_process(const char *proc, uint32_t pid, uint64_t *resident);

/** Adds up the memory of the ranks that have attached; `proc` is "/proc". A rank whose share of
 * shared memory cannot be read makes it a sum of resident sets. */
void run_progress_memory(const struct control_segment *segment, const char *proc,
                         struct run_progress *progress);

/** "actor: " if it is a context that has a name, and "step 1200, loss 3.2145, 52.1k tokens/s, 39.3
 * ms a step, 1.2 GiB; gather 3 %, reduce 12 %, verdict 1 %, update 20 %, rest 64 %". */
void run_progress_text(const struct run_progress *progress, struct base_text *text);

/* ------------------------------------------------------------------ run_trace.c */

/** A trace in the making: Chrome's JSON, an array of events, one a line. */
struct run_trace;

/** Creates or empties the file. *trace is NULL after an error. ZERO_E_IO, ZERO_E_NOMEM. */
zero_result run_trace_open(struct run_trace **trace, const char *path,
                           const struct control_segment *segment, struct base_error *error);

/** Drains, and writes what has not ended as far as it got: no rank of the segment is left, and it
 * may go. */
void run_trace_leave(struct run_trace *trace);
/** Goes on with another segment, of as many ranks or fewer, after run_trace_leave(). */
void run_trace_join(struct run_trace *trace, const struct control_segment *segment);

/** Writes what has ended since the last time. To be called more often than ranks record
 * CONTROL_RECORDS of them. */
void run_trace_drain(struct run_trace *trace);

/** Why the file could not be written, as errno; 0: all is well. Everything since is dropped. */
int run_trace_failed(const struct run_trace *trace);

/** How many records ranks have overwritten before they were drained. */
uint64_t run_trace_lost(const struct run_trace *trace);

/** Leaves the segment, if there is one, and writes the end. run_trace_failed() has what fails here
 * too. */
void run_trace_finish(struct run_trace *trace);

/** Closes the file; accepts NULL. */
void run_trace_close(struct run_trace *trace);

#endif
