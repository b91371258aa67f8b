/**
 * tests/bench/job.h: rows that several ranks measure together. Rank 0 measures and tells the others
 * what to do next, ours or the reference, so that both run with all ranks at work; between the two
 * they wait in our communicator, asleep if it takes long.
 */
#ifndef TESTS_BENCH_JOB_H
#define TESTS_BENCH_JOB_H

#include "collectives/comm/comm.h"
#include "tests/bench/bench.h"

/** This rank's part of the work of this number, >= 0. */
typedef zero_result (*job_work_fn)(void *user, int work);

struct job {
    struct coll_comm *comm;
    job_work_fn run;
    void *user;
};

/** What a row compares. */
struct job_row {
    const char *name; /**< "barrier, shm": the number of ranks is added */
    int work;
    double amount;
    int reference;
    double reference_amount;
    const char *reference_name;
    const char *unit;
    double target;      /**< see struct bench_row */
    double target_rate; /**< see struct bench_row */
};

/** What one process does as a rank of the job of this name; returns its exit status. */
typedef int (*job_rank_fn)(int rank, int world, const char *job, void *user);

/** Runs it as ranks 0 .. world-1, rank 0 in this process; 0 if all returned 0. */
int job_processes(int world, job_rank_fn fn, void *user);

/** Opens rank `rank` of a job's communicator over "shm", on a processor of its own while there are
 * enough. */
zero_result job_open(struct coll_comm **comm, int rank, int world, const char *job,
                     struct base_error *error);

/** Measures a row and prints it; rank 0. */
void job_measure(struct job *job, const struct job_row *row);

/** Lets the others go; rank 0. */
zero_result job_finish(struct job *job);

/** Does what rank 0 says until it lets go; every other rank. */
zero_result job_follow(struct job *job);

#endif
