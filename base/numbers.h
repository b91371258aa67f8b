/**
 * base/numbers.h: a list of numbers as people write it: "ranks 1-5, 7".
 */
#ifndef BASE_NUMBERS_H
#define BASE_NUMBERS_H

enum { BASE_NUMBERS_BYTES = 160 }; /**< of a list with its final zero */

/** A list that grows. All zero: empty. */
struct base_numbers {
    char text[BASE_NUMBERS_BYTES];
    int count;       /**< numbers that were added, */
    int first, last; /**< those of them in one run that are not yet in the text, */
    int shown;       /**< and those that are */
};

/** Adds a number; runs are what comes in ascending order. *Local.* */
void base_numbers_add(struct base_numbers *numbers, int number);

/** The list, with the word for one of the things that are numbered: "no rank", "rank 2", "ranks 2,
 * 3", "ranks 1-5, 7"; as many as fit, and how many more. No more can be added then. *Local.* */
const char *base_numbers_text(struct base_numbers *numbers, const char *one);

#endif
