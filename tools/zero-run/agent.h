/**
 * tools/zero-run/agent.h: the zero-run of one host in a job of several.
 *
 * It starts the ranks of its host, watches and ends them as zero-run does for a job of one host,
 * but decides nothing: the coordinator (coordinator.h) tells it what to start and when to stop, and
 * gets all output, every rank's end and where the training stands. If the coordinator is gone it
 * ends its ranks, and then itself.
 *
 *   agent.c          what it is told.
 *   agent_reports.c  what it reports.
 *   agent_address.c  where its ranks meet those of other hosts.
 */
#ifndef TOOLS_ZERO_RUN_AGENT_H
#define TOOLS_ZERO_RUN_AGENT_H

#include "tools/zero-run/run.h"
#include "tools/zero-run/span.h"

/** What a host that a platform has started brings along. */
struct run_agent_own {
    bool (*asked)(void); /**< whether this process was asked to stop, before there is a job */
    int ranks;           /**< of each host, by its own -n; 0: not given */
    int hosts;           /**< of the job, as this one knows it; 0: it does not */
};

struct run_agent {
    struct run_span span; /**< first: the job's */
    struct run_job job;
    struct run_options options;
    struct run_link *link;
    struct run_agent_own own; /**< all zero: the coordinator has started it */
    json_t *begin; /**< what it has been told first; texts of it are in use. NULL: nothing */
    json_t *start; /**< a start that is to be made; NULL: none */
    struct run_area *areas; /**< of each rank, as sent last */
    uint64_t memory_ns;     /**< when to look at the memory of ranks; UINT64_MAX: never */
    uint64_t areas_ns;      /**< when to look at them again; UINT64_MAX: never */
    uint64_t silence_ns;    /**< after which the coordinator is gone */
    char address[256];      /**< where the ranks meet */
    bool begun;             /**< there is a job */
    bool over;              /**< no start will come any more */
    int status;             /**< what to exit with */
    struct base_error why;  /**< what the coordinator has said of its end; ZERO_AGAIN: it is to call
                                 again */
};

/** Is the agent whose coordinator is at the other end of the link; returns the exit status. *why
 * has what the coordinator has said of it, if it has; its result is ZERO_AGAIN where the agent is
 * to call again. NULL as `own`: the coordinator has started it. */
int run_agent(struct run_link *link, const struct run_agent_own *own, struct base_error *why);

/** As run_agent(), of standard input and output. */
int run_agent_adopted(void);

/* ------------------------------------------------------------------ agent_reports.c */

/** Sends what the ranks have recorded last. */
void run_agent_send_records(struct run_agent *agent);
/** Sends the areas that have changed. */
void run_agent_send_areas(struct run_agent *agent);
/** What run_span_ops::noticed, ended, say and came do. */
void run_agent_noticed(struct run_job *job);
void run_agent_ended(struct run_job *job, const struct run_rank *rank);
void run_agent_say(struct run_job *job, const char *line);
void run_agent_came(struct run_job *job, int number);
/** Sends that it has begun, or that it could not: the status and what *error says. */
void run_agent_send_ready(struct run_agent *agent, int status, const struct base_error *error);

/* ------------------------------------------------------------------ agent_address.c */

enum { RUN_AGENT_ADDRESS = 64 };

/** Addresses by which ssh knows the two ends of its connection to this host: the coordinator's
 * machine, and this one. "": it has not said. */
void run_agent_read_ssh(char client[RUN_AGENT_ADDRESS], char server[RUN_AGENT_ADDRESS]);
/** Finds where the ranks of a start meet: at the first host's name, or where that is not known
 * here, as one of ssh's own is not, at its address. ZERO_E_IO: neither is. */
zero_result run_agent_find_head(struct run_agent *agent, const json_t *start,
                                struct base_error *error);

#endif
