/**
 * tests/unit/boot_ranks.h: ranks as forked processes, for tests of the rendezvous, of one host and
 * of several (mesh_ranks.h). What a rank has seen it writes into shared memory; the parent asserts.
 */
#ifndef TESTS_UNIT_BOOT_RANKS_H
#define TESTS_UNIT_BOOT_RANKS_H

#include "collectives/rendezvous/rendezvous.h"

#include <stdbool.h>

enum { BOOT_TEST_RANKS = 16 };

/** What one process saw. */
struct boot_verdict {
    struct base_error error;     /**< of whatever failed first */
    char refused[8][512];        /**< lines of its log, the first ones */
    int refusals;                /**< all of them */
    int arrivals;                /**< rank 0: ranks that have come */
    int value;                   /**< the body's own */
    int local_rank, local_world; /**< of boot_mesh */
    bool inside;                 /**< some peer is connected over loopback */
    bool fired;                  /**< its fault was injected */
    bool leaked;                 /**< more descriptors were open afterwards */
};

struct boot_ranks {
    char job[64];
    uint64_t timeout_ns;
    uint64_t patience_ns;          /**< of those who await something; 10 s */
    uint64_t remind_ns;            /**< boot_meeting.remind_ns */
    bool all_here;                 /**< boot_meeting.all_here */
    bool (*asked)(void);           /**< boot_meeting.asked */
    struct boot_verdict *verdicts; /**< shared with the processes */
    pid_t pids[BOOT_TEST_RANKS];
    int count;
};

/** Runs in a rank after it has met the others; may be NULL. link is closed afterwards. */
typedef void (*boot_body_fn)(struct boot_link *link, int rank, int world,
                             struct boot_verdict *verdict);

/** An empty set with a job of its own. */
void boot_ranks_begin(struct boot_ranks *ranks, int timeout_ms);
/** Forks a process that does this, within so many seconds; returns its index in verdicts. */
int boot_ranks_fork(struct boot_ranks *ranks, unsigned seconds,
                    void (*body)(const void *user, struct boot_verdict *verdict), const void *user);
/** In a process: the log that its verdict keeps. */
struct base_log boot_ranks_log(struct boot_verdict *verdict, int rank);
int boot_ranks_descriptors(void);
/** Forks a process that meets as rank `rank` of `world`; returns its index in verdicts. */
int boot_ranks_start(struct boot_ranks *ranks, int rank, int world, boot_body_fn body);
/** Waits until process i has ended. */
void boot_ranks_wait(struct boot_ranks *ranks, int i);
/** Waits for all, and asserts that none of them leaked or crashed; `killed` may have been. What
 * they have seen can still be looked at. */
void boot_ranks_end(struct boot_ranks *ranks, int killed);
/** Waits until rank 0 of the job listens, which costs it a refusal: of a call that says nothing. */
void boot_ranks_await_host(const struct boot_ranks *ranks);
/** Waits until `count` other ranks have come to rank 0, which is process 0. */
void boot_ranks_await_arrivals(const struct boot_ranks *ranks, int count);
/** Waits until process 0 has refused `count` calls. */
void boot_ranks_await_refusals(const struct boot_ranks *ranks, int count);
/** A socket connected to rank 0 of the job, or -1. */
int boot_ranks_call(const struct boot_ranks *ranks);

/** Asserts the result of process i, and that its message has these parts. */
void boot_ranks_expect(const struct boot_ranks *ranks, int i, zero_result result, const char *part1,
                       const char *part2);

#endif
