/**
 * tests/ranks/team.h: runs one function as every rank of a job, as threads of this process or as
 * processes forked from it, and collects their verdicts.
 *
 * Rank functions can't use cmocka: they say what is wrong (TEAM_CHECK, TEAM_OK) and return false;
 * the test asserts the verdict of the team.
 */
#ifndef TESTS_RANKS_TEAM_H
#define TESTS_RANKS_TEAM_H

#include <zero/zero.h>

#include <stdbool.h>
#include <stdio.h>

/** One rank of a team. */
struct team_rank {
    int rank;
    int world;
    zero_config config; /**< place, transport and team filled in; silent; time-out 20 s */
    zero_ctx *z;        /**< what team_open() opened; closed when the rank is done */
    void *user;
};

/** What a rank does; returns whether all was as it should be. */
typedef bool (*team_fn)(struct team_rank *rank, void *user);

/**
 * Runs fn as ranks 0 .. world-1 over "self", "threads" or "shm" and waits for them. Threads share
 * `user` with the caller; processes (shm) have a copy, but for memory of team_shared(). True if
 * every rank returned true.
 */
bool team_run(const char *transport, int world, team_fn fn, void *user);

/** team_run() over "shm" whose rank `victim` is killed. */
bool team_run_killed(int world, int victim, team_fn fn, void *user);

/** The same where it may also come to its end by itself: *killed says what it was. */
bool team_run_endangered(int world, int victim, bool *killed, team_fn fn, void *user);

/** The transport for ranks that are threads: "self" for one. */
const char *team_threads(int world);

/** Opens rank->z with rank->config; says why if it can't. */
bool team_open(struct team_rank *rank);

/** Closes rank->z, which may be NULL, so that another one can be opened. */
void team_close(struct team_rank *rank);

/** In a rank function, on all ranks: a call that fails on all of them at once, so that none of them
 * ends well. */
bool team_break_off(struct team_rank *rank);

/** Zeroed memory that forked ranks share with the caller; NULL if there is none. */
void *team_shared(size_t bytes);
void team_shared_free(void *memory, size_t bytes);

/** In a rank function: says what is wrong and ends the rank. */
#define TEAM_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/** TEAM_CHECK that a call with rank->z returns ZERO_OK. */
#define TEAM_OK(rank, call) TEAM_CHECK(team_ok((rank), (call), #call))

/** Says what failed and why if result is not ZERO_OK. */
bool team_ok(const struct team_rank *rank, zero_result result, const char *call);

#endif
