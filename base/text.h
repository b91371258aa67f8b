/**
 * base/text.h: a text that grows to the end of its owner's buffer and is cut there.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stddef.h>

/** Make one as {buffer, sizeof buffer, 0}; the buffer is the caller's. */
struct base_text {
    char *bytes;
    size_t size; /**< at least 1 */
    size_t used; /**< without the final zero */
};

/** Appends what fits; the text always ends with a zero. *Local.* */
void base_text_add(struct base_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
