/**
 * tests/unit/coll_ranks.h: runs one function as every rank of a communicator, as threads of this
 * process or as processes forked from it.
 */
#ifndef TESTS_UNIT_COLL_RANKS_H
#define TESTS_UNIT_COLL_RANKS_H

#include "collectives/comm/comm.h"

#include <stdio.h>

/** What a rank does; returns whether all was as it should be. */
typedef bool (*rank_fn)(struct coll_comm *comm, void *user);

/** Opens a communicator of `world` ranks, runs fn in each, closes it: threads of this process over
 * "self", "threads", "tcp:threads" and "hosts:threads", else processes. By "tcp" each is on a host
 * of its own, by "hosts" they are on two hosts in turn, over tcp, by "hosts/3" the first three are
 * on one host, and so on. With ZERO_TEST_PROVIDER=ucx those
 * of "tcp" go by "ucx", and no others run. False if anything failed; the rank has said what.
 * timeout_ns 0: a minute; that of the opening is never shorter. */
bool run_ranks(const char *transport, int world, uint64_t timeout_ns, rank_fn fn, void *user);

/** run_ranks() over "shm", whose rank `victim` is expected to be killed. */
bool run_ranks_killed(int world, int victim, rank_fn fn, void *user);

/** run_ranks_killed() over another transport. */
bool run_killed_by(const char *transport, int world, int victim, rank_fn fn, void *user);

/** run_ranks_killed() with a time-out and a longest silence; a victim of -1: all ranks end by
 * themselves. */
bool run_ranks_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                       void *user);

/** run_ranks_watched() over "hosts". */
bool run_hosts_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                       void *user);

/** run_ranks_watched() over "tcp". */
bool run_tcp_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                     void *user);

/** In a rank function, where cmocka can't be used: says what is wrong and ends the rank. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/** CHECK that a call returns ZERO_OK, with the communicator's message. */
#define CHECK_OK(comm, call) CHECK(rank_ok((comm), (call), #call))

bool rank_ok(const struct coll_comm *comm, zero_result result, const char *call);

/** A function of its arguments, of which all bits look random. */
uint32_t mix(uint32_t a, uint32_t b, uint32_t c);

/** Sleeps for a random time of up to `most` microseconds, now and then not at all. */
void nap(uint32_t *state, unsigned most);

#endif
