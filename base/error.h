/**
 * base/error.h: one failure with its message, as a value.
 *
 * The place that fails writes the message, with its numbers, through zero_fail(); its callers only
 * hand the result on. The first failure is kept: what fails while cleaning up is a consequence.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <zero/types.h>

/**
 * The first failure since the last base_error_clear(). All zero: none. Owned by the caller, used
 * by one thread at a time.
 */
struct base_error {
    zero_result result;
    char message[512]; /**< one line, control characters as '?', cut where it does not fit */
};

/**
 * Records a failure and returns `result`, so that a function ends with
 * `return zero_fail(error, ZERO_E_IO, ...)`. error may be NULL; an error that holds a failure
 * already keeps it. Leaves errno alone. *Local.*
 */
zero_result zero_fail(struct base_error *error, zero_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/**
 * Does what zero_fail() does, and appends ": No space left on device (ENOSPC)": text and name of
 * `errnum`, its number where it has no name. Where a limit of the process or host stands behind
 * `errnum`, the limit and the command that raises it follow (base_limit_text()). *Local.*
 */
zero_result zero_fail_errno(struct base_error *error, zero_result result, int errnum,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

enum { BASE_LIMIT_TEXT = 128 };

/** The limit behind EMFILE, ENFILE or EFBIG as ": the limit is 15 open files; `ulimit -n` raises
 * it"; "" for other values of errnum, and where there is no limit. Keeps errno. *Local.* */
void base_limit_text(int errnum, char text[BASE_LIMIT_TEXT]);

/** Forgets the failure; error may be NULL. *Local.* */
void base_error_clear(struct base_error *error);

/** A failure that came as a number from elsewhere, as from another process: `otherwise` if it is
 * none of zero_result's. *Local.* */
zero_result base_failure_of(int32_t number, zero_result otherwise);

/** A fixed text for a result, never NULL; for unknown values "unknown result". *Local.* */
const char *base_result_text(zero_result result);

#endif
