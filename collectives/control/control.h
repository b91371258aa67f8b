/**
 * collectives/control/control.h: the segment that zero-run shares with its ranks.
 *
 * A memfd that zero-run creates and holds, so that it survives the death of any rank; the ranks
 * inherit it as a descriptor (ZERO_CONTROL_FD). Each rank has an area of its own and writes nowhere
 * else: its flight recorder and its status. zero-run reads them while they are being written, and
 * writes what it wants of all ranks into the head. Nothing in it decides what a rank computes.
 *
 *   control_segment.c  creating it, and checking and mapping it in a rank.
 *   control_record.c   the flight recorder's and the status's writers and readers.
 *   control_stop.c     a request to stop, and who has heard it.
 *   control_signals.c  lists of signals that are such a request.
 *
 * What is shared is read and written through these two only. Readers must expect anything in it: a
 * rank may have written over its area by mistake, or have died at any instruction.
 *
 * Part of zero_boot: the program zero-run and the communicator both stand on it.
 */
#ifndef COLLECTIVES_CONTROL_CONTROL_H
#define COLLECTIVES_CONTROL_CONTROL_H

#include "base/error.h"

#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_MAGIC UINT64_C(0x6c72746e6f72657a) /**< "zerontrl" */
#define CONTROL_VERSION 5U

/** Signals besides SIGTERM and SIGINT that ask a job to stop: of zero-run, and of its ranks. */
#define CONTROL_STOP_VARIABLE "ZERO_STOP_SIGNAL"

enum {
    CONTROL_LINE = 128,
    CONTROL_RECORDS = 4096, /**< of a rank, a power of two: the newest ones are kept */
    CONTROL_METRICS = 16,
    CONTROL_NAME_BYTES = 32,
    CONTROL_LIST_BYTES = 64, /**< of any list of signals */
    CONTROL_REASON_BYTES = 256,
};

/** What a record is about: an operation of a communicator, or a stretch of time of the engine. */
enum control_what {
    CONTROL_NOTHING,
    CONTROL_OPERATION,  /**< of a communicator, from its start to its completion */
    CONTROL_GATHER,     /**< waiting for parameters */
    CONTROL_REDUCE,     /**< waiting for, or working on, gradients */
    CONTROL_VERDICT,    /**< waiting for what the other ranks say about the step */
    CONTROL_UPDATE,     /**< the optimizer */
    CONTROL_STEP,       /**< zero_step() */
    CONTROL_EVALUATION, /**< from zero_eval_begin() to zero_eval_end() */
    CONTROL_WHATS,
};

#define CONTROL_NO_UNIT UINT32_MAX
#define CONTROL_NO_PEER UINT16_MAX

/** One record. Its stamp is twice its number, plus one while a thread writes it: a reader that sees
 * the same even stamp before and after has read a whole one. */
struct control_record {
    alignas(CONTROL_LINE) _Atomic uint64_t stamp;
    uint64_t number;   /**< position in the rank's order of records, from 1 */
    uint64_t sequence; /**< of the operation in its communicator */
    uint64_t bytes;    /**< of the operation on this rank: its share of a gather or reduction */
    uint64_t begin_ns; /**< of base_clock_ns() */
    uint64_t
        end_ns;     /**< 0: it is still under way; without a trace begin_ns stands for any end:
                         no reader needs it, and a look at the clock costs as much as all the rest */
    uint16_t what;  /**< enum control_what */
    uint16_t peer;  /**< of a message: the other rank's number in the job; CONTROL_NO_PEER */
    uint32_t unit;  /**< CONTROL_NO_UNIT: none */
    uint32_t ranks; /**< of the communicator */
    uint32_t first; /**< number of its rank 0 in the job: tells groups of one split apart */
    char kind[16];  /**< "reduce-scatter" */
    char name[24];  /**< of the unit, cut: "h.4" */
    char comm[24];  /**< of the communicator, or of the context of a stretch; cut: "main" */
};

/** One metric of the newest step. */
struct control_metric {
    char name[CONTROL_NAME_BYTES];
    double mean;
};

/** Where a rank's training stands, as the context that reports has it: see control_reports(). Its
 * stamp counts, and is odd while the rank writes it. */
