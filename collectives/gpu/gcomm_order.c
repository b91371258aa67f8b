#include "collectives/control/control.h"
#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ events */

zero_result gcomm_order_open(struct gcomm *gcomm, struct base_error *error)
{
    zero_result result = gcomm->kind->stream_create(&gcomm->stream, true, error);
    if (!result)
        result = gcomm->kind->event_create(&gcomm->behind, error);
    for (int i = 0; i < GCOMM_UNDER_WAY && !result; i++) {
        result = gcomm->kind->event_create(&gcomm->operations[i].ready, error);
        if (!result)
            result = gcomm->kind->event_create(&gcomm->operations[i].done, error);
    }
    return result;
}

/** Whether nothing is under way in the stream any more, or soon. */
static bool is_drained(struct gcomm *gcomm)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    if (!gcomm->behind || gcomm->kind->event_record(gcomm->behind, gcomm->stream, NULL))
        return true;
    while (gcomm->kind->event_query(gcomm->behind, NULL) == ZERO_AGAIN) {
        if (coll_waited(&clock) > gcomm->abort_timeout_ns)
            return false;
        gcomm_pause(&rounds);
    }
    return true;
}

bool gcomm_order_close(struct gcomm *gcomm)
{
    if (!is_drained(gcomm))
        return false;
    for (int i = 0; i < GCOMM_UNDER_WAY; i++) {
        gcomm->kind->event_destroy(gcomm->operations[i].ready);
        gcomm->kind->event_destroy(gcomm->operations[i].done);
    }
    gcomm->kind->event_destroy(gcomm->behind);
    gcomm->kind->stream_destroy(gcomm->stream);
    return true;
}

zero_result gcomm_advance(struct gcomm *gcomm)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    uint64_t next = 0;
    pthread_mutex_lock(&gcomm->mutex);
    // What an abort has ended has come to its events too.
    while (!result && !gcomm->is_over && gcomm->finished < gcomm->started) {
        next = gcomm->finished + 1;
        struct gcomm_operation *operation = gcomm_operation(gcomm, next);
        pthread_mutex_unlock(&gcomm->mutex);
        result = gcomm->kind->event_query(operation->done, &inner);
        pthread_mutex_lock(&gcomm->mutex);
        if (result || gcomm->is_over || gcomm->finished + 1 != next) // another thread has seen it
            continue;
        control_end(gcomm->host->comm_world->control, operation->record);
        gcomm->finished = next;
    }
    assert(gcomm->finished <= gcomm->started);
    const bool fails = result < 0 && !gcomm->is_over;
    if (!gcomm->is_over) // else the host, whose the call log is, may be gone
        gcomm_log_finish(gcomm, gcomm->finished);
    pthread_mutex_unlock(&gcomm->mutex);
    return fails ? gcomm_fail(gcomm, result, next, "%s", inner.message) : ZERO_OK;
}

/* ------------------------------------------------------------------ failures */

zero_result gcomm_fail(struct gcomm *gcomm, zero_result result, uint64_t sequence,
                       const char *format, ...)
{
    assert(result < 0);
    char message[COLL_MESSAGE_BYTES], operation[COLL_TEXT_BYTES];
    const int rank = gcomm->host->rank;
    va_list arguments;
    gcomm_log_text(gcomm, rank, sequence, operation);
    const int used =
        snprintf(message, sizeof message, "rank %d: %s on %s: ", rank, operation, gcomm->where);
    assert(used > 0 && used < COLL_MESSAGE_BYTES);
    va_start(arguments, format);
    vsnprintf(message + used, sizeof message - (size_t)used, format, arguments);
    va_end(arguments);
    coll_poison(gcomm->host, result, message);
    return coll_failed(gcomm->host);
}

/* ------------------------------------------------------------------ an operation */

