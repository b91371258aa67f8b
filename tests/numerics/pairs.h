/**
 * pairs.h: what to run of a sweep over several dimensions: every choice, or so few of them that any
 * two values of two dimensions, if they go together at all, meet in one.
 */
#ifndef TESTS_NUMERICS_PAIRS_H
#define TESTS_NUMERICS_PAIRS_H

#include <stdbool.h>

enum { PAIRS_DIMS = 9, PAIRS_VALUES = 8 };

/** A sweep; `met` is zero at first. */
struct pairs {
    int dims;
    int sizes[PAIRS_DIMS];               /**< values of a dimension: 0 .. size-1 */
    bool (*possible)(const int *choice); /**< whether a choice makes sense */
    bool met[PAIRS_DIMS][PAIRS_VALUES][PAIRS_DIMS][PAIRS_VALUES];
};

/** What pairs_each() begins with. */
void pairs_begin(const struct pairs *pairs, int *choice);

/** Goes on to the next possible choice, the last dimension fastest. False: there is none. */
bool pairs_each(const struct pairs *pairs, int *choice);

/** Takes the choice in which most pairs meet that have not met yet, of several the first one.
 * False: all that can have met. A pure function of the sweep and of the calls before. */
bool pairs_next(struct pairs *pairs, int *choice);

#endif
