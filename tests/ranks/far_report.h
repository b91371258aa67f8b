/**
 * tests/ranks/far_report.h: what far_rank says of its failure.
 */
#ifndef TESTS_RANKS_FAR_REPORT_H
#define TESTS_RANKS_FAR_REPORT_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct far_report {
    int result;       /**< of its last call */
    uint64_t at_ns;   /**< when that returned, by the monotonic clock */
    const char *text; /**< the error's, up to the end of the line */
};

/** Finds it in what ranks have written. False: that rank has said nothing. */
static inline bool far_report_read(const char *output, int rank, struct far_report *report)
{
    char words[32];
    int used = 0;
    snprintf(words, sizeof words, "rank %d failed, ", rank);
    const char *at = strstr(output, words);
    if (!at || sscanf(at + strlen(words), "%d at %" SCNu64 ": %n", &report->result, &report->at_ns,
                      &used) < 2)
        return false;
    report->text = at + strlen(words) + used;
    return true;
}

#endif
