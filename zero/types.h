/**
 * zero/types.h: the vocabulary every part of zero shares: results, element types, logging, handles.
 *
 * It is stable, includes nothing but libc, and compiles as C11, as C++11 to 20 and under nvcc.
 */
#ifndef ZERO_TYPES_H
#define ZERO_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_API __attribute__((visibility("default")))

/**
 * Every result: name, value, text.
 *
 * Zero is success, positive values are benign answers, negative ones failures. A value never
 * changes; new ones are appended.
 */
#define ZERO_RESULT_LIST(X)                                                                        \
    X(ZERO_OK, 0, "success")                                                                       \
    X(ZERO_AGAIN, 1, "not finished yet")                                                           \
    X(ZERO_NOT_FOUND, 2, "not found")                                                              \
    X(ZERO_PLANNED, 3, "the plan was made, nothing was allocated")                                 \
    X(ZERO_E_INVALID, -1, "invalid argument or configuration")                                     \
    X(ZERO_E_STATE, -2, "call out of order")                                                       \
    X(ZERO_E_NOMEM, -3, "out of memory")                                                           \
    X(ZERO_E_IO, -4, "input or output failed")                                                     \
    X(ZERO_E_CORRUPT, -5, "damaged data")                                                          \
    X(ZERO_E_VERSION, -6, "version not understood")                                                \
    X(ZERO_E_PEER, -7, "another rank failed")                                                      \
    X(ZERO_E_TIMEOUT, -8, "time-out")                                                              \
    X(ZERO_E_DIVERGED, -9, "ranks made different calls")                                           \
    X(ZERO_E_DEVICE, -10, "device failed")                                                         \
    X(ZERO_E_UNSUPPORTED, -11, "not supported here")                                               \
    X(ZERO_E_LIMIT, -12, "a configured limit was reached")                                         \
    X(ZERO_E_NONFINITE, -13, "a gradient, or what an update makes, is not finite")                 \
    X(ZERO_E_ABORTED, -14, "the job was aborted")

typedef enum zero_result {
#define ZERO_RESULT_ENUM(name, value, text) name = (value),
    ZERO_RESULT_LIST(ZERO_RESULT_ENUM)
#undef ZERO_RESULT_ENUM
} zero_result;

/** Element types. In configuration 0 stands for "the default". Parameters and gradients are f32,
 * bf16 or f16; collectives take all types. */
typedef enum zero_dtype {
    ZERO_DTYPE_DEFAULT = 0,
    ZERO_F32 = 1,
    ZERO_BF16 = 2,
    ZERO_F16 = 3,
    ZERO_F64 = 4,
    ZERO_I32 = 5,
    ZERO_I64 = 6,
} zero_dtype;

/** How numbers are combined. */
typedef enum zero_op { ZERO_SUM = 0, ZERO_MIN = 1, ZERO_MAX = 2 } zero_op;

/** Each adds to those before it: failures, warnings, news of a job, its plan, so far nothing. */
typedef enum zero_log_level {
    ZERO_LOG_ERROR = 1,
    ZERO_LOG_WARN = 2,
    ZERO_LOG_INFO = 3,
    ZERO_LOG_DEBUG = 4,
    ZERO_LOG_TRACE = 5,
} zero_log_level;

/**
 * Receives every message of one context.
 *
 * `component` is "core", "coll", "io", "ckpt" or "run". `message` has no newline and lives only for
 * the call. The thread that makes a call of the library calls it. It must not call back into the
 * context and must not throw.
 */
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *component,
                            const char *message);

/** A fixed text for a result, "unknown result" for other values; never NULL. *Local.* */
ZERO_API const char *zero_result_text(zero_result result);

/** The library's version: "0.1.0". *Local.* */
ZERO_API const char *zero_version(void);

typedef struct zero_ctx zero_ctx;   /**< One rank's membership in one job. */
typedef struct zero_team zero_team; /**< Ranks that are threads of one process. */

/**
 * Makes a meeting place for `world` ranks that are threads of this process, for config.team.
 * *Local.*
 *
 * Each of the threads calls zero_open(), or zero_comm_open(), with its own rank. After an error
 * *team is NULL, and zero_last_error(NULL) has this thread's message.
 * ZERO_E_INVALID: world is out of range. ZERO_E_NOMEM: the system refused memory.
 */
ZERO_API zero_result zero_team_create(zero_team **team, int32_t world);
/** Frees a team that no context uses any more. *Local.* It accepts NULL. */
ZERO_API void zero_team_free(zero_team *team);

#ifdef __cplusplus
}
#endif

#endif
