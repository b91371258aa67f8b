/**
 * tests/ranks/net_job.h: the ranks of a job on hosts of net_hosts.h, as a launcher that counts
 * local ranks starts them. Ranks are programs, of whatever build; all write to one file.
 */
#ifndef TESTS_RANKS_NET_JOB_H
#define TESTS_RANKS_NET_JOB_H

#include <stdio.h>
#include <sys/types.h>

enum { NET_JOB_RANKS = 16 };

struct net_job {
    const char *hosts;           /**< a letter for the host of each rank */
    const char *const *program;  /**< with its arguments; NULL at the end */
    const char *const *settings; /**< NAME=value for all ranks; NULL at the end, or NULL */
    FILE *output;                /**< standard output and error of all ranks */
    pid_t pids[NET_JOB_RANKS];
    double started;
};

/** Starts all ranks. */
void net_job_start(struct net_job *job);

/** Waits for a rank. What waitpid() says of its end. Fails the test after so many seconds. */
int net_job_wait(struct net_job *job, int rank, int seconds);

/** Waits until the ranks have written these words so often. Fails the test after a minute. */
void net_job_await(const struct net_job *job, const char *words, int times);

/** What the ranks have written so far; valid until the next call. */
const char *net_job_text(const struct net_job *job);

/** All ranks have ended: closes the file. */
void net_job_end(struct net_job *job);

/** Waits for all ranks, which have to end well. Seconds since their start. */
double net_job_finish(struct net_job *job, int seconds);

#endif
