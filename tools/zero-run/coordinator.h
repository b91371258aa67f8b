/**
 * tools/zero-run/coordinator.h: one job of several hosts, as the zero-run sees it that was started
 * for it.
 *
 * The coordinator has no ranks of its own: each host has an agent (agent.h), this one, too. It runs
 * the loop that zero-run runs for a job of one host, with all ranks of the job, but what it does to
 * them it tells the agents to do, and what becomes of them it is told. Its control segment is a
 * copy, made from what agents report.
 *
 *   coordinator.c         the order of things.
 *   coordinator_hosts.c   agents come up, and are lost.
 *   coordinator_calls.c   agents that a platform has started call.
 *   coordinator_frames.c  what agents report, and what they are told.
 */
#ifndef TOOLS_ZERO_RUN_COORDINATOR_H
#define TOOLS_ZERO_RUN_COORDINATOR_H

#include "collectives/rendezvous/hosts_of_job.h"
#include "tools/zero-run/remote_shell.h"
#include "tools/zero-run/run.h"
#include "tools/zero-run/span.h"

/** A host and its agent. */
struct run_far_host {
    const struct run_host *host;
    char name[RUN_HOST_BYTES + RUN_LINK_NAME]; /**< as messages call it: a platform's host by its
                                                    number, and by its name once it has called */
    struct run_shell shell;
    bool shelled;  /**< there is a shell or a link to close: this process has started the agent, or
                        the agent has called */
    bool up;       /**< it has begun; else it is not there yet, or any more */
    bool lost;     /**< it was, and is not */
    bool answered; /**< what it was asked last */
    bool blamed;   /**< what its ranks have recorded is here */
    bool busy;     /**< it has ranks of this start, or output of them */
    int slots;     /**< ranks that it has room for */
    int first, count;            /**< ranks of this start */
    int port;                    /**< free there; 0: none */
    char client[64], server[64]; /**< how ssh knows this machine, and that one; "": not at all */
};

struct run_coordinator {
    struct run_span span; /**< first: the job's */
    struct run_job job;
    const struct run_options *options;
    const struct boot_hosts
        *platform; /**< has started a process a host, which call; NULL: none has */
    char job_id[RUN_LINK_NAME];
    struct run_listener listener; /**< then: where they call */
    struct run_shell_way way;
    struct run_far_host *hosts;
    int count;
    int used;              /**< hosts that have ranks in this start */
    struct run_rank *held; /**< it has failed, and a rank that failed before is to be heard of */
    uint64_t held_ns;      /**< until then */
    int status;            /**< of an agent that could not do what it was told; 0: all could */
    struct base_error why;
    bool blames;       /**< what ranks have recorded is waited for */
    int blamed;        /**< then: the rank that failed, -1: none; */
    uint64_t blame_ns; /**< until then */
    bool started;      /**< there has been a start */
    bool unlogged;     /**< a host could not write a log */
    bool closing;      /**< the job is over, and agents may go */
    int put_off;       /**< the host whose second agent was told to wait last; 0: none was */
};

/** Runs a job of several hosts; returns the exit status, and if it says why in *error. */
int run_coordinate(const struct run_options *options, const struct boot_hosts *platform,
                   struct base_error *error);

/* ------------------------------------------------------------------ coordinator_hosts.c */

/** Makes the list of hosts. ZERO_E_NOMEM, ZERO_E_IO. */
zero_result run_far_open(struct run_coordinator *all, struct base_error *error);
/** Gives a host the name that messages have: of a platform's, its number and what it calls itself.
 */
void run_far_name(const struct run_coordinator *all, struct run_far_host *far, const char *name);
/** Starts the agents that are not there, and waits until each is or cannot be. Returns how many
 * could not; says why unless `error` is given, which then has the first reason. */
int run_far_start(struct run_coordinator *all, struct base_error *error);
/** Deals the ranks of a start out: in blocks, in the order of the hosts. */
void run_far_deal(struct run_coordinator *all, int ranks);
/** Ranks that the hosts with an agent have room for. */
int run_far_room(const struct run_coordinator *all);
/** Hosts with an agent. */
int run_far_left(const struct run_coordinator *all);
/** Gives a host up with all its ranks; `why` is for people. */
void run_far_lose(struct run_coordinator *all, struct run_far_host *far, const char *why);
/** Closes what there is of a host's agent. */
void run_far_drop(struct run_far_host *far);
/** Takes what an agent's process says, and notices its end. */
void run_far_look(struct run_coordinator *all, struct run_far_host *far);
/** Waits until all hosts that are there have answered. False: the job was asked to stop. */
bool run_far_await(struct run_coordinator *all);
/** Tells the agents that the job is over, and waits for their ends. */
void run_far_close(struct run_coordinator *all, int status);

/* ------------------------------------------------------------------ coordinator_calls.c */

/** Listens at the port that the platform tells all hosts of. ZERO_E_IO: it is in use, or worse. */
zero_result run_far_open_port(struct run_coordinator *all, struct base_error *error);
/** Lets the agents in that a platform has started. */
void run_far_listen(struct run_coordinator *all);

/* ------------------------------------------------------------------ coordinator_frames.c */

extern const struct run_span_ops run_coordinator_ops;

/** A rank that was held is the first that failed after all. */
void run_far_decide(struct run_coordinator *all);

#endif
