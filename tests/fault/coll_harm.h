/**
 * tests/fault/coll_harm.h: jobs of processes of which one comes to harm, and what the others saw.
 */
#ifndef TESTS_FAULT_COLL_HARM_H
#define TESTS_FAULT_COLL_HARM_H

#include "collectives/comm/comm.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    HARM_RANKS = 4,
    HARM_MESSAGE = 512,
    HARM_ELEMENTS = 20000, /**< of a rank, in bulk operations: several tiles */
    HARM_PROBLEM = 1024,
};

/** One rank's memory and requests, for the operations below. */
struct harm_rank {
    struct coll_comm *comm, *group;
    struct coll_arena *arena;
    float *source; /**< in the arena: HARM_RANKS * HARM_ELEMENTS */
    float *result; /**< as many, of this rank only */
    float *sum;    /**< HARM_ELEMENTS */
    struct coll_span elements[HARM_RANKS], bytes[HARM_RANKS];
    struct coll_request requests[2];
    int turn;
};

/** An operation that every rank calls again and again. */
struct harm_operation {
    const char *name;  /**< of the test */
    const char *point; /**< in its points: coll.<point>.post, ... */
    const char *label; /**< part of messages that name it, "" if it has no unit */
    bool meets, reads; /**< has those points */
    zero_result (*run)(struct harm_rank *rank);
    const char *opened_with; /**< a fault while the ranks meet, or NULL */
};

extern const struct harm_operation harm_operations[];
extern const int harm_operation_count;

/** Whether an operation is another one than its neighbours on a transport. */
bool harm_differs(const char *transport, const struct harm_operation *operation);

/** A job, and the harm that its rank `victim` comes to. */
struct harm {
    const char *transport; /**< "tcp": they meet at a port; NULL: "shm" */
    int world, victim;
    const struct harm_operation *operation;
    char fault[64];     /**< of base/fault.h, set in the victim; "": none, and */
    unsigned killed_us; /**< a thread of it kills it so long after the first operation */
    uint64_t stall_ns;
    size_t touched;    /**< bytes that the victim touches first */
    bool leaves_child; /**< the victim has forked a child that lives on */

    struct harm_shared *shared;
    int reserved; /**< keeps the port from others */
    pid_t pids[HARM_RANKS];
};

/** Forks the ranks. Its fields down to leaves_child are filled in. */
void harm_start(struct harm *harm);

/**
 * Waits for the survivors, ends whatever the victim has become, and checks that each survivor
 * returned `result` within limit_ns after the harm, all with one message, which has all of the
 * `words` (NULL at the end), and that later calls on each return the same. Their latencies go to
 * latencies_ns (world - 1, may be NULL). False: *problem says what was wrong.
 */
bool harm_finish(struct harm *harm, zero_result result, const char *const *words, uint64_t limit_ns,
                 uint64_t *latencies_ns, char problem[HARM_PROBLEM]);

/** Sorts latencies, prints their median, 99th percentile and greatest in ms, and returns the
 * median. */
uint64_t harm_print_latencies(const char *what, uint64_t *latencies_ns, int count);

#endif
