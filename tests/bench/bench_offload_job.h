/**
 * tests/bench/bench_offload_job.h: the row of bench_offload that needs a whole engine.
 */
#ifndef TESTS_BENCH_BENCH_OFFLOAD_JOB_H
#define TESTS_BENCH_BENCH_OFFLOAD_JOB_H

#include <stdbool.h>

/** Steps at stage 3 with parameters in files of the directory, against the same steps without the
 * time in which they wait for gathers. Two ranks, or one where there is one processor only. */
bool offload_job_row(const char *directory);

#endif
