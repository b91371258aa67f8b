#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void base_text_add(struct base_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int wanted =
        vsnprintf(text->bytes + text->used, text->size - text->used, format, arguments);
    va_end(arguments);
    if (wanted > 0)
        text->used += strlen(text->bytes + text->used);
}
