/**
 * collectives/tcp/tcp.h: blocks of host/ for ranks that share no memory: those of other hosts,
 * which are far from each other.
 *
 * Each rank has a connection to every other one, and a copy of each far one's block. A block has
 * one writer, its owner. Each rank has one thread for this. Whenever host/ would wake the far
 * peers, the thread sends them what has changed in its rank's block. Ranks of one host see each
 * other's blocks, and tell each other only of failures, and that they live or leave. It writes what
 * peers send into the copies, and wakes its rank. There is no queue of what is to be sent: it is
 * the difference between the block and what a peer was told of it. So it needs no memory, however
 * slow a peer is. What comes always has its place, so every rank always reads, and no two ranks
 * wait for each other to do so. Bytes of sources are asked for in pieces, one at a time between two
 * ranks, and sent by their owner's thread, whatever its rank is about.
 *
 *   tcp_wire.h        what is sent.
 *   tcp_connection.c  a connection: bytes in and out.
 *   tcp_tx.c          what a peer is to be told.
 *   tcp_rx.c          what peers have said, every word of it checked.
 *   tcp_group.c       the blocks of groups; what peers still need when this rank wants to leave.
 *   tcp_failure.c     how all come to the same failure.
 *   tcp_refusal.c     why a rank that has met the others does not join them.
 *   tcp_show.c        small arenas that peers see.
 *   tcp_deaths.c      ranks whose connection ends, and silent ones.
 *   tcp_thread.c      the thread.
 *
 * This thread also tells of the comm world's failure and hears of it. It sees the end of a
 * connection: a peer that has not said that it leaves is dead. Every tick it sends something, and a
 * rank that has sent nothing for stall_ns is silent: counted in ticks, because a job that is
 * suspended as a whole has lost time, but no rank.
 *
 * Points of base/fault.h: net.thread (its creation), net.send and net.receive (each call),
 * net.short (each call: one byte is moved, which is no error).
 */
#ifndef COLLECTIVES_TCP_TCP_H
#define COLLECTIVES_TCP_TCP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct boot_mesh;
struct coll_arena;
struct coll_comm;
struct coll_net;

/** Bytes of a rank's connections and copies among `world`. *Local.* */
size_t coll_net_bytes(int world);

/**
 * Makes the copies, which it fills in as the far ranks' blocks. `root` has its tables and its own
 * block. stall_ns 0: silence is no matter. *Local.* *net is NULL after an error: ZERO_E_NOMEM (no
 * memory, no descriptor).
 */
zero_result coll_net_create(struct coll_net **net, struct coll_comm *root,
                            const struct boot_mesh *mesh, uint64_t stall_ns,
                            struct base_error *error);

/** Takes the mesh's sockets and starts the thread. `root` has joined. *Local.* ZERO_E_NOMEM: there
 * is none, and the mesh still has its sockets. */
zero_result coll_net_start(struct coll_net *net, struct boot_mesh *mesh, struct base_error *error);

/** Tells all who have met why this rank cannot go on, without waiting: its connections end next.
 * *Local.* */
void coll_net_refuse(const struct boot_mesh *mesh, int rank, zero_result result,
                     const char *message);

/** Whether a rank that this one has met, and whose socket the mesh still has, has said that it
 * cannot go on, or has ended: ZERO_OK if it has not. Its reason is not taken from the socket.
 * *Local.* */
zero_result coll_net_refusal(const struct boot_mesh *mesh, int rank, struct base_error *error);

/** Passes on what coll_net_refusal() has found, a whole message. *Local.* */
void coll_net_pass_on(const struct boot_mesh *mesh, const struct base_error *refusal);

/** Sends what has changed. *Local*, any thread, never waits. */
void coll_net_send_changes(struct coll_net *net);

/** The process of a rank of this host has ended: as its connection will show. *Local*, any thread.
 */
void coll_net_died(struct coll_net *net, int rank);

/** Receives what has come, and answers, if the thread is not at it: spares a rank that spins the
 * thread's waking up. From the first call on the thread leaves the connections alone, until
 * coll_net_poll_end(). *Local*, the rank's thread, never waits. */
void coll_net_poll(struct coll_net *net);

/** Leaves the connections to the thread again. *Local*, the rank's thread. */
void coll_net_poll_end(struct coll_net *net);

/** A failure was returned: this rank's sources are not read from now on. *Local.* */
void coll_net_revoke(struct coll_net *net);

/** This rank is about to leave and reads nothing more of the others'. Waits until no living rank
 * needs anything of its own sources, at most timeout_ns; not at all after a failure. *Local.* */
void coll_net_drain(struct coll_net *net, uint64_t timeout_ns);

/** This rank has left: ends the thread, which first sends what is to be sent, and waits until the
 * others' systems have it: for the stall at most, without one for 30 s, after a failure for 3 s,
 * and never for longer than the time-out. *Local.* */
void coll_net_stop(struct coll_net *net);

/** Closes the sockets and frees everything. The thread has ended, or is another process's, whose
 * child of fork() this is. *Local.* Accepts NULL. */
void coll_net_free(struct coll_net *net);

/** Where a rank runs: its host's name. *Local.* */
const char *coll_net_host(const struct coll_net *net, int rank);

/* ------------------------------------------------------------------ tcp_group.c */

/** This rank's block of a group lies in `group_slot`; makes copies of the others'. *Local.*
 * ZERO_E_NOMEM: coll_net_group_close() is still called. */
zero_result coll_net_group_prepare(struct coll_net *net, struct coll_comm *group, size_t group_slot,
                                   struct base_error *error);

/** Looks at the block in `group_slot` of a rank of the group. *Local.* */
void coll_net_group_meet(struct coll_net *net, struct coll_comm *group, int rank,
                         size_t group_slot);

/** Looks at no block of the group any more: `close` is called, which frees its link. *Local.* */
void coll_net_group_close(struct coll_net *net, struct coll_comm *group,
                          void (*close)(struct coll_comm *group));

/* ------------------------------------------------------------------ tcp_show.c */

/** Shows the others what is in a small arena from now on, and what they show is written into it:
 * arena->peers and peer_bytes are filled in. *Local.* ZERO_E_NOMEM. */
zero_result coll_net_show_prepare(struct coll_net *net, const struct coll_arena *arena,
                                  struct base_error *error);
void coll_net_show_forget(struct coll_net *net, const struct coll_arena *arena);

/** As coll_arena_show(). */
void coll_net_show(struct coll_net *net, const struct coll_arena *arena);

#endif
