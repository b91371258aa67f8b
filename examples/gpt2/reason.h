/**
 * reason.h: why something was refused, in one line.
 */
#ifndef GPT2_REASON_H
#define GPT2_REASON_H

#include <stdbool.h>

/** Belongs to the caller, which prints it. */
struct reason {
    char text[512];
};

/** Says why; returns false, for `return refuse(...)`. */
bool refuse(struct reason *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
