/**
 * tools/zero-run/span.h: what travels between the coordinator of a job and its agents, beside the
 * ranks' output.
 *
 * Control frames are JSON objects with a word "is" that says what they are. From the coordinator:
 *
 *   begin    once: layout, slots, world, first (no rank has been started yet), memory (it is
 *            shown), directory, program, environment, and the options of an agent.
 *   port     the agent is to find a port that is free.
 *   start    first, count, world, first_world, token, restarts, before, address, direct (if that is
 *            not known), port, host, hosts.
 *   order    order (enum run_order), number.
 *   end      the job is over, with this status; text: why this agent has no part in it.
 *   wait     instead of begin: it is to call again later; text.
 *
 * And from an agent:
 *
 *   ready    it has begun; or it could not: status, text. client, server: ssh's addresses.
 *   port     port.
 *   started  its ranks: pids, and if not all could be started status, text.
 *   ended    a rank: rank, code and number (of siginfo_t), well, oom.
 *   done     none of its ranks is left, and all their output has been sent; logged: and is in logs.
 *   blamed   what its ranks have recorded has been sent.
 *   say      a line, text.
 *   signal   number: the agent has got it, and all ranks are to.
 *
 * Raw frames from an agent are output, whose tag is twice the rank's number, plus one for standard
 * error; metrics; areas of ranks (struct run_area), whose tag is RUN_TAG_AREA and the number; and
 * after RUN_ORDER_BLAME what ranks have recorded (struct run_records) with RUN_TAG_RECORDS.
 */
#ifndef TOOLS_ZERO_RUN_SPAN_H
#define TOOLS_ZERO_RUN_SPAN_H

#include "collectives/control/control.h"
#include "tools/zero-run/agent_link.h"

#include <jansson.h>

/* ------------------------------------------------------------------ the loop's part */

enum {
    RUN_TAG_AREA = 1 << 30,
    RUN_TAG_RECORDS = 1 << 29,
    RUN_SPAN_RECORDS = 256, /**< of a rank, the newest, tell which rank waits for which */
};

/** What an agent tells of a rank's area of the control segment. Times are of the agent's clock. */
struct run_area {
    uint64_t now_ns; /**< when it was read */
    uint64_t lost_ns, heard;
    uint32_t pid, lost, listens, has_status;
    uint64_t memory;   /**< bytes of its process, looked at now and then; 0: not known */
    uint64_t resident; /**< 1: with all that it shares with others; 0: with its share */
    char reason[CONTROL_REASON_BYTES];
    struct control_status status; /**< if has_status */
};

/** What a coordinator tells the agents to do with their ranks. */
enum run_order {
    RUN_ORDER_ASK,    /**< ask them to stop */
    RUN_ORDER_INSIST, /**< signals are to end them from now on */
    RUN_ORDER_SIGNAL,
    RUN_ORDER_KILL,
    RUN_ORDER_LOOK,  /**< tell at once what the ranks have noticed */
    RUN_ORDER_BLAME, /**< say which rank waits for which */
};

struct run_job;
struct run_rank;

/** What the loop does for a job of several hosts. */
struct run_span_ops {
    /** Writes what to wait for, and returns how many entries: at most run_span::polls. */
    int (*poll)(const struct run_job *job, struct pollfd *polls);
    /** When there is something to do, of base_clock_ns(); UINT64_MAX: never. */
    uint64_t (*due)(const struct run_job *job);
    /** Reads and writes what can be without blocking. */
    void (*turn)(struct run_job *job);

    /** A coordinator: tells all agents. */
    void (*order)(struct run_job *job, enum run_order order, int number);
    /** A coordinator: whether an agent has still ranks, or output of them. */
    bool (*busy)(const struct run_job *job);

    /** An agent: a rank has ended. */
    void (*ended)(struct run_job *job, const struct run_rank *rank);
    /** An agent: a line of its own. */
    void (*say)(struct run_job *job, const char *line);
    /** An agent: a signal that is not the coordinator's has come. */
    void (*came)(struct run_job *job, int number);
    /** An agent: a rank has noticed the end of another one, and is about to write so. */
    void (*noticed)(struct run_job *job);
    /** An agent: whether its ranks have to wait before they write more. */
    bool (*full)(const struct run_job *job);
};

/** One side of a job of several hosts: the beginning of what that side knows. */
struct run_span {
    const struct run_span_ops *ops;
    bool coordinates; /**< else it is an agent */
    int polls;        /**< entries of poll() at most */
};

/* ------------------------------------------------------------------ span.c */

/** What a rank has recorded last. Times are of the agent's clock. */
struct run_records {
    uint64_t now_ns; /**< when it was read */
    uint64_t newest; /**< number of the newest record */
    uint32_t pid, has_call, calling, count;
    struct control_call call;                        /**< if has_call */
    struct control_record records[RUN_SPAN_RECORDS]; /**< `count` of them */
};

/** Differs where two zero-run do not mean the same by raw frames. */
enum { RUN_SPAN_LAYOUT = (int)(sizeof(struct run_area) + sizeof(struct run_records)) };

/** Reads what a rank has recorded; returns the bytes that are to travel. */
size_t run_records_read(const struct control_rank *from, uint64_t now_ns,
                        struct run_records *records);
/** As run_area_write(), of `bytes` of it. */
bool run_records_write(const struct run_records *records, size_t bytes, uint64_t now_ns,
                       struct control_rank *to);

/** Reads a rank's area, but for now_ns, which is 0. */
void run_area_read(const struct control_rank *from, struct run_area *area);
/** Writes it into the area of the same rank of a coordinator's segment, with times of this clock.
 * False: there is nonsense in it, and nothing is written. */
bool run_area_write(const struct run_area *area, uint64_t now_ns, struct control_rank *to);

/** A text for a control frame. What is no UTF-8 in it, as in a file's name, or was cut, is left out
 * or replaced: else there would be no frame. NULL: no memory. */
json_t *run_span_string(const char *text);
/** A member of an object: "" or `otherwise` if it has none. */
const char *run_span_text(const json_t *object, const char *name);
int run_span_number(const json_t *object, const char *name, int otherwise);
/** Whether the object is of the kind. */
bool run_span_is(const json_t *object, const char *kind);

#endif
