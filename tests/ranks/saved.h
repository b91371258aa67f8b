/**
 * tests/ranks/saved.h: what tests of checkpoints have in common.
 */
#ifndef TESTS_RANKS_SAVED_H
#define TESTS_RANKS_SAVED_H

#include "tests/ranks/toy.h"

enum { SAVED_PATH = 128, SAVED_AT = 2 };

/** The path of a checkpoint. */
void saved_path(char path[SAVED_PATH], const char *directory, uint64_t step);

/** Saves and waits. */
bool saved_now(struct team_rank *rank, const char *directory, const zero_save_options *options);

/** What ranks do: toy_odd after steps 1 to SAVED_AT is saved in the directory that `user` is. */
bool saved_steps(struct team_rank *rank, void *user);

/** Rank 0 sets faults of the process while the others wait. */
bool saved_fault(struct team_rank *rank, const char *fault);

/** zero_save_options_default() with a level, room, and what is kept. */
zero_save_options saved_options(int level, int64_t room_bytes, int keep, int keep_every);

/** In a rank function: TEAM_CHECK of a call that fails with this result, and with these words in
 * its message. */
#define TEAM_FAILS(rank, call, error, words)                                                       \
    TEAM_CHECK(saved_fails((rank), (call), (error), (words), #call))

bool saved_fails(const struct team_rank *rank, zero_result result, zero_result expected,
                 const char *words, const char *call);

/** TEAM_CHECK that the state is the one with this fingerprint. */
#define TEAM_STATE(rank, digest) TEAM_CHECK(saved_state((rank), (digest)))

bool saved_state(const struct team_rank *rank, const uint8_t digest[16]);

#endif
