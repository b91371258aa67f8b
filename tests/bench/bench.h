/**
 * Benchmarks: a row compares ours with a reference measured in the same run.
 *
 * A round measures reference, ours, reference; it counts when the two reference times differ by
 * less than 10 %, and no time is 0 or less, as a difference of two can be. A row is the median over
 * the rounds that count, of 9. Where fewer than 5 count the machine was too busy, and the row says
 * "noisy": neither met nor failed. Where a target is named the row ends with it, and with "met" or
 * "missed".
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdbool.h>

#define BENCH_ROUNDS 9

/** Does the work once and returns the seconds it took, as the row sees fit to measure them. */
typedef double (*bench_fn)(void *user);

struct bench_row {
    const char *name;
    const char *reference_name; /**< what it is compared with: "limit", "memcpy", ... */
    const char *unit;           /**< of amount / second: "GB/s" */
    double ours_amount;         /**< work of one call, in that unit */
    double reference_amount;
    bench_fn ours, reference;
    void *user;         /**< the argument of both */
    double target;      /**< the least ratio that is good enough, */
    double target_rate; /**< and the least rate of ours; 0: none is named */
};

struct bench_result {
    int counted;         /**< rounds that count */
    double ratio;        /**< rate of ours / rate of the reference: the median, */
    double lower, upper; /**< and the quartiles */
    double ours_rate;    /**< medians, in the row's unit */
    double reference_rate;
};

/** Seconds of a clock that only goes forward. */
double bench_now(void);

/** Runs a row once without measuring, then its rounds. */
struct bench_result bench_measure(const struct bench_row *row);

/** What rounds that a caller has measured by itself come to: the rates of both in each of them, at
 * most BENCH_ROUNDS, which are sorted. For parts of one call's time, which nothing else disturbs.
 */
struct bench_result bench_summary(double *ours, double *reference, int counted);

/** Prints the line that explains the columns. */
void bench_print_header(void);

/** Prints one row. */
void bench_print(const struct bench_row *row, const struct bench_result *result);

/** Measures and prints. */
void bench_run(const struct bench_row *row);

#endif
