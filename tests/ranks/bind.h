/**
 * tests/ranks/bind.h: a processor for a rank.
 */
#ifndef TESTS_RANKS_BIND_H
#define TESTS_RANKS_BIND_H

#include <stdbool.h>

/** Binds this thread to the rank-th of the processors it may use, which are counted round and
 * round. */
bool bind_rank(int rank);

#endif
