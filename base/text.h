/**
 * base/text.h: a text that grows to the end of its owner's buffer and is cut there.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/** Make one as {buffer, sizeof buffer, 0}; the buffer is the caller's. */
struct base_text {
    char *bytes;
    size_t size; /**< at least 1 */
    size_t used; /**< without the final zero */
};

/** Appends what fits; the text always ends with a zero. *Local.* */
void base_text_add(struct base_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum { BASE_SHAPE_BYTES = 192 };

/** A tensor's shape as people write it: "(768, 1)", "(768,)", "()". Returns `out`. *Local.* */
const char *base_shape_text(const uint64_t *shape, int ndim, char out[BASE_SHAPE_BYTES]);

#endif
