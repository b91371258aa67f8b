// Entering and leaving a public call, and what happens when one fails.

#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/telemetry.h"

#include "base/clock.h"
#include "base/forked.h"
#include "base/text.h"
#include "collectives/control/control.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** Messages of calls that have no context: one a thread. */
static _Thread_local struct base_error thread_error;

struct base_error *eng_thread_error(void)
{
    base_error_clear(&thread_error);
    return &thread_error;
}

const char *eng_thread_message(void)
{
    return thread_error.message;
}

static bool is_fatal(zero_result result)
{
    switch (result) {
    case ZERO_OK:
    case ZERO_AGAIN:
    case ZERO_NOT_FOUND:
    case ZERO_PLANNED:
    case ZERO_E_INVALID:
    case ZERO_E_STATE:
    case ZERO_E_UNSUPPORTED:
    case ZERO_E_VERSION:
        return false;
    default:
        return true;
    }
}

/** Makes z->error every rank's failure, unless another one was first: then that is this rank's
 * too. */
static zero_result tell_all(zero_ctx *z, zero_result result)
{
    struct base_error first = {0};
    assert(is_fatal(result));
    coll_abort(z->comm, result, z->error.message);
    const zero_result agreed = coll_state(z->comm, &first);
    if (!agreed || agreed == result)
        return result;
    z->error = first;
    return agreed;
}

void eng_log_failure(const struct base_log *log, const char *component, const char *message)
{
    // Standard error is the program's, which has got the result and says so itself.
    if (log->sink)
        base_logf(log, ZERO_LOG_ERROR, component, "%s", message);
}

static zero_result fail(zero_ctx *z, zero_result result, const char *message, bool tell)
{
    if (z->fatal)
        return z->fatal;
    base_error_clear(&z->error);
    zero_fail(&z->error, result, "%s", message);
    if (!is_fatal(result))
        return result;
    if (tell && z->comm)
        result = tell_all(z, result);
    z->fatal = result;
    eng_log_failure(&z->config.log, "core", z->error.message);
    return result;
}

static zero_result fail_formatted(zero_ctx *z, zero_result result, bool tell, const char *format,
                                  va_list args) __attribute__((format(printf, 4, 0)));

static zero_result fail_formatted(zero_ctx *z, zero_result result, bool tell, const char *format,
                                  va_list args)
{
    char message[sizeof z->error.message];
    vsnprintf(message, sizeof message, format, args);
    return fail(z, result, message, tell);
}

zero_result eng_fail(zero_ctx *z, zero_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    result = fail_formatted(z, result, true, format, args);
    va_end(args);
    return result;
}

zero_result eng_fail_agreed(zero_ctx *z, zero_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    result = fail_formatted(z, result, false, format, args);
    va_end(args);
    return result;
}

zero_result eng_fail_from(zero_ctx *z, const struct base_error *error)
{
    return fail(z, error->result, error->message, true);
}

zero_result eng_comm_failed(zero_ctx *z, zero_result result)
{
    struct base_error error = {0};
    assert(result != ZERO_OK);
    coll_state(z->comm, &error);
    return fail(z, result, error.message[0] ? error.message : base_result_text(result), false);
}

