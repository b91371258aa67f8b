/**
 * collectives/comm/transport.h: what moves the bytes of a communicator.
 *
 * The files above check arguments, keep the queues of requests, wait and fail; a transport starts
 * requests and works on the oldest of them. A new transport is one file here and one line in the
 * list of transport.c. All share the algorithms of host/. They differ in how ranks meet, where
 * memory comes from, and how peers see what a rank has posted. With self, threads and shm it lies
 * in memory that peers address; tcp sends it (tcp/).
 */
#ifndef COLLECTIVES_COMM_TRANSPORT_H
#define COLLECTIVES_COMM_TRANSPORT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coll_arena;
struct coll_comm;
struct coll_config;
struct coll_request;
struct coll_span;

/** What a wait is for. */
enum coll_goal {
    COLL_GOAL_COMPLETE, /**< the request's result is here */
    COLL_GOAL_DRAINED,  /**< its source is not read any more */
    COLL_GOAL_ROOM,     /**< it can be posted */
};

/** A transport's answer to "is this rank what the goal waits for?" */
enum coll_presence {
    COLL_PRESENT, /**< no */
    COLL_ABSENT,  /**< yes */
    COLL_LEFT,    /**< yes, and in vain: it has closed the communicator */
};

struct coll_transport {
    size_t size; /**< sizeof(struct coll_transport) of the code that filled it */

    /** Bytes of control memory of a rank among `world`. */
    size_t (*memory)(int world);
    /** Meets the other ranks; sets comm->link, and the comm world's poison, spins, spin_ns, yields
     * and unregistered_path. After an error `close` is still called. */
    zero_result (*open)(struct coll_comm *comm, const struct coll_config *config,
                        struct base_error *error);
    /** Leaves, while groups' slots and arenas are still there; `close` then finds that it has.
     * NULL: `close` does. */
    void (*leave)(struct coll_comm *root);
    /** Leaves, and frees comm->link; that may be NULL or half-built. The groups and the arenas are
     * gone. */
    void (*close)(struct coll_comm *root);

    /** A failure is about to be returned for the first time on this rank, whose sources may be gone
     * then: no thread reads them for others any more. NULL: none does. */
    void (*revoke)(struct coll_comm *root);
    /** The name of a rank's host. NULL: there is one. */
    const char *(*host)(const struct coll_comm *root, int rank);

    /** Makes this rank's part of a group whose world, rank and root_ranks are filled in: sets
     * comm->link, and *part, by which the others find it. After an error group_close is still
     * called. */
    zero_result (*group_prepare)(struct coll_comm *comm, size_t *part, struct base_error *error);
    /** Parts are numbers below this one; 0: they are addresses. */
    size_t group_parts;
    /** Finds a rank's part. Called for every rank of the group in turn, and after group_prepare has
     * succeeded on all of them. */
    void (*group_meet)(struct coll_comm *comm, int rank, size_t part);
    /** Leaves a group, and frees comm->link; that may be NULL or half-built. */
    void (*group_close)(struct coll_comm *comm);

    /** Allocates this rank's bytes, or makes the memory of a shared arena: sets arena->memory, and
     * base unless the arena is shared. After an error arena_free is still called. */
    zero_result (*arena_alloc)(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error);
    /** Makes the bytes visible to the others and finds theirs: fills in arena->peers, or base of a
     * shared one, whose pages `mine` this rank allocates. Every rank calls it after arena_alloc has
     * succeeded on all; peer_bytes is known. */
    zero_result (*arena_share)(struct coll_comm *comm, struct coll_arena *arena,
                               struct base_error *error);
    /** Allocates this rank's part of a shared arena's pages that no rank of its host takes care of.
     * Every rank calls it after arena_share has succeeded on all. NULL: there are none. */
    zero_result (*arena_fill)(struct coll_comm *comm, struct coll_arena *arena,
                              struct base_error *error);
    /** Fills in the page tables of a shared arena's base and view, and peers. Every rank calls it
     * after arena_fill has succeeded on all. */
    zero_result (*arena_populate)(struct coll_comm *comm, struct coll_arena *arena,
                                  struct base_error *error);
    /** As coll_arena_show(). Any thread. NULL: peers see it. */
    void (*arena_show)(struct coll_comm *comm, struct coll_arena *arena);
    /** Undoes all of it as far as it went. */
    void (*arena_free)(struct coll_comm *comm, struct coll_arena *arena);

    /** Starts a request. ZERO_AGAIN: too many are under way, nothing was done; never for a message.
     */
    zero_result (*start)(struct coll_comm *comm, struct coll_request *request);
    /** Works on the oldest requests and retires (coll_retire) those that are complete. ZERO_AGAIN:
     * nothing was moved. Negative: coll_fail() was called. */
    zero_result (*progress)(struct coll_comm *comm);
    /** Whether no rank reads the source of a complete request any more. */
    bool (*drained)(const struct coll_comm *comm, const struct coll_request *request);

    /** Whether the goal waits for `rank`. */
    enum coll_presence (*presence)(const struct coll_comm *comm, const struct coll_request *request,
                                   enum coll_goal goal, int rank);
    /** Writes where a rank stands: the last operation it has started. */
    void (*last_call)(const struct coll_comm *comm, int rank, char *text, size_t size);
    /** A rank of the root that has died, or -1. NULL: no rank dies alone, and both are. */
    int (*dead_peer)(const struct coll_comm *root);
    /** dead_peer() from what can be seen without a system call: a rank that dies may not be seen
     * yet.
     */
    int (*dead_in_sight)(const struct coll_comm *root);

    /** Brings what other ranks have sent, without waiting: for a rank that spins. A thread does so
     * otherwise, and again from poll_end on. NULL: what they have done is seen at once. */
    void (*poll)(struct coll_comm *comm);
    void (*poll_end)(struct coll_comm *comm);

    /** Wakes every rank of the communicator that sleeps. Any thread. */
    void (*wake)(struct coll_comm *comm);
    /** Says that this rank is about to sleep; what happens in the comm world from now on ends the
     * sleep. */
    void (*sleep_begin)(struct coll_comm *comm);
    /** Sleeps until something happens or the time is over. */
    void (*sleep)(struct coll_comm *comm, uint64_t timeout_ns);
    void (*sleep_end)(struct coll_comm *comm);
};

extern const struct coll_transport coll_transport_shm;
extern const struct coll_transport coll_transport_tcp;
extern const struct coll_transport coll_transport_threads; /**< "self" and "threads" */

/** The transport that a configuration calls `name`, NULL if there is none. *Local.* */
const struct coll_transport *coll_transport_find(const char *name);

#endif
