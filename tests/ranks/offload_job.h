/**
 * tests/ranks/offload_job.h: what tests of state in files have in common: a directory, and a job
 * that keeps its state there, ends well or not, and comes back.
 */
#ifndef TESTS_RANKS_OFFLOAD_JOB_H
#define TESTS_RANKS_OFFLOAD_JOB_H

#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <stdbool.h>
#include <stdint.h>

/** Of state, and in it "saved" of checkpoints; while a test runs. */
extern struct temporary offload_directory;

/** How a job goes, and what it comes to. */
struct offload_job {
    zero_dtype dtype;
    int stage;
    int steps;                  /**< of this job */
    bool in_memory;             /**< nothing is in files */
    bool params, no_sums;       /**< working copies are, too; sums are not */
    bool dies;                  /**< ends without a clean end */
    bool comes_back;            /**< goes on from what is there */
    bool saves;                 /**< after its second step */
    uint64_t seed;              /**< 0: the default */
    int64_t persist, tile;      /**< 0: defaults, that of tests */
    uint64_t expected;          /**< the step it comes back at */
    int32_t recovered, damaged; /**< and how */
    uint8_t digest[16];         /**< at the end */
};

/** Of each test. */
int offload_set_up(void **state);
int offload_tear_down(void **state);

/** State in files, in a way that depends on the stage. */
void offload_into_files(zero_config *config);

/** Files of ranks; beside them there is only the directory of checkpoints. */
int offload_files_left(void);

struct toy offload_toy_of(const struct offload_job *job);

/** Runs a job of `world` ranks, to be found at its end in job->digest. */
void offload_run(int world, struct offload_job *job);

/** The same, and it ends with the bits of the whole one. */
void offload_run_to(const struct offload_job *whole, int world, struct offload_job *job);

#endif
