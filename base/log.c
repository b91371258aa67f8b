#include "base/log.h"

#include "base/size_limit.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const component_names[BASE_LOG_COMPONENTS] = {
    [BASE_LOG_CORE] = "core", [BASE_LOG_COLL] = "coll", [BASE_LOG_IO] = "io",
    [BASE_LOG_CKPT] = "ckpt", [BASE_LOG_RUN] = "run",
};

// Index 0 is "off"; the others are zero_log_level's values.
static const char *const level_names[] = {"off", "error", "warn", "info", "debug", "trace"};

enum { LEVELS = sizeof level_names / sizeof *level_names, MESSAGE_SIZE = 1024 };

// The index of a name of `length` bytes in a list, or -1.
static int find_name(const char *const *names, int count, const char *name, size_t length)
{
    assert(count > 0 && name);
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return i;
    return -1;
}

void base_log_default_sink(void *user, zero_log_level level, const char *component,
                           const char *message)
{
    const struct base_log *log = user;
    const char *name = level > 0 && (int)level < LEVELS ? level_names[level] : "?";
    char line[MESSAGE_SIZE + 64];
    int length;
    if (log)
        length =
            snprintf(line, sizeof line, "zero[%d] %s %s: %s", log->rank, name, component, message);
    else
        length = snprintf(line, sizeof line, "zero %s %s: %s", name, component, message);
    if (length < 0)
        return;
    size_t end = (size_t)length < sizeof line - 1 ? (size_t)length : sizeof line - 2;
    assert(end < sizeof line);
    line[end++] = '\n';
    const struct base_size_limit limit = base_size_limit_begin();
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, end);
    while (written < 0 && errno == EINTR);
    base_size_limit_end(&limit);
}

int base_log_passes(const struct base_log *log, zero_log_level level, const char *component)
{
    if (!log || (level >= ZERO_LOG_INFO && log->rank != 0))
        return 0;
    const int c = find_name(component_names, BASE_LOG_COMPONENTS, component, strlen(component));
    assert(c < BASE_LOG_COMPONENTS);
    const int own = c < 0 ? 0 : log->component_level[c];
    return (int)level <= (own != 0 ? own : log->level);
}

void base_logf(const struct base_log *log, zero_log_level level, const char *component,
               const char *format, ...)
{
    if (!base_log_passes(log, level, component))
        return;
    const int saved = errno;
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (length >= 0) {
        if (log->sink && log->sink != base_log_default_sink)
            log->sink(log->user, level, component, message);
        else
            base_log_default_sink((void *)(uintptr_t)log, level, component, message);
    }
    errno = saved;
}

// One item: "level" or "component=level". Changes log only if it is good.
static zero_result parse_item(struct base_log *log, const char *item, size_t length,
                              struct base_error *error)
{
    const char *equals = memchr(item, '=', length);
    const char *value = equals ? equals + 1 : item;
    const int level = find_name(level_names, LEVELS, value, length - (size_t)(value - item));
    if (level < 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "log level '%.*s' is unknown; off, error, warn, info, debug, trace are",
                         (int)length, item);
    assert(level < LEVELS);
    if (!equals) {
        log->level = level;
        return ZERO_OK;
    }
    const int c = find_name(component_names, BASE_LOG_COMPONENTS, item, (size_t)(equals - item));
    if (c < 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "log component '%.*s' is unknown; core, coll, io, ckpt, run are",
                         (int)(equals - item), item);
    log->component_level[c] = level > 0 ? level : -1;
    return ZERO_OK;
}

zero_result base_log_parse(struct base_log *log, const char *text, struct base_error *error)
{
    struct base_log parsed = *log;
    if (!text || !*text)
        return ZERO_OK;
    for (const char *item = text;; item++) {
        const size_t length = strcspn(item, ",");
        const zero_result result = parse_item(&parsed, item, length, error);
        if (result)
            return result;
        item += length;
        if (!*item)
            break;
    }
    *log = parsed;
    return ZERO_OK;
}
