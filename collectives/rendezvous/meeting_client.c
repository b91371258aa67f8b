// Every rank but 0: calls until rank 0 knows it, waits to hear that all are there, and says so
// meanwhile.

#include "collectives/rendezvous/meeting.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

uint64_t boot_patience(const struct meeting *meeting)
{
    return meeting->place->deadline_ns + (meeting->member ? 2 : 1) * BOOT_GRACE_NS;
}

static const char *missing_text(const struct meeting *meeting)
{
    return *meeting->missing ? meeting->missing : "other ranks";
}

static void remind(struct meeting *meeting, const char *ranks, const char *why)
{
    double seconds;
    if (boot_wait_says(&meeting->wait, &seconds))
        meeting->way->say_waiting(meeting, seconds, ranks, why);
}

// The speaker of this host has not said that it knows this rank.
static void remind_of_speaker(struct meeting *meeting)
{
    char why[BOOT_TEXT_BYTES] = "";
    base_text_add(&(struct base_text){why, sizeof why, 0},
                  "process %d of this host calls it for all ranks here, and has no answer yet: if "
                  "it is no rank of this job, or stopped, end that process",
                  (int)meeting->speaker);
    remind(meeting, "rank 0", why);
}

// Says that this rank waits: for ranks that are missing, or (not `known`) for rank 0's answer.
static void remind_of(struct meeting *meeting, bool known)
{
    if (known)
        remind(meeting, missing_text(meeting), NULL);
    else if (meeting->member)
        remind_of_speaker(meeting);
    else
        remind(meeting, "rank 0",
               "something listens there, but has not answered as rank 0 of this job");
}

static zero_result fail_waiting(struct meeting *meeting, struct base_error *error)
{
    const struct boot_meeting *place = meeting->place;
    if (boot_wait_stops(&meeting->wait))
        return boot_fail_stopped(place->rank, missing_text(meeting), place->world, error);
    if (meeting->member)
        return zero_fail(error, ZERO_E_TIMEOUT,
                         "process %d, which speaks for the ranks of this host, does not answer in "
                         "time: if it is no rank of this job, or stopped, end that process%s%s",
                         (int)meeting->speaker, *meeting->missing ? "; it waited for " : "",
                         meeting->missing);
    return zero_fail(error, ZERO_E_TIMEOUT, "it does not answer in time%s%s",
                     *meeting->missing ? "; it waited for " : "", meeting->missing);
}