struct control_status {
    alignas(CONTROL_LINE) _Atomic uint64_t stamp;
    uint64_t step;            /**< steps finished */
    uint64_t step_ns;         /**< from the end of the step before to the end of this one */
    uint64_t at_ns;           /**< when it ended */
    uint64_t first_step;      /**< the first one that this context has finished */
    uint64_t first_ns;        /**< and when */
    uint64_t gather_wait_ns;  /**< of these waited for parameters, */
    uint64_t reduce_wait_ns;  /**< gradients, */
    uint64_t verdict_wait_ns; /**< the other ranks' verdicts, */
    uint64_t update_ns;       /**< and spent in the optimizer */
    uint64_t micro_batches;   /**< V */
    uint64_t planned_bytes;   /**< of this rank, as the plan has it */
    uint32_t metric_count;
    char context[CONTROL_NAME_BYTES]; /**< its name, cut; "" if it has none */
    struct control_metric metrics[CONTROL_METRICS];
};

/** Where in its training a rank has made a call. */
enum control_moment {
    CONTROL_BEFORE_COMMIT,
    CONTROL_IN_STEP,       /**< `step` is the one under way */
    CONTROL_IN_EVALUATION, /**< `step` steps are done */
    CONTROL_BETWEEN,       /**< the same */
};

/** The call of the library's that a rank's program made last, in any of its contexts. Its stamp
 * counts, and is odd while the rank writes it. */
struct control_call {
    alignas(CONTROL_LINE) _Atomic uint64_t stamp;
    uint64_t step;
    uint32_t unit;    /**< CONTROL_NO_UNIT: none */
    uint32_t moment;  /**< enum control_moment */
    char call[32];    /**< "zero_gather" */
    char name[24];    /**< of the unit, cut */
    char context[24]; /**< cut */
    char unused[24];
};

/** The area of one rank. */
struct control_rank {
    alignas(4096) _Atomic uint64_t records; /**< begun so far */
    _Atomic uint32_t pid;                   /**< 0: the rank has not attached */
    _Atomic uint32_t trace;                 /**< the segment's */
    _Atomic uint64_t lost_ns;               /**< when it has first noticed a rank's end; 0: never */
    _Atomic uint32_t lost;                  /**< one more than that rank's number, a moment later */
    _Atomic uint64_t reporter;              /**< the thread that writes the status; 0: none yet */
    _Atomic uint32_t listens;               /**< its program asks whether it is to stop */
    _Atomic uint64_t heard;   /**< one more than the steps it had finished when it was told to stop;
                                   0: never */
    _Atomic uint32_t calling; /**< 1: `call` is under way; 0: it has returned */
    char reason[CONTROL_REASON_BYTES]; /**< why it ends the job, if `lost` is its own number */
    struct control_call call;
    struct control_status status;
    struct control_record ring[CONTROL_RECORDS];
};

/** The whole segment. */
struct control_segment {
    uint64_t magic;
    uint32_t version;
    uint32_t world;
    uint64_t bytes;
    _Atomic uint32_t trace; /**< 1: zero-run reads every record: ends and engine stretches are worth
                                 their time. Does not change */
    _Atomic uint32_t stop;  /**< 1: the ranks are to agree on a step to stop after */
    _Atomic uint32_t insists; /**< 1: zero-run sends signals that are to end the ranks */
    struct control_rank ranks[];
};

/* ------------------------------------------------------------------ control_segment.c */

/** Bytes of a segment. *Local.* */
size_t control_bytes(int world);

/** Creates the segment of `world` ranks, mapped, and its descriptor, close-on-exec, both owned by
 * the caller; its size is sealed. *segment is NULL and *fd -1 after an error. ZERO_E_NOMEM.
 * *Local*, zero-run. */
zero_result control_create(struct control_segment **segment, int *fd, int world, bool trace,
                           struct base_error *error);

/** Maps the segment whose descriptor ZERO_CONTROL_FD names, touches this rank's area and enters its
 * process there. The descriptor stays open, close-on-exec from now on: several contexts of a
 * process attach, its children don't. *segment is NULL if the environment names none, or that of a
 * job of another number of ranks: the program has made up this world by itself. ZERO_E_INVALID: the
 * variable is malformed, or the descriptor is no such segment (the message says what is wrong).
 * ZERO_E_VERSION: another version of zero-run. ZERO_E_NOMEM. *Local*, a rank. */
zero_result control_attach(struct control_segment **segment, int rank, int world,
                           struct base_error *error);

/** Maps the segment as control_attach() does, but does not say that this process is the rank.
 * Errors as of control_attach(). *Local*, a process that has no context yet. */
zero_result control_map(struct control_segment **segment, int rank, int world,
                        struct base_error *error);

/** Unmaps it; accepts NULL. *Local.* */
void control_detach(struct control_segment *segment);

/* ------------------------------------------------------------------ control_record.c */

/** Begins a record: its number is filled in, and the time if begin_ns is 0; then it is copied, and
 * what is not 0 in end_ns ends it already. Returns the number for control_end(); 0 if `area` is
 * NULL, and then nothing happens, not even a look at the clock. *Local*, any thread. */
