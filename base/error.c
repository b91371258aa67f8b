#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

// Formats into an error that is still free; returns the message's length as stored. Names from
// files and environments may hold anything: control characters must not break the line.
static size_t format_message(struct base_error *error, const char *format, va_list arguments)
{
    assert(error->result == ZERO_OK); // it is still free
    if (vsnprintf(error->message, sizeof error->message, format, arguments) < 0)
        error->message[0] = '\0';
    char *c = error->message;
    for (; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return (size_t)(c - error->message);
}

zero_result zero_fail(struct base_error *error, zero_result result, const char *format, ...)
{
    assert(result != ZERO_OK);
    const int saved = errno;
    if (error && error->result == ZERO_OK) {
        va_list arguments;
        va_start(arguments, format);
        format_message(error, format, arguments);
        va_end(arguments);
        error->result = result;
    }
    errno = saved;
    return result;
}

void base_limit_text(int errnum, char text[BASE_LIMIT_TEXT])
{
    const int saved = errno;
    struct rlimit limit;
    text[0] = '\0';
    if (errnum == ENFILE)
        snprintf(text, BASE_LIMIT_TEXT,
                 ": the host's limit of open files (the sysctl fs.file-max) is reached");
    else if (errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, BASE_LIMIT_TEXT, ": the limit is %llu open files; `ulimit -n` raises it",
                 (unsigned long long)limit.rlim_cur);
    else if (errnum == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
             limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, BASE_LIMIT_TEXT,
                 ": the limit of a file, or of shared memory, is %llu bytes; `ulimit -f` raises it",
                 (unsigned long long)limit.rlim_cur);
    errno = saved;
}

/** Adds ": text (NAME)", and the limit behind it, to a message. */
static void append_errno(struct base_error *error, size_t used, int errnum)
{
    assert(used < sizeof error->message);
    const char *text = strerrordesc_np(errnum), *name = strerrorname_np(errnum);
    const size_t room = sizeof error->message - used;
    char limit[BASE_LIMIT_TEXT];
    base_limit_text(errnum, limit);
    if (text && name)
        snprintf(error->message + used, room, ": %s (%s)%s", text, name, limit);
    else
        snprintf(error->message + used, room, ": errno %d", errnum);
}

zero_result zero_fail_errno(struct base_error *error, zero_result result, int errnum,
                            const char *format, ...)
{
    assert(result != ZERO_OK && errnum >= 0);
    const int saved = errno;
    if (error && error->result == ZERO_OK) {
        va_list arguments;
        va_start(arguments, format);
        const size_t used = format_message(error, format, arguments);
        va_end(arguments);
        error->result = result;
        append_errno(error, used, errnum);
    }
    errno = saved;
    return result;
}

void base_error_clear(struct base_error *error)
{
    if (error)
        *error = (struct base_error){.result = ZERO_OK};
}

zero_result base_failure_of(int32_t number, zero_result otherwise)
{
    switch (number) {
#define RESULT_VALUE(name, value, text) case value:
        ZERO_RESULT_LIST(RESULT_VALUE)
#undef RESULT_VALUE
        return number < 0 ? (zero_result)number : otherwise;
    default:
        return otherwise;
    }
}

const char *base_result_text(zero_result result)
{
    switch (result) {
#define RESULT_TEXT(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        ZERO_RESULT_LIST(RESULT_TEXT)
#undef RESULT_TEXT
    }
    return "unknown result";
}
