/**
 * A program that a benchmark runs beside itself, to measure what another library does: for every
 * line that it reads it does its work once, and writes how many seconds that took.
 */
#ifndef TESTS_BENCH_OTHER_PROGRAM_H
#define TESTS_BENCH_OTHER_PROGRAM_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct other_program {
    pid_t pid; /**< 0: it does not run */
    FILE *asked, *told;
};

/** Starts it with these arguments, the program itself the first, and a NULL behind the last; false,
 * and a line on stderr, if it can't. */
bool other_program_start(struct other_program *program, char **arguments);

/** Has it do its work once; ends the benchmark if it doesn't. */
double other_program_time(struct other_program *program);

/** Ends it. */
void other_program_stop(struct other_program *program);

#endif