static void record(struct gcomm *gcomm, const struct coll_signature *signature, uint64_t sequence,
                   uint64_t bytes)
{
    assert(sequence == gcomm->started + 1);
    struct control_record record = {
        .sequence = sequence,
        .what = CONTROL_OPERATION,
        .peer = CONTROL_NO_PEER,
        .unit = strcmp(signature->what, "unit") == 0 ? signature->number : CONTROL_NO_UNIT,
        .ranks = (uint32_t)gcomm->host->world,
        .bytes = bytes,
    };
    control_copy_name(record.kind, sizeof record.kind, coll_kind_name(signature->kind));
    control_copy_name(record.name, sizeof record.name, signature->name);
    control_copy_name(record.comm, sizeof record.comm, gcomm->name);
    gcomm_operation(gcomm, sequence)->record =
        control_begin(gcomm->host->comm_world->control, &record);
}

/** Waits for the oldest operation, if there are too many; the watchdog has the deadline. */
static zero_result wait_for_room(struct gcomm *gcomm)
{
    return gcomm->started < GCOMM_UNDER_WAY
               ? ZERO_OK
               : gcomm_wait(gcomm, gcomm->started + 1 - GCOMM_UNDER_WAY);
}

/** Tells the two threads: the next operation is being given, or not any more. A thread that is busy
 * looks by itself. */
static void tell(struct gcomm *gcomm, bool is_starting)
{
    pthread_mutex_lock(&gcomm->mutex);
    const bool was_busy = gcomm_is_busy(gcomm);
    gcomm->is_starting = is_starting;
    if (!was_busy)
        pthread_cond_broadcast(&gcomm->news);
    pthread_mutex_unlock(&gcomm->mutex);
}

static zero_result announce(struct gcomm *gcomm, uint64_t sequence, struct base_error *error)
{
    assert(sequence == gcomm->started + 1);
    const zero_result result =
        gcomm->kind->event_record(gcomm_operation(gcomm, sequence)->ready, gcomm->stream, error);
    pthread_mutex_lock(&gcomm->mutex);
    gcomm->announced = result ? gcomm->announced : sequence;
    pthread_mutex_unlock(&gcomm->mutex);
    return result;
}

zero_result gcomm_begin(struct gcomm *gcomm, const struct coll_signature *signature, uint64_t bytes)
{
    struct base_error inner = {.result = ZERO_OK};
    const uint64_t sequence = gcomm->started + 1;
    zero_result result = wait_for_room(gcomm);
    pthread_mutex_lock(&gcomm->calls);
    if (!result)
        result = coll_failed(gcomm->host);
    if (!result) {
        pthread_mutex_lock(&gcomm->mutex);
        gcomm_log_call(gcomm, signature, sequence);
        pthread_mutex_unlock(&gcomm->mutex);
        result = gcomm_log_compare(gcomm);
    }
    if (!result) {
        tell(gcomm, true);
        if (announce(gcomm, sequence, &inner) != ZERO_OK)
            result = gcomm_fail(gcomm, inner.result, sequence, "%s", inner.message);
        else
            result = coll_failed(gcomm->host); // it may have taken until then
    }
    if (result) {
        tell(gcomm, false);
        pthread_mutex_unlock(&gcomm->calls);
        return result;
    }
    record(gcomm, signature, sequence, bytes);
    return ZERO_OK;
}

/** Asks the transport until it is through with what it was given. */
static zero_result settle(struct gcomm *gcomm, uint64_t sequence)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    for (;;) {
        struct base_error inner = {.result = ZERO_OK};
        zero_result result = coll_failed(gcomm->host);
        if (result)
            return result;
        result = gcomm->transport->ready(gcomm->link, &inner);
        if (result < 0)
            return gcomm_fail(gcomm, result, sequence, "%s", inner.message);
        if (result == ZERO_OK)
            return ZERO_OK;
        const int left = gcomm_log_left(gcomm, sequence);
        if (left >= 0)
            return gcomm_fail(gcomm, ZERO_E_PEER, sequence, GCOMM_HAS_LEFT, left);
        const uint64_t waited_ns = coll_waited(&clock);
        if (waited_ns > gcomm->timeout_ns)
            return gcomm_fail_timeout(gcomm, sequence, waited_ns);
        coll_progress(gcomm->host); // a peer may wait for that, and come here afterwards
        pthread_mutex_unlock(&gcomm->calls);
        gcomm_pause(&rounds);
        pthread_mutex_lock(&gcomm->calls);
    }
}