uint64_t control_begin(struct control_rank *area, struct control_record *record);

/** Ends it now, unless it has been overwritten meanwhile. number 0: nothing. *Local*, any thread.
 */
void control_end(struct control_rank *area, uint64_t number);

/** Copies a text into a field of a record, cut to its size, with a zero at the end. */
void control_copy_name(char *field, size_t size, const char *text);

/** Notes that this rank has noticed the end of another one, unless it has noted one before. `area`
 * may be NULL. *Local*, any thread. */
void control_note_lost(struct control_rank *area, int lost);
/** Notes that this rank, `rank`, ends the job itself, and why, unless it has noted an end before.
 * `area` may be NULL. *Local*, any thread. */
void control_note_reason(struct control_rank *area, int rank, const char *reason);
/** Why a rank has ended the job, for people; false: it has not. *Local*, any process. */
bool control_reason(const struct control_segment *segment, int rank,
                    char reason[CONTROL_REASON_BYTES]);

/** The rank whose end was noted first, by any rank; -1: none. *Local*, any process. */
int control_first_lost(const struct control_segment *segment);

/** Number of the newest record, 0 if there is none. *Local*, any process. */
uint64_t control_newest(const struct control_rank *area);

/** Reads record `number`; false if it is no longer there, or not yet whole. *Local*, any process.
 */
bool control_read(const struct control_rank *area, uint64_t number, struct control_record *record);

/** The process that has attached as this rank, 0 if none has. *Local*, any process. */
uint32_t control_pid(const struct control_rank *area);

/** Whether `who` is the one of this process's contexts that writes the status: the first that asks,
 * until it leaves off. *Local*, any thread. */
bool control_reports(struct control_rank *area, const void *who);

/** It writes no more, if it did. *Local*, any thread. */
void control_reports_no_more(struct control_rank *area, const void *who);

/** Writes the status, but for its stamp; loses it if another thread is writing one. *Local*, any
 * thread. */
void control_status_write(struct control_rank *area, const struct control_status *status);

/** Reads it; false if none has been written, or one is always being written. *Local*, any process.
 */
bool control_status_read(const struct control_rank *area, struct control_status *status);

/** The program of this rank makes a call: writes it, but for its stamp; loses it if another thread
 * is writing one. `area` may be NULL. *Local*, any thread. */
void control_call_begin(struct control_rank *area, const struct control_call *call);
/** It has returned. `area` may be NULL. *Local*, any thread. */
void control_call_end(struct control_rank *area);

/** Reads the last call, and whether it is under way; false if there was none, or one is always
 * being written. *Local*, any process. */
bool control_call_read(const struct control_rank *area, struct control_call *call, bool *under_way);

/* ------------------------------------------------------------------ control_stop.c */

/** Asks the ranks to stop. *Local*, zero-run. */
void control_stop(struct control_segment *segment);
/** Whether they are asked to; `segment` may be NULL. *Local*, any thread, any process. */
bool control_stopping(const struct control_segment *segment);

/** From now on signals that zero-run sends to the ranks are to end them: they are no requests.
 * *Local*, zero-run. */
void control_insist(struct control_segment *segment);
/** Whether that is so; `segment` may be NULL. *Local*, any thread, any process, and in a signal
 * handler too. */
bool control_insists(const struct control_segment *segment);

/** The program of this rank asks whether it is to stop, from now on. *Local*, any thread. */
void control_listen(struct control_rank *area);
/** Whether it does. *Local*, any process. */
bool control_rank_listens(const struct control_rank *area);
/** Whether that of any rank does. *Local*, any process. */
bool control_listens(const struct control_segment *segment);

/** Notes that this rank's program has been told to stop after `step` steps. *Local*, any thread. */
void control_hear(struct control_rank *area, uint64_t step);
/** Whether a rank's program has been told. *Local*, any process. */
bool control_rank_heard(const struct control_rank *area);
/** One more than the step, of the first rank that has been told; 0: none has. *Local*, any process.
 */
uint64_t control_heard(const struct control_segment *segment);

/* ------------------------------------------------------------------ control_signals.c */

/** Adds the signals of a list, such as "USR1,HUP" or "USR1, HUP", to a set. ZERO_E_INVALID:
 * something else is in the list, or nothing; *set is as before, and the message says that `what`
 * does not take it. *Local.* */
zero_result control_read_signals(sigset_t *set, const char *list, const char *what,
                                 struct base_error *error);
/** Writes a set as such a list; "" if it is empty. *Local.* */
void control_show_signals(const sigset_t *set, char list[CONTROL_LIST_BYTES]);

#endif
