/**
 * collectives/transport/near.h: the ranks of one host, as one of them sees them: its near ranks.
 * They are processes. Blocks and arenas are memfds: their owner allocates and touches them, the
 * other near ranks map them to read and write. A rank's blocks are one memfd, with room for those
 * of its groups, which get their pages when they are made. Descriptors travel over the near ranks'
 * own link (rendezvous/rendezvous.h), where a rank has its number among them.
 */
#ifndef COLLECTIVES_TRANSPORT_NEAR_H
#define COLLECTIVES_TRANSPORT_NEAR_H

#include "collectives/host/host.h"
#include "collectives/rendezvous/rendezvous.h"

struct coll_live;

struct coll_near {
    struct coll_comm *root;
    int *ranks; /**< of each near rank, this one included: its number in the root, ascending */
    int count;
    int self;               /**< this rank's number among them */
    struct boot_link *link; /**< NULL: there was no need to meet, or they have not met */
    struct coll_live *live; /**< NULL: there is no other near rank, or no watch */
    pid_t process;          /**< that has opened it */
    int blocks;             /**< the descriptor of this rank's blocks; -1: none yet */
    size_t room;            /**< bytes behind the blocks for whatever the transport keeps there */
    int *descriptors;       /**< of each near rank: room for what the others give, */
    size_t *bytes;          /**< its size, */
    void **mapped;          /**< and where it is mapped */
};

/** Finds the near ranks: those that are not far, as the root's struct host_comm says. *Local.*
 * ZERO_E_NOMEM; after an error coll_near_close() is still called. */
zero_result coll_near_init(struct coll_near *near, struct coll_comm *root, size_t room,
                           struct base_error *error);

/** Meets the other near ranks, as `meeting` says (NULL: there is none), and maps their blocks,
 * which become the root's. *Collective* over the near ranks. Errors: boot_meet(). */
zero_result coll_near_meet(struct coll_near *near, const struct boot_meeting *meeting,
                           struct base_error *error);

/** Starts this rank's part of the watch over the near ranks (liveness/), and, when all of them have
 * done so, watches. The root has joined. *Local.* ZERO_E_NOMEM. */
zero_result coll_near_begin_watch(struct coll_near *near, uint64_t stall_ns,
                                  struct base_error *error);
void coll_near_watch(struct coll_near *near);

/** Finds out whether all near ranks can read each other's memory: *allowed is the same on all.
 * *Collective* over the near ranks. */
zero_result coll_near_probe(struct coll_near *near, uint64_t deadline_ns, bool *allowed,
                            struct base_error *error);

/** What the transport keeps behind a near rank's blocks, by its number in the root; of this rank
 * with pages. *Local.* ZERO_E_NOMEM. */
unsigned char *coll_near_room(const struct coll_near *near, int rank);
zero_result coll_near_room_allocate(struct coll_near *near, struct base_error *error);

/** Whether this process has opened it: a child made by fork() has no thread, and its parent does
 * not leave when it closes. *Local.* */
bool coll_near_is_ours(const struct coll_near *near);

/** Ends the watch, forgets the blocks and frees everything. The rank has left, if it ever joined.
 * *Local.* Accepts an all-zero one. */
void coll_near_close(struct coll_near *near);

/** A group slot of this rank; the block in a group slot of a near rank, by its number in the root.
 * *Local.* ZERO_E_NOMEM. */
zero_result coll_near_add_group_slot(struct coll_near *near, size_t index, size_t bytes,
                                     struct host_block **block, struct base_error *error);
struct host_block *coll_near_group_slot(const struct coll_near *near, int rank, size_t index);

/** As dead_in_sight and dead_peer of struct coll_transport, of the near ranks. *Local.* */
int coll_near_dead_in_sight(const struct coll_near *near);
int coll_near_dead_peer(const struct coll_near *near);

/** As arena_alloc, arena_share, arena_fill, arena_populate and arena_free of struct coll_transport:
 * the arenas of near ranks are mapped; of far ones there is nothing. A shared one is the host's,
 * and pages that far ranks take care of are allocated by the near ranks together. */
zero_result coll_near_arena_alloc(struct coll_near *near, struct coll_arena *arena,
                                  struct base_error *error);
zero_result coll_near_arena_share(struct coll_near *near, struct coll_arena *arena,
                                  struct base_error *error);
zero_result coll_near_arena_fill(struct coll_near *near, struct coll_arena *arena,
                                 struct base_error *error);
zero_result coll_near_arena_populate(struct coll_near *near, struct coll_arena *arena,
                                     struct base_error *error);
void coll_near_arena_free(struct coll_near *near, struct coll_arena *arena);

#endif
