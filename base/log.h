/**
 * base/log.h: messages of one context to its sink, filtered by level and component.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/error.h"

/** The components of zero_log_fn, in the order of base_log.component_level. */
enum base_log_component {
    BASE_LOG_CORE,
    BASE_LOG_COLL,
    BASE_LOG_IO,
    BASE_LOG_CKPT,
    BASE_LOG_RUN,
    BASE_LOG_COMPONENTS,
};

/**
 * Who receives messages. All zero is silent. Read-only while threads log; the sink must be safe to
 * call from each of them.
 */
struct base_log {
    zero_log_fn sink; /**< NULL: base_log_default_sink */
    void *user;       /**< first argument of sink */
    int level;        /**< the most talkative zero_log_level that passes; 0 or less: silent */
    int rank;         /**< shown by the default sink; info and below pass on rank 0 only */
    int component_level[BASE_LOG_COMPONENTS]; /**< instead of level; 0: level holds */
};

/**
 * Writes "zero[rank] level component: message" to standard error, with one write a line, so that
 * lines of several ranks don't mix; an error of that write is ignored. `user` is the
 * `struct base_log` whose rank is shown, or NULL (base_logf passes its own). *Local*, any thread.
 */
void base_log_default_sink(void *user, zero_log_level level, const char *component,
                           const char *message);

/** True if a message would reach the sink, for messages that are costly to make. *Local.* */
int base_log_passes(const struct base_log *log, zero_log_level level, const char *component);

/**
 * Formats one message (at most 1,023 bytes, cut beyond) and hands it to the sink if it passes.
 * `component` is one of those of zero_log_fn; others have no level of their own. log may be NULL
 * (silent). Allocates nothing, keeps errno. *Local*, any thread.
 */
void base_logf(const struct base_log *log, zero_log_level level, const char *component,
               const char *format, ...) __attribute__((format(printf, 4, 5)));

/**
 * Sets levels from a text such as ZERO_LOG's "info,coll=debug": levels by name (off, error, warn,
 * info, debug, trace), bare for all components, or component=level. NULL and "" change nothing.
 * *Local.* ZERO_E_INVALID (an unknown level or component; the message shows it): log is unchanged.
 */
zero_result base_log_parse(struct base_log *log, const char *text, struct base_error *error);

#endif