// Waits for a message of rank 0's, which has answered this rank or (not `known`) has yet to: until
// then anything may listen in its place. The end of the connection ends the wait, too: the caller
// sees it when it receives. A rank that is known attends to those that it speaks for meanwhile.
static zero_result await_word(struct meeting *meeting, bool known, uint64_t deadline_ns,
                              struct base_error *error)
{
    const bool attends = known && meeting->way->attend;
    struct pollfd *polls = meeting->polls;
    for (int left = 1; left > 0; left = boot_wait_left(&meeting->wait, deadline_ns, 1000)) {
        polls[0] = (struct pollfd){.fd = meeting->sockets[0], .events = POLLIN};
        const int more = attends ? meeting->way->attend_poll(meeting, polls + 1) : 0;
        const int ready = poll(polls, 1 + (nfds_t)more, left);
        if (ready < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for rank 0");
        if (ready > 0 && polls[0].revents)
            return ZERO_OK;
        const zero_result result =
            ready >= 0 && more > 0 ? meeting->way->attend(meeting, polls + 1, error) : ZERO_OK;
        if (result)
            return result;
        remind_of(meeting, known);
    }
    return fail_waiting(meeting, error);
}

// Receives a text of rank 0's into `text`, of `length` + 1 bytes.
static zero_result hear_text(const struct meeting *meeting, char *text, size_t length,
                             struct base_error *error)
{
    const zero_result result =
        boot_receive_bytes(meeting->sockets[0], text, length, boot_patience(meeting), error);
    boot_clean(text, length + 1);
    return result;
}

/* ------------------------------------------------------------------ calling rank 0 */

// Keeps the name of the communicator that rank 0 is meeting for. ZERO_AGAIN.
static zero_result hear_other(struct meeting *meeting, size_t length, struct base_error *error)
{
    char name[BOOT_NAME_BYTES + 1] = "";
    const zero_result result = hear_text(meeting, name, length, error);
    if (result)
        return result;
    meeting->other[0] = '\0';
    base_text_add(&(struct base_text){meeting->other, sizeof meeting->other, 0},
                  " (it was opening \"%s\": open contexts in the same order on all ranks)", name);
    zero_fail(error, ZERO_E_TIMEOUT, "it is meeting for another communicator");
    return ZERO_AGAIN;
}

// Rank 0 of several hosts tells no rank to stop before it knows that rank: what says so is no rank
// 0.
static zero_result refuse_abort(struct base_error *error)
{
    return zero_fail(error, ZERO_E_INVALID, "it tells this rank to stop, as no rank 0 does");
}

// One answer of rank 0's to what this rank has said. ZERO_AGAIN: call again, error says why.
static zero_result hear_answer(struct meeting *meeting, struct boot_call *call,
                               struct boot_header *header, struct base_error *error)
{
    const zero_result result =
        boot_receive(call->fd, header, BOOT_NAME_BYTES, call->deadline_ns, error);
    if (result == ZERO_E_ABORTED && meeting->way->apart && !meeting->member)
        return refuse_abort(error);
    if (result)
        return result;
    if (header->type == BOOT_LATER)
        return hear_other(meeting, header->length, error);
    if (header->type == BOOT_CHALLENGE)
        return boot_call_answer(call, header, error);
    if (header->type == BOOT_KNOWN)
        return boot_call_known(call, header, error);
    return zero_fail(error, ZERO_E_INVALID, "it answered by a message of type %u", header->type);
}

// Says who this rank is, until rank 0 knows it, and has proved itself to be rank 0.
static zero_result introduce_self(struct meeting *meeting, struct base_error *error)
{
    struct boot_hello *hello = &meeting->hello;
    struct boot_header header = {.type = BOOT_CHALLENGE};
    struct boot_call call = {.fd = meeting->sockets[0],
                             .secret = meeting->secret,
                             .sides = meeting->member ? &boot_sides_of_host : &boot_sides_of_rank_0,
                             .claim = &hello->claim,
                             .length = sizeof *hello,
                             .deadline_ns = meeting->way->answer_deadline
                                                ? meeting->way->answer_deadline(meeting)
                                                : boot_patience(meeting)};
    zero_result result = boot_claim_make(&hello->claim, meeting->secret, error);
    if (!result)
        result = boot_send(call.fd, BOOT_HELLO, hello, sizeof *hello, call.deadline_ns, error);
    while (!result && header.type == BOOT_CHALLENGE) {
        result = await_word(meeting, false, call.deadline_ns, error);
        if (!result)
            result = hear_answer(meeting, &call, &header, error);
    }
    if (result == ZERO_E_ABORTED) // rank 0 is not to take it for a death
        boot_send_failure(call.fd, result, error->message);
    return result;
}

// One call of rank 0. ZERO_AGAIN: it does not answer, or not this meeting yet; error says why.
static zero_result call(struct meeting *meeting, struct base_error *error)
{
    zero_result result = meeting->way->call(meeting, error);
    if (!result)
        result = introduce_self(meeting, error);
    if (!result)
        return ZERO_OK;
    boot_fd_close(&meeting->sockets[0]);
    boot_fd_close(&meeting->listener);
    // Rank 0 may have closed its listener, or ended, before it looked at this call; or this process
    // had no processor, and has kept it waiting.
    const bool silent = result == ZERO_E_PEER || result == ZERO_E_TIMEOUT;
    const bool elsewhere = result < 0 && result != ZERO_E_ABORTED && meeting->way->is_elsewhere &&
                           meeting->way->is_elsewhere(meeting, silent);
    return silent || elsewhere ? ZERO_AGAIN : result;
}

// This rank, as its own messages name it.
static const char *own_text(const struct meeting *meeting, char text[BOOT_TEXT_BYTES])
{
    struct base_text own = {text, BOOT_TEXT_BYTES, 0};
    text[0] = '\0';
    base_text_add(&own, "rank %d", meeting->place->rank);
    if (meeting->way->apart)
        base_text_add(&own, " (host %s)", meeting->hello.host);
    return text;
}

static zero_result call_until_known(struct meeting *meeting, struct base_error *error)
{
    char own[BOOT_TEXT_BYTES];
    for (int pause_ms = 1;; pause_ms = pause_ms < 64 ? 2 * pause_ms : 100) {
        struct base_error why = {.result = ZERO_OK};
        const zero_result result = call(meeting, &why);
        if (result == ZERO_OK)
            return ZERO_OK;
        if (result == ZERO_E_ABORTED)
            return zero_fail(error, result, "%s", why.message);
        remind(meeting, "rank 0", why.message);
        const int left = boot_wait_left(&meeting->wait, meeting->place->deadline_ns, pause_ms);
        if (result == ZERO_AGAIN && boot_wait_stops(&meeting->wait))
            return boot_fail_stopped(meeting->place->rank, "rank 0", meeting->place->world, error);
        if (result != ZERO_AGAIN || left == 0) {
            char bytes[2 * BOOT_TEXT_BYTES] = "";
            struct base_text text = {bytes, sizeof bytes, 0};
            meeting->way->unreached_text(meeting, result, why.message, &text);
            return zero_fail(error, result == ZERO_AGAIN ? ZERO_E_TIMEOUT : result, "%s: %s",
                             own_text(meeting, own), bytes);
        }
        poll(NULL, 0, left);
    }
}

/* ------------------------------------------------------------------ then */

// Keeps what rank 0 says of the ranks that are missing.
static zero_result hear_missing(struct meeting *meeting, size_t length, struct base_error *error)
{
    char ranks[BOOT_RANKS_BYTES + 1] = "";
    if (length > BOOT_RANKS_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "rank 0 sent %zu bytes of missing ranks", length);
    const zero_result result = hear_text(meeting, ranks, length, error);
    ranks[length < BOOT_RANKS_BYTES ? length : BOOT_RANKS_BYTES - 1] = '\0';
    memcpy(meeting->missing, ranks, sizeof meeting->missing);
    if (!result && meeting->way->pass_missing)
        meeting->way->pass_missing(meeting);
    if (!result && boot_time_left(boot_patience(meeting), 1) == 0)
        return zero_fail(error, ZERO_E_TIMEOUT, "it waited for %s", meeting->missing);
    return result;
}

// Closes the descriptors that have come with a message. Those for which there was no room are
// closed.
static void close_fds(const struct boot_header *header, int *fds, int room)
{
    for (uint32_t i = 0; i < header->fds && i < (uint32_t)room; i++)
        boot_fd_close(&fds[i]);
}

// Descriptors come with the message only that this rank waits for.
static zero_result refuse_fds(const struct boot_header *header, int *fds, int room,
                              struct base_error *error)
{
    close_fds(header, fds, room);
    return header->fds
               ? zero_fail(error, ZERO_E_INVALID, "%u descriptors came with a message of type %u",
                           header->fds, header->type)
               : ZERO_OK;
}

// Receives the next message but those that this deals with by itself: which ranks are missing, and
// that rank 0 refuses one that this rank speaks for.
static zero_result hear_next(struct meeting *meeting, struct boot_header *header, size_t most,
                             int *fds, int room, struct base_error *error)
{
    const size_t turned = sizeof(struct boot_turned) + BOOT_TEXT_BYTES;
    zero_result result = ZERO_OK;
    assert(meeting->place->rank > 0 && meeting->sockets[0] >= 0);
    do {
        result = await_word(meeting, true, boot_patience(meeting), error);
        if (!result)
            result = boot_receive_with(meeting->sockets[0], header, most > turned ? most : turned,
                                       fds, room, boot_patience(meeting), error);
        meeting->told = meeting->told || (result && header->type == BOOT_FAIL);
        if (!result && (header->type == BOOT_MISSING || header->type == BOOT_TURNED))
            result = refuse_fds(header, fds, room, error);
        if (!result && header->type == BOOT_MISSING)
            result = hear_missing(meeting, header->length, error);
        else if (!result && header->type == BOOT_TURNED && meeting->way->hear_turned)
            result = meeting->way->hear_turned(meeting, header->length, error);
        else
            break;
    } while (!result);
    return result;
}

static zero_result fail_unexpected(const struct boot_header *header, struct base_error *error)
{
    return zero_fail(error, ZERO_E_INVALID, "rank 0 sent %u bytes of type %u", header->length,
                     header->type);
}

zero_result boot_hear_some(struct meeting *meeting, enum boot_message_type type, void *payload,
                           size_t most, size_t *length, struct base_error *error)
{
    struct boot_header header = {.type = 0};
    const zero_result result = hear_next(meeting, &header, most, NULL, 0, error);
    *length = header.length;
    if (result)
        return result;
    if (header.type != type || header.length > most)
        return fail_unexpected(&header, error);
    return boot_receive_bytes(meeting->sockets[0], payload, header.length, boot_patience(meeting),
                              error);
}

zero_result boot_hear(struct meeting *meeting, enum boot_message_type type, void *payload,
                      size_t length, struct base_error *error)
{
    struct boot_header header = {.type = 0};
    const zero_result result = hear_next(meeting, &header, length, NULL, 0, error);
    if (result)
        return result;
    if (header.type != type || header.length != length)
        return fail_unexpected(&header, error);
    return boot_receive_bytes(meeting->sockets[0], payload, length, boot_patience(meeting), error);
}

zero_result boot_hear_fds(struct meeting *meeting, enum boot_message_type type, int *fds, int count,
                          struct base_error *error)
{
    struct boot_header header = {.type = 0};
    assert(count > 0 && count <= BOOT_FDS_MAX);
    const zero_result result = hear_next(meeting, &header, 0, fds, count, error);
    if (result)
        return result;
    if (header.type == type && header.fds == (uint32_t)count && header.length == 0)
        return ZERO_OK;
    close_fds(&header, fds, count);
    return fail_unexpected(&header, error);
}

static zero_result fail_client(const struct meeting *meeting, zero_result result, const char *why,
                               struct base_error *error)
{
    char own[BOOT_TEXT_BYTES], rank_0[BOOT_TEXT_BYTES];
    own_text(meeting, own);
    boot_rank_text(meeting, 0, rank_0);
    if (meeting->member && !meeting->told && result == ZERO_E_PEER)
        return zero_fail(error, result,
                         "%s: process %d of this host, which speaks for its ranks, went away "
                         "before all ranks had met: %s",
                         own, (int)meeting->speaker, why);
    if (!meeting->way->apart && (meeting->told || result == ZERO_E_ABORTED))
        return zero_fail(error, result, "%s", why);
    if (!meeting->way->apart && result == ZERO_E_PEER)
        return zero_fail(error, result, "%s: %s went away before all ranks had met: %s", own,
                         rank_0, why);
    return zero_fail(error, result, "%s, meeting %s: %s", own, rank_0, why);
}

zero_result boot_client(struct meeting *meeting, struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK};
    assert(meeting->way->size == sizeof *meeting->way);
    zero_result result = call_until_known(meeting, error);
    if (result)
        return result;
    meeting->wait.grace_ns = boot_patience(meeting) - meeting->place->deadline_ns;
    result = meeting->way->finish_client(meeting, &failure);
    boot_fd_close(&meeting->listener);
    if (result && !meeting->told) // rank 0 is not to take it for a death, and tells the others
        boot_send_failure(meeting->sockets[0], result, failure.message);
    return result ? fail_client(meeting, result, failure.message, error) : ZERO_OK;
}
