/**
 * tools/zero-run/utf8.h: texts that were cut at a number of bytes, or are of some other encoding,
 * where UTF-8 is asked for. JSON takes no other bytes.
 */
#ifndef TOOLS_ZERO_RUN_UTF8_H
#define TOOLS_ZERO_RUN_UTF8_H

#include <stddef.h>

/** How many of the first `length` bytes of a text are whole characters: all, or without a last one
 * that is cut. Bytes that are no UTF-8 count as characters. *Local.* */
size_t run_utf8_whole(const char *text, size_t length);

/** Takes a last character away that is cut, and puts '?' in the place of each byte that is no
 * UTF-8. *Local.* */
void run_utf8_clean(char *text);

#endif
