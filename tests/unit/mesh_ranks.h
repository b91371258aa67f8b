/**
 * tests/unit/mesh_ranks.h: ranks as forked processes that meet over loopback, for tests of the
 * meeting of several hosts. What a rank has seen it writes into shared memory; the parent asserts.
 */
#ifndef TESTS_UNIT_MESH_RANKS_H
#define TESTS_UNIT_MESH_RANKS_H

#include "collectives/boot/mesh.h"

#include <stdbool.h>

enum { MESH_TEST_RANKS = 16 };

/** What one process saw. */
struct mesh_verdict {
    struct base_error error; /**< of whatever failed first */
    char refused[8][512];    /**< lines of its log, the first ones */
    int refusals;            /**< all of them */
    int arrivals;            /**< rank 0: ranks that have come */
    bool inside;             /**< some peer is connected over loopback */
    bool fired;              /**< its fault was injected */
    bool leaked;             /**< more descriptors were open afterwards */
};

struct mesh_ranks {
    char job[64];
    struct boot_master master;
    uint64_t timeout_ns;
    int reserved;                  /**< keeps the port from others until the ranks listen */
    struct mesh_verdict *verdicts; /**< shared with the processes */
    pid_t pids[MESH_TEST_RANKS];
    int count;
};

/** What a process is told to be. */
struct mesh_role {
    int rank, world;
    const char *job;     /**< NULL: that of the set */
    const char *secret;  /**< NULL: none */
    const char *address; /**< where it looks for rank 0; NULL: that of the set */
    const char *names;   /**< a letter for each communicator that it opens, one after the other;
                              NULL: one called "main" */
    const char *fault;   /**< of base/fault.h; NULL: none */
    int pause_ms;        /**< before each */
};

/** An empty set with a port and a job of its own. */
void mesh_ranks_begin(struct mesh_ranks *ranks, const char *address, int timeout_ms);
/** Forks a process that meets the others, and talks to each; returns its index in verdicts. */
int mesh_ranks_start(struct mesh_ranks *ranks, const struct mesh_role *role);
/** Waits for all, and asserts that none of them leaked or crashed. */
void mesh_ranks_end(struct mesh_ranks *ranks);
/** Waits until `count` other ranks have come to rank 0, which is process 0. */
void mesh_ranks_await_arrivals(const struct mesh_ranks *ranks, int count);
/** Waits until process 0 has refused `count` calls. */
void mesh_ranks_await_refusals(const struct mesh_ranks *ranks, int count);
/** A socket connected to rank 0 of the set. */
int mesh_ranks_call(const struct mesh_ranks *ranks);
/** Asserts the result of process i, and that its message has these parts. */
void mesh_ranks_expect(const struct mesh_ranks *ranks, int i, zero_result result, const char *part1,
                       const char *part2);

#endif