zero_result gcomm_end(struct gcomm *gcomm, zero_result result, const struct base_error *inner,
                      uint64_t *ticket)
{
    const uint64_t sequence = gcomm->started + 1;
    struct base_error failed = {.result = ZERO_OK};
    if (result)
        result = gcomm_fail(gcomm, result, sequence, "%s", inner->message);
    else
        result = settle(gcomm, sequence);
    if (!result && gcomm->kind->event_record(gcomm_operation(gcomm, sequence)->done, gcomm->stream,
                                             &failed) != ZERO_OK)
        result = gcomm_fail(gcomm, failed.result, sequence, "%s", failed.message);
    if (!result) {
        pthread_mutex_lock(&gcomm->mutex);
        gcomm->started = sequence;
        gcomm->is_starting = false;
        pthread_mutex_unlock(&gcomm->mutex);
    } else {
        coll_stop(gcomm->host); // before the watchdog frees what the host may know of it
        tell(gcomm, false);
    }
    pthread_mutex_unlock(&gcomm->calls);
    if (ticket)
        *ticket = result ? 0 : sequence;
    return result;
}

/* ------------------------------------------------------------------ the caller's streams */

void *gcomm_stream(const struct gcomm *gcomm)
{
    return gcomm->stream;
}

static zero_result between(struct gcomm *gcomm, void *event, void *stream, bool records)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = coll_failed(gcomm->host);
    if (result)
        return result;
    result = gcomm->kind->enter(gcomm->number, &inner);
    if (!result) {
        if (records)
            result = gcomm->kind->event_record(event, stream, &inner);
        if (!result)
            result = gcomm->kind->event_wait(event, records ? gcomm->stream : stream, &inner);
        gcomm->kind->leave();
    }
    return result ? gcomm_fail(gcomm, result, gcomm->started, "%s", inner.message) : ZERO_OK;
}

zero_result gcomm_after(struct gcomm *gcomm, void *stream)
{
    return between(gcomm, gcomm->behind, stream, true);
}

zero_result gcomm_before(struct gcomm *gcomm, uint64_t ticket, void *stream)
{
    pthread_mutex_lock(&gcomm->mutex);
    const bool is_done = ticket <= gcomm->finished;
    const bool is_known = ticket <= gcomm->started;
    pthread_mutex_unlock(&gcomm->mutex);
    if (!is_known)
        return gcomm_fail(gcomm, ZERO_E_INVALID, gcomm->started,
                          "the caller waits for ticket %llu behind it, of which there is none",
                          (unsigned long long)ticket);
    return is_done ? coll_failed(gcomm->host)
                   : between(gcomm, gcomm_operation(gcomm, ticket)->done, stream, false);
}

/** ZERO_OK if the operation is done, ZERO_AGAIN if not yet, or the failure. */
static zero_result query(struct gcomm *gcomm, uint64_t ticket)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = gcomm->kind->enter(gcomm->number, &inner);
    if (result)
        return gcomm_fail(gcomm, result, gcomm->started, "%s", inner.message);
    result = gcomm_advance(gcomm);
    pthread_mutex_lock(&gcomm->mutex);
    if (ticket <= gcomm->finished)
        result = ZERO_OK;
    else if (!result && ticket > gcomm->started)
        result = gcomm_fail(gcomm, ZERO_E_INVALID, gcomm->started,
                            "the caller waits for ticket %llu, of which there is none",
                            (unsigned long long)ticket);
    else if (!result)
        result = coll_failed(gcomm->host) ? coll_failed(gcomm->host) : ZERO_AGAIN;
    pthread_mutex_unlock(&gcomm->mutex);
    gcomm->kind->leave();
    return result;
}

zero_result gcomm_wait(struct gcomm *gcomm, uint64_t ticket)
{
    unsigned rounds = 0;
    zero_result result;
    while ((result = query(gcomm, ticket)) == ZERO_AGAIN) {
        coll_progress(gcomm->host); // a peer may wait for that, and come here afterwards
        gcomm_pause(&rounds);
    }
    return result;
}
