#include "collectives/control/control.h"
#include "collectives/gpu/gcomm_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ events */

zero_result gcomm_order_open(struct gcomm *device, struct base_error *error)
{
    zero_result result = ZERO_OK;
    if (gcomm_is_group(device))
        device->stream = device->whole->stream;
    else
        result = device->kind->stream_create(&device->stream, true, error);
    if (!result)
        result = device->kind->event_create(&device->behind, error);
    for (int i = 0; i < GCOMM_UNDER_WAY && !result; i++) {
        result = device->kind->event_create(&device->operations[i].ready, error);
        if (!result)
            result = device->kind->event_create(&device->operations[i].done, error);
    }
    return result;
}

/** Whether nothing is under way in the stream any more, or soon. */
static bool is_drained(struct gcomm *device)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    if (gcomm_is_group(device) && !device->has_given)
        return true;
    if (!device->behind || device->kind->event_record(device->behind, device->stream, NULL))
        return true;
    while (device->kind->event_query(device->behind, NULL) == ZERO_AGAIN) {
        if (coll_waited(&clock) > device->abort_timeout_ns)
            return false;
        gcomm_pause(&rounds);
    }
    return true;
}

bool gcomm_order_close(struct gcomm *device)
{
    if (!is_drained(device))
        return false;
    for (int i = 0; i < GCOMM_UNDER_WAY; i++) {
        device->kind->event_destroy(device->operations[i].ready);
        device->kind->event_destroy(device->operations[i].done);
    }
    device->kind->event_destroy(device->behind);
    if (!gcomm_is_group(device))
        device->kind->stream_destroy(device->stream);
    return true;
}

zero_result gcomm_advance(struct gcomm *device)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    uint64_t next = 0;
    pthread_mutex_lock(&device->mutex);
    // What an abort has ended has come to its events too.
    while (!result && !device->is_over && device->finished < device->started) {
        next = device->finished + 1;
        struct gcomm_operation *operation = gcomm_operation(device, next);
        pthread_mutex_unlock(&device->mutex);
        result = device->kind->event_query(operation->done, &inner);
        pthread_mutex_lock(&device->mutex);
        if (result || device->is_over || device->finished + 1 != next) // another thread has seen it
            continue;
        control_end(device->host->comm_world->control, operation->record);
        device->finished = next;
    }
    const bool fails = result < 0 && !device->is_over;
    if (!device->is_over) // else the host, whose the call log is, may be gone
        gcomm_log_finish(device, device->finished);
    pthread_mutex_unlock(&device->mutex);
    return fails ? gcomm_fail(device, result, next, "%s", inner.message) : ZERO_OK;
}

/* ------------------------------------------------------------------ failures */

int gcomm_text_begin(const struct gcomm *device, char message[COLL_MESSAGE_BYTES])
{
    message[0] = '\0';
    return gcomm_is_group(device)
               ? snprintf(message, COLL_MESSAGE_BYTES, "group %s: ", device->host->name)
               : 0;
}

zero_result gcomm_fail(struct gcomm *device, zero_result result, uint64_t sequence,
                       const char *format, ...)
{
    char message[COLL_MESSAGE_BYTES], operation[COLL_TEXT_BYTES];
    const int rank = device->host->rank;
    va_list arguments;
    gcomm_log_text(device, rank, sequence, operation);
    int used = gcomm_text_begin(device, message);
    used += snprintf(message + used, sizeof message - (size_t)used,
                     "rank %d: %s on %s: ", coll_root_rank(device->host, rank), operation,
                     device->where);
    va_start(arguments, format);
    vsnprintf(message + used, sizeof message - (size_t)used, format, arguments);
    va_end(arguments);
    coll_poison(device->host, result, message);
    return coll_failed(device->host);
}

/* ------------------------------------------------------------------ an operation */

static void record(struct gcomm *device, const struct coll_signature *signature, uint64_t sequence,
                   uint64_t bytes)
{
    struct control_record record = {
        .sequence = sequence,
        .what = CONTROL_OPERATION,
        .peer = CONTROL_NO_PEER,
        .unit = strcmp(signature->what, "unit") == 0 ? signature->number : CONTROL_NO_UNIT,
        .ranks = (uint32_t)device->host->world,
        .bytes = bytes,
    };
    control_copy_name(record.kind, sizeof record.kind, coll_kind_name(signature->kind));
    control_copy_name(record.name, sizeof record.name, signature->name);
    control_copy_name(record.comm, sizeof record.comm, device->name);
    gcomm_operation(device, sequence)->record =
        control_begin(device->host->comm_world->control, &record);
}

/** Waits for the oldest operation, if there are too many; the watchdog has the deadline. */
static zero_result wait_for_room(struct gcomm *device)
{
    return device->started < GCOMM_UNDER_WAY
               ? ZERO_OK
               : gcomm_wait(device, device->started + 1 - GCOMM_UNDER_WAY);
}

/** Tells who looks after it: the next operation is being given, or not any more. Who is busy looks
 * by himself. */
static void tell(struct gcomm *device, bool is_starting)
{
    pthread_mutex_lock(&device->mutex);
    const bool was_busy = gcomm_is_busy(device);
    device->is_starting = is_starting;
    if (!was_busy)
        pthread_cond_broadcast(&device->news);
    pthread_mutex_unlock(&device->mutex);
}

static zero_result announce(struct gcomm *device, uint64_t sequence, struct base_error *error)
{
    device->has_given = true;
    const zero_result result =
        device->kind->event_record(gcomm_operation(device, sequence)->ready, device->stream, error);
    pthread_mutex_lock(&device->mutex);
    device->announced = result ? device->announced : sequence;
    pthread_mutex_unlock(&device->mutex);
    return result;
}

