/**
 * tests/unit/mesh_ranks.h: ranks as forked processes that meet over loopback, for tests of the
 * meeting of several hosts. What a rank has seen it writes into shared memory; the parent asserts.
 */
#ifndef TESTS_UNIT_MESH_RANKS_H
#define TESTS_UNIT_MESH_RANKS_H

#include "collectives/rendezvous/mesh.h"
#include "tests/unit/boot_ranks.h"

#include <stdbool.h>

struct mesh_ranks {
    struct boot_ranks set;
    struct boot_master master;
    int reserved; /**< keeps the port from others until the ranks listen */
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
    const char *host_id; /**< boot_meeting.host_id; NULL: each rank has a host of its own */
    bool each_rank;      /**< boot_meeting.each_rank */
    int pause_ms;        /**< before each */
    int spare;           /**< descriptors that it can have; 0: as many as the test */
};

/** An empty set with a port and a job of its own. */
void mesh_ranks_begin(struct mesh_ranks *ranks, const char *address, int timeout_ms);
/** Forks a process that meets the others (verdict.value: it has), and talks to each; returns its
 * index in verdicts. */
int mesh_ranks_start(struct mesh_ranks *ranks, const struct mesh_role *role);
/** Waits for all, and asserts that none of them leaked or crashed. */
void mesh_ranks_end(struct mesh_ranks *ranks);
/** A socket connected to rank 0 of the set. */
int mesh_ranks_call(const struct mesh_ranks *ranks);
/** Listens in place of rank 0. */
int mesh_ranks_usurp(const struct mesh_ranks *ranks);
/** Takes the next call, which comes in the patience of the set. */
int mesh_ranks_take_call(const struct mesh_ranks *ranks, int listener);

#endif
