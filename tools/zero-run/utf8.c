#include "tools/zero-run/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static uint32_t byte_at(const char *text, size_t at)
{
    return (unsigned char)text[at];
}

// Bytes of the character that a byte begins; 0: it begins none.
static size_t length_of(uint32_t first)
{
    return first < 0x80   ? 1
           : first < 0xc2 ? 0
           : first < 0xe0 ? 2
           : first < 0xf0 ? 3
           : first < 0xf5 ? 4
                          : 0;
}

// Whether the second byte goes with the first: no character has two encodings, none is half of a
// pair of UTF-16, and none is beyond the last one.
static bool is_pair(uint32_t first, uint32_t second)
{
    const uint32_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint32_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= least && second <= most;
}

// Bytes of the character at the beginning; 0: it is none. A text that ends with a zero is not read
// beyond that.
static size_t read_character(const char *text)
{
    const size_t length = length_of(byte_at(text, 0));
    for (size_t i = 1; i < length; i++)
        if (i == 1 ? !is_pair(byte_at(text, 0), byte_at(text, 1)) : byte_at(text, i) >> 6 != 2)
            return 0;
    return length;
}

size_t run_utf8_whole(const char *text, size_t length)
{
    size_t begin = length;
    while (begin > 0 && length - begin < 3 && byte_at(text, begin - 1) >> 6 == 2)
        begin--;
    if (begin == 0 || length_of(byte_at(text, begin - 1)) <= length - begin + 1)
        return length;
    return begin - 1;
}

void run_utf8_clean(char *text)
{
    text[run_utf8_whole(text, strlen(text))] = '\0';
    for (size_t length; *text; text += length ? length : 1) {
        length = read_character(text);
        if (length == 0)
            *text = '?';
    }
}