zero_result gcomm_begin(struct gcomm *device, const struct coll_signature *signature,
                        uint64_t bytes)
{
    struct base_error inner = {.result = ZERO_OK};
    const uint64_t sequence = device->started + 1;
    zero_result result = wait_for_room(device);
    pthread_mutex_lock(&device->calls);
    if (!result)
        result = coll_failed(device->host);
    if (!result) {
        pthread_mutex_lock(&device->mutex);
        gcomm_log_call(device, signature, sequence);
        pthread_mutex_unlock(&device->mutex);
        result = gcomm_log_compare(device);
    }
    if (!result) {
        tell(device, true);
        if (announce(device, sequence, &inner) != ZERO_OK)
            result = gcomm_fail(device, inner.result, sequence, "%s", inner.message);
        else
            result = coll_failed(device->host); // it may have taken until then
    }
    if (result) {
        tell(device, false);
        pthread_mutex_unlock(&device->calls);
        return result;
    }
    record(device, signature, sequence, bytes);
    return ZERO_OK;
}

/** Asks the transport until it is through with what it was given. */
static zero_result settle(struct gcomm *device, uint64_t sequence)
{
    struct coll_clock clock = {0};
    unsigned rounds = 0;
    for (;;) {
        struct base_error inner = {.result = ZERO_OK};
        zero_result result = coll_failed(device->host);
        if (result)
            return result;
        result = device->transport->ready(device->link, &inner);
        if (result < 0)
            return gcomm_fail(device, result, sequence, "%s", inner.message);
        if (result == ZERO_OK)
            return ZERO_OK;
        const int left = gcomm_log_left(device, sequence);
        if (left >= 0)
            return gcomm_fail(device, ZERO_E_PEER, sequence, GCOMM_HAS_LEFT, left);
        const uint64_t waited_ns = coll_waited(&clock);
        if (waited_ns > device->timeout_ns)
            return gcomm_fail_timeout(device, sequence, waited_ns);
        coll_progress(device->host); // somebody may wait for that, and come here afterwards
        pthread_mutex_unlock(&device->calls);
        gcomm_pause(&rounds);
        pthread_mutex_lock(&device->calls);
    }
}

zero_result gcomm_end(struct gcomm *device, zero_result result, const struct base_error *inner,
                      uint64_t *ticket)
{
    const uint64_t sequence = device->started + 1;
    struct base_error failed = {.result = ZERO_OK};
    if (result)
        result = gcomm_fail(device, result, sequence, "%s", inner->message);
    else
        result = settle(device, sequence);
    if (!result && device->kind->event_record(gcomm_operation(device, sequence)->done,
                                              device->stream, &failed) != ZERO_OK)
        result = gcomm_fail(device, failed.result, sequence, "%s", failed.message);
    if (!result) {
        pthread_mutex_lock(&device->mutex);
        device->started = sequence;
        device->is_starting = false;
        pthread_mutex_unlock(&device->mutex);
    } else {
        coll_stop(device->host); // before the watchdog frees what the host may know of it
        tell(device, false);
    }
    pthread_mutex_unlock(&device->calls);
    if (ticket)
        *ticket = result ? 0 : sequence;
    return result;
}

/* ------------------------------------------------------------------ the caller's streams */

void *gcomm_stream(const struct gcomm *device)
{
    return device->stream;
}

static zero_result between(struct gcomm *device, void *event, void *stream, bool records)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = coll_failed(device->host);
    if (result)
        return result;
    result = device->kind->enter(device->number, &inner);
    if (!result) {
        device->has_given |= records;
        if (records)
            result = device->kind->event_record(event, stream, &inner);
        if (!result)
            result = device->kind->event_wait(event, records ? device->stream : stream, &inner);
        device->kind->leave();
    }
    return result ? gcomm_fail(device, result, device->started, "%s", inner.message) : ZERO_OK;
}

zero_result gcomm_after(struct gcomm *device, void *stream)
{
    return between(device, device->behind, stream, true);
}

zero_result gcomm_before(struct gcomm *device, uint64_t ticket, void *stream)
{
    pthread_mutex_lock(&device->mutex);
    const bool is_done = ticket <= device->finished;
    const bool is_known = ticket <= device->started;
    pthread_mutex_unlock(&device->mutex);
    if (!is_known)
        return gcomm_fail(device, ZERO_E_INVALID, device->started,
                          "somebody waits for ticket %llu behind it, of which there is none",
                          (unsigned long long)ticket);
    return is_done ? coll_failed(device->host)
                   : between(device, gcomm_operation(device, ticket)->done, stream, false);
}

zero_result gcomm_query(struct gcomm *device, uint64_t ticket)
{
    struct base_error inner = {.result = ZERO_OK};
    zero_result result = device->kind->enter(device->number, &inner);
    if (result)
        return gcomm_fail(device, result, device->started, "%s", inner.message);
    result = gcomm_advance(device);
    pthread_mutex_lock(&device->mutex);
    if (ticket <= device->finished)
        result = ZERO_OK;
    else if (!result && ticket > device->started)
        result = gcomm_fail(device, ZERO_E_INVALID, device->started,
                            "somebody waits for ticket %llu, of which there is none",
                            (unsigned long long)ticket);
    else if (!result)
        result = coll_failed(device->host) ? coll_failed(device->host) : ZERO_AGAIN;
    pthread_mutex_unlock(&device->mutex);
    device->kind->leave();
    return result;
}

zero_result gcomm_wait(struct gcomm *device, uint64_t ticket)
{
    unsigned rounds = 0;
    zero_result result;
    while ((result = gcomm_query(device, ticket)) == ZERO_AGAIN) {
        coll_progress(device->host); // somebody may wait for that, and come here afterwards
        gcomm_pause(&rounds);
    }
    return result;
}
