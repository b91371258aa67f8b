/**
 * tests/bench/bench_save.h: the rows of bench_save.c that are counted, and not measured in pairs.
 */
#ifndef TESTS_BENCH_BENCH_SAVE_H
#define TESTS_BENCH_BENCH_SAVE_H

#include "base/arena.h"
#include "tests/ranks/team.h"

enum { SAVE_PATH = 1024 };

/** Commits a model of `units` units of one tensor in rank->z. */
bool save_commit(struct team_rank *rank, int units, uint64_t unit_elements, zero_fill_fn values);

/** Prints what ranks read at a load with another number of ranks, over their share of what was
 * saved. `directory` is empty, or is made. */
bool save_print_reads(const char *directory);

/** Prints how long it takes from a rank's death to the job's next step, under this zero-run. */
bool save_print_restarts(const char *directory, const char *zero_run, const char *self);

/** What a rank of that job does; returns its exit status. */
int save_rank(const char *directory);

#endif
