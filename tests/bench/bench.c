#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ENOUGH = 5 };

static const double largest_spread = 0.1;

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The value below which `part` of the sorted ones lie, interpolated.
static double quantile(const double *sorted, int count, double part)
{
    const double place = part * (count - 1);
    const int below = (int)place;
    const int above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return quantile(values, count, 0.5);
}

struct bench_result bench_summary(double *ours, double *reference, int counted)
{
    struct bench_result result = {.counted = counted};
    double ratio[BENCH_ROUNDS];
    if (counted == 0)
        return result;
    for (int i = 0; i < counted; i++)
        ratio[i] = ours[i] / reference[i];
    result.ratio = median(ratio, counted);
    result.lower = quantile(ratio, counted, 0.25);
    result.upper = quantile(ratio, counted, 0.75);
    result.ours_rate = median(ours, counted);
    result.reference_rate = median(reference, counted);
    return result;
}

struct bench_result bench_measure(const struct bench_row *row)
{
    double ours[BENCH_ROUNDS], reference[BENCH_ROUNDS];
    int counted = 0;
    row->reference(row->user);
    row->ours(row->user);
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        const double before = row->reference(row->user);
        const double between = row->ours(row->user);
        const double after = row->reference(row->user);
        if (!(between > 0) || !(fabs(after - before) < largest_spread * fmin(before, after)))
            continue;
        ours[counted] = row->ours_amount / between;
        reference[counted++] = row->reference_amount / (0.5 * (before + after));
    }
    return bench_summary(ours, reference, counted);
}

void bench_print_header(void)
{
    printf("%-40s %10s %10s %-6s %6s  %-14s %s\n", "row", "ours", "reference", "unit", "ratio",
           "quartiles", "rounds, reference");
}

static const char *verdict(const struct bench_row *row, const struct bench_result *result)
{
    if (result->counted < ENOUGH)
        return ", noisy";
    if (row->target <= 0.0 && row->target_rate <= 0.0)
        return "";
    return result->ratio >= row->target && result->ours_rate >= row->target_rate ? ": met"
                                                                                 : ": missed";
}

void bench_print(const struct bench_row *row, const struct bench_result *result)
{
    printf("%-40s %10.4g %10.4g %-6s %6.3f  [%.3f, %.3f] %d of %d, %s", row->name,
           result->ours_rate, result->reference_rate, row->unit, result->ratio, result->lower,
           result->upper, result->counted, BENCH_ROUNDS, row->reference_name);
    if (row->target > 0.0)
        printf(", target %g", row->target);
    if (row->target_rate > 0.0)
        printf(", target %g %s", row->target_rate, row->unit);
    puts(verdict(row, result));
    fflush(stdout);
}

void bench_run(const struct bench_row *row)
{
    const struct bench_result result = bench_measure(row);
    bench_print(row, &result);
}
