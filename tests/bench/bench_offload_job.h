/**
 * tests/bench/bench_offload_job.h: the rows of bench_offload that need a whole engine.
 */
#ifndef TESTS_BENCH_BENCH_OFFLOAD_JOB_H
#define TESTS_BENCH_BENCH_OFFLOAD_JOB_H

#include <stdbool.h>

/** Steps at stage 3 with state in files of the directory. */
enum offload_job {
    OFFLOAD_PARAMS, /**< parameters in others; against the same steps without the time in which a
                         rank waits for gathers */
    OFFLOAD_FUSED,  /**< fused; against those that are not */
    OFFLOAD_SAVES,  /**< beside a save to the same disk, until it is complete; against those
                         without */
};

/** Measures it and prints the row. Two ranks, or one where there is one processor only. */
bool offload_job_row(const char *directory, enum offload_job job);

#endif
