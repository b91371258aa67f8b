#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void base_text_add(struct base_text *text, const char *format, ...)
{
    assert(text->size > 0 && text->used < text->size);
    va_list arguments;
    va_start(arguments, format);
    const int wanted =
        vsnprintf(text->bytes + text->used, text->size - text->used, format, arguments);
    va_end(arguments);
    if (wanted > 0)
        text->used += strlen(text->bytes + text->used);
    assert(text->used < text->size);
}

const char *base_shape_text(const uint64_t *shape, int ndim, char out[BASE_SHAPE_BYTES])
{
    assert(ndim >= 0);
    struct base_text text = {out, BASE_SHAPE_BYTES, 0};
    base_text_add(&text, "(");
    for (int i = 0; i < ndim; i++)
        base_text_add(&text, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    base_text_add(&text, ndim == 1 ? ",)" : ")");
    return out;
}