zero_result eng_exchange(zero_ctx *z, const void *mine, size_t bytes, void *all)
{
    const uint64_t begin = base_clock_ns();
    const zero_result r = coll_exchange(z->comm, mine, bytes, all);
    eng_stretch(z, CONTROL_VERDICT, -1, begin, &z->stats.step_wait_s);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

zero_result eng_agree(zero_ctx *z, const struct base_error *mine, const char *what)
{
    const int world = coll_world(z->comm), rank = coll_rank(z->comm);
    double lowest = mine->result ? rank : world;
    zero_result r = coll_all_reduce(z->comm, &lowest, 1, BASE_MIN);
    if (r)
        return eng_comm_failed(z, r);
    const int failed = (int)lowest;
    if (failed == world)
        return ZERO_OK;
    assert(failed >= 0 && failed < world && (failed != rank || mine->result));
    struct base_error first = *mine;
    r = coll_broadcast(z->comm, &first, sizeof first, failed);
    if (r)
        return eng_comm_failed(z, r);
    // Not sticky: the caller decides whether the context can go on.
    base_error_clear(&z->error);
    if (failed == rank)
        return zero_fail(&z->error, mine->result, "%s: %s", what, mine->message);
    const char *host = coll_host(z->comm, failed);
    return zero_fail(&z->error, first.result, "%s: rank %d%s%s: %.400s", what, failed,
                     *host ? " on " : "", host, first.message);
}

zero_result eng_agree_on_file(zero_ctx *z, const struct base_error *mine, const char *what)
{
    struct base_error error = *mine;
    if (error.result == ZERO_NOT_FOUND)
        error.result = ZERO_E_IO;
    return eng_agree(z, &error, what);
}

zero_result eng_same(zero_ctx *z, uint64_t value, const char *what)
{
    // Allocated at commit, so that comparing cannot fail on one rank alone; free between steps.
    unsigned char *all = z->stepping.exchange.room.all;
    assert(all && z->micro.index < 0);
    zero_result r = coll_exchange(z->comm, &value, sizeof value, all);
    if (r)
        return eng_comm_failed(z, r);
    for (int rank = 1; !r && rank < z->config.world; rank++)
        if (memcmp(all + (size_t)rank * sizeof value, all, sizeof value) != 0)
            r = eng_fail_agreed(z, ZERO_E_DIVERGED, "ranks 0 and %d differ in %s", rank, what);
    return r;
}

bool eng_in_child(const zero_ctx *z)
{
    return z->call.generation != base_generation();
}

static zero_result refuse_child(zero_ctx *z, const char *call)
{
    return eng_fail(z, ZERO_E_STATE,
                    "%s in process %d, which was forked from rank %d's: a context is for the "
                    "process that has opened it alone",
                    call, (int)getpid(), z->config.rank);
}

zero_result eng_enter(zero_ctx *z, enum eng_phase phase, const char *call)
{
    struct base_fp_state state;
    if (!z)
        return ZERO_E_INVALID;
    base_fp_enter(&state);
    z->call.fp_control = state.control;
    if (eng_in_child(z))
        return refuse_child(z, call);
    eng_watch_call(z, call, -1);
    if (z->fatal)
        return z->fatal;
    const zero_result entered = z->exec->enter(z);
    if (entered)
        return entered;
    // The first failure of any rank is the next call's, whether or not that call needs the others.
    const zero_result failed = z->comm ? coll_state(z->comm, NULL) : ZERO_OK;
    if (failed)
        return eng_comm_failed(z, failed);
    if (phase == ENG_AFTER_COMMIT && !z->call.committed)
        return eng_fail(z, ZERO_E_STATE, "%s before zero_commit", call);
    if (phase == ENG_BEFORE_COMMIT && z->call.committed)
        return eng_fail(z, ZERO_E_STATE, "%s after zero_commit", call);
    return ZERO_OK;
}

zero_result eng_leave(zero_ctx *z, zero_result result)
{
    if (!z)
        return result;
    const struct base_fp_state state = {.control = z->call.fp_control};
    z->exec->leave(z);
    control_call_end(z->job.watch.area);
    base_fp_leave(&state);
    return result;
}

zero_result eng_check_stream(zero_ctx *z, zero_stream stream)
{
    return z->exec->take_stream(z, stream);
}

static zero_result check_unit(zero_ctx *z, const char *call, zero_unit unit)
{
    if (unit < 0 || (size_t)unit >= z->layout.unit_count)
        return eng_fail(z, ZERO_E_INVALID, "%s: unit %d does not exist: there are %zu", call, unit,
                        z->layout.unit_count);
    return ZERO_OK;
}

void eng_list_units(const zero_ctx *z, bool (*is)(const struct eng_unit *unit),
                    char list[ENG_UNIT_LIST])
{
    struct base_text text = {list, ENG_UNIT_LIST, 0};
    list[0] = '\0';
    for (size_t u = 0; u < z->layout.unit_count; u++)
        if (is(&z->units[u]))
            base_text_add(&text, "%s%zu (%s)", text.used ? ", " : "", u, z->units[u].name);
}

zero_result eng_unit_enter(zero_ctx *z, const char *call, zero_unit unit, zero_stream stream)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, call);
    if (!r)
        r = eng_check_stream(z, stream);
    if (!r)
        r = check_unit(z, call, unit);
    if (!r)
        eng_watch_call(z, call, unit);
    return r;
}

void eng_remember_refusal(zero_ctx *z, const struct base_error *error)
{
    assert(error->result != ZERO_OK);
    if (!z->call.refused.result)
        z->call.refused = *error;
}
