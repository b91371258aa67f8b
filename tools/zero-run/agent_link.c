#include "tools/zero-run/agent_link_parts.h"

#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FRAME_MAGIC = 0x6d617266, // "fram"
    CONFIRMED = RUN_LINK_WINDOW / 4,
};

// Frames of the link's own; their numbers follow those of enum run_frame_type.
enum own_type { OWN_BEAT = 16, OWN_CONFIRM, OWN_FAREWELL };

struct header {
    uint32_t magic, type, tag, length;
};

_Static_assert(sizeof(struct header) == 16, "the header has no padding");

static const uint64_t second_ns = UINT64_C(1000000000);

static bool make_ready(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

zero_result run_link_begin(struct run_link *link, int in, int out, const struct run_self *self,
                           struct base_error *error)
{
    const uint64_t now = base_clock_ns();
    *link = (struct run_link){.beat_ns = second_ns,
                              .silence_ns = 30 * second_ns,
                              .meet_ns = UINT64_MAX,
                              .in = in,
                              .out = out,
                              .self = *self,
                              .heard_ns = now,
                              .sent_ns = now};
    zero_result result = ZERO_OK;
    if (!make_ready(in) || !make_ready(out))
        result = zero_fail_errno(error, ZERO_E_IO, errno, "a link between hosts");
    if (!result)
        result = run_link_greet(link, error);
    if (!result && link->state == RUN_LINK_ENDED)
        result = zero_fail(error, ZERO_E_NOMEM, "%s", link->why.message);
    if (result)
        run_link_close(link);
    return result;
}

zero_result run_link_adopt(struct run_link *link, const struct run_self *self,
                           struct base_error *error)
{
    *link = (struct run_link){.in = -1, .out = -1};
    if (isatty(STDIN_FILENO) || isatty(STDOUT_FILENO))
        return zero_fail(error, ZERO_E_INVALID,
                         "zero-run starts its agents itself: its input and output are terminals");
    const int in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool moved = in >= 0 && out >= 0 && null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
                       dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
    const int errnum = errno;
    if (null >= 0)
        close(null);
    if (moved)
        return run_link_begin(link, in, out, self, error);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return zero_fail_errno(error, ZERO_E_IO, errnum, "the link to the coordinator");
}

void run_link_close(struct run_link *link)
{
    if (link->out != link->in)
        boot_fd_close(&link->out);
    link->out = -1;
    boot_fd_close(&link->in);
    run_bytes_free(&link->received);
    run_bytes_free(&link->waiting);
    link->state = RUN_LINK_ENDED;
}

/* ------------------------------------------------------------------ sending */

static void add_frame(struct run_link *link, uint32_t type, uint32_t tag, const void *bytes,
                      size_t count)
{
    const struct header header = {FRAME_MAGIC, type, tag, (uint32_t)count};
    run_link_add(link, &header, sizeof header);
    if (count > 0)
        run_link_add(link, bytes, count);
}

void run_link_send(struct run_link *link, json_t *object)
{
    assert(link->state != RUN_LINK_MEETING && !link->farewell);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    const size_t length = text ? strlen(text) : 0;
    json_decref(object);
    if (!text)
        run_link_fail(link, RUN_LINK_FAILED, "no memory for a message");
    else if (length > RUN_CONTROL_BYTES)
        run_link_fail(link, RUN_LINK_FAILED, "a message of %zu bytes is too long: there can be %d",
                      length, RUN_CONTROL_BYTES);
    else
        add_frame(link, RUN_FRAME_CONTROL, 0, text, length);
    free(text);
}

void run_link_send_bytes(struct run_link *link, enum run_frame_type type, uint32_t tag,
                         const char *bytes, size_t count)
{
    assert(link->state != RUN_LINK_MEETING && !link->farewell && type > RUN_FRAME_CONTROL);
    while (count > 0 && link->state == RUN_LINK_OPEN) {
        const size_t piece = count < RUN_FRAME_BYTES ? count : RUN_FRAME_BYTES;
        add_frame(link, type, tag, bytes, piece);
        link->unconfirmed += piece;
        bytes += piece;
        count -= piece;
    }
}

bool run_link_full(const struct run_link *link)
{
    return link->state == RUN_LINK_OPEN && link->unconfirmed >= RUN_LINK_WINDOW;
}

// In steps: a confirmation for each frame would be as many frames as there are.
static void confirm(struct run_link *link)
{
    if (link->held || link->taken < CONFIRMED || link->state != RUN_LINK_OPEN || link->farewell)
        return;
    add_frame(link, OWN_CONFIRM, (uint32_t)link->taken, NULL, 0);
    link->taken = 0;
}

void run_link_hold(struct run_link *link, bool held)
{
    link->held = held;
    confirm(link);
}

void run_link_farewell(struct run_link *link)
{
    if (link->state == RUN_LINK_OPEN && !link->farewell)
        add_frame(link, OWN_FAREWELL, 0, NULL, 0);
    link->farewell = true;
}

/* ------------------------------------------------------------------ receiving */

// Ends the link if a frame cannot be; a text that came from elsewhere is not repeated.
static bool check_header(struct run_link *link, const struct header *header)
{
    const bool raw = header->type > RUN_FRAME_CONTROL && header->type <= RUN_FRAME_INPUT;
    const size_t most = header->type == RUN_FRAME_CONTROL ? RUN_CONTROL_BYTES
                        : raw                             ? RUN_FRAME_BYTES
                                                          : 0;
    if (header->magic != FRAME_MAGIC)
        run_link_fail(link, RUN_LINK_WRONG, "what it sends is no message of zero-run's");
    else if (!raw && header->type != RUN_FRAME_CONTROL &&
             (header->type < OWN_BEAT || header->type > OWN_FAREWELL))
        run_link_fail(link, RUN_LINK_WRONG, "it sends a message of a type that is none: %u",
                      header->type);
    else if (header->length > most)
        run_link_fail(link, RUN_LINK_WRONG, "it announces %u bytes, where there can be %zu",
                      header->length, most);
    return link->state == RUN_LINK_OPEN;
}

static void take_own(struct run_link *link, const struct header *header)
{
    if (header->type == OWN_FAREWELL)
        run_link_fail(link, RUN_LINK_FAREWELL, "it has ended as it should");
    if (header->type != OWN_CONFIRM)
        return;
    if (header->tag > link->unconfirmed)
        run_link_fail(link, RUN_LINK_WRONG, "it confirms %u bytes, but has got %llu", header->tag,
                      (unsigned long long)link->unconfirmed);
    else
        link->unconfirmed -= header->tag;
}

// A side that is held back may still send what its ranks had written.
static void take_raw(struct run_link *link, size_t count)
{
    link->taken += count;
    if (link->taken > RUN_LINK_MOST)
        run_link_fail(link, RUN_LINK_WRONG, "it sends %llu bytes, and waits for no confirmation",
                      (unsigned long long)link->taken);
    confirm(link);
}

static bool take_frame(struct run_link *link, const struct header *header, struct run_frame *frame)
{
    const char *bytes = link->received.data + link->received.start + sizeof *header;
    *frame = (struct run_frame){.type = header->type, .tag = header->tag};
    if (header->type >= OWN_BEAT)
        take_own(link, header);
    else if (header->type == RUN_FRAME_CONTROL) {
        frame->object = json_loadb(bytes, header->length, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(frame->object)) {
            run_link_fail(link, RUN_LINK_WRONG, "it sends a message that cannot be read");
            json_decref(frame->object);
        }
    } else {
        frame->bytes = bytes;
        frame->count = header->length;
        take_raw(link, header->length);
    }
    // The bytes stay where they are until more are read.
    run_bytes_drop(&link->received, sizeof *header + header->length);
    return header->type < OWN_BEAT && link->state == RUN_LINK_OPEN;
}

// All that came has been taken, and no more will come. A process that is killed resets connections
// whose bytes it has not read.
static void end_of_stream(struct run_link *link)
{
    const int errnum = link->errnum == EPIPE ? 0 : link->errnum;
    if (errnum && errnum != ECONNRESET)
        run_link_fail(link, RUN_LINK_LOST, "its connection is broken: %s (%s)", strerror(errnum),
                      strerrorname_np(errnum));
    else
        run_link_fail(link, RUN_LINK_EOF, "it has %s its connection%s", errnum ? "reset" : "closed",
                      link->received.used > 0 ? " in the middle of a message" : "");
}

bool run_link_next(struct run_link *link, struct run_frame *frame)
{
    struct header header;
    while (link->state == RUN_LINK_OPEN && link->received.used >= sizeof header) {
        memcpy(&header, link->received.data + link->received.start, sizeof header);
        if (!check_header(link, &header))
            return false;
        link->wanted = sizeof header + header.length;
        if (link->received.used < link->wanted)
            break;
        link->wanted = 0;
        if (take_frame(link, &header, frame))
            return true;
    }
    if (link->eof)
        end_of_stream(link);
    return false;
}

/* ------------------------------------------------------------------ turns */

void run_link_poll(const struct run_link *link, struct pollfd polls[RUN_LINK_POLLS])
{
    const bool ended = link->state == RUN_LINK_ENDED;
    const bool writes = !ended && link->waiting.used > 0;
    const bool reads = !ended && !link->eof;
    const bool one = link->in == link->out;
    polls[0] =
        (struct pollfd){.fd = reads || (one && writes) ? link->in : -1,
                        .events = (short)((reads ? POLLIN : 0) | (one && writes ? POLLOUT : 0))};
    polls[1] = (struct pollfd){.fd = writes && !one ? link->out : -1, .events = POLLOUT};
}

void run_link_expect(struct run_link *link, uint64_t silence_ns)
{
    link->silence_ns = silence_ns;
    link->beat_ns = silence_ns / 4 < second_ns ? silence_ns / 4 : second_ns;
}

uint64_t run_link_due(const struct run_link *link)
{
    if (link->state == RUN_LINK_ENDED)
        return UINT64_MAX;
    uint64_t due = link->state == RUN_LINK_OPEN ? link->sent_ns + link->beat_ns : link->meet_ns;
    if (link->silence_ns && link->state == RUN_LINK_OPEN && link->heard_ns + link->silence_ns < due)
        due = link->heard_ns + link->silence_ns;
    return due;
}

// What came while this process had no processor has been read before.
static void check_time(struct run_link *link, uint64_t now)
{
    if (link->state == RUN_LINK_MEETING && now >= link->meet_ns)
        run_link_fail(link, RUN_LINK_SILENT, "it has not introduced itself in time");
    if (link->state == RUN_LINK_OPEN && link->silence_ns && !link->eof &&
        now >= link->heard_ns + link->silence_ns)
        run_link_fail(link, RUN_LINK_SILENT, "it has not been heard for %.3g s",
                      (double)(now - link->heard_ns) * 1e-9);
}

void run_link_turn(struct run_link *link)
{
    if (link->state == RUN_LINK_ENDED)
        return;
    // A caller's hello goes first. One that was called writes its own before it judges the
    // caller's.
    run_link_write(link);
    run_link_read(link);
    if (link->state == RUN_LINK_MEETING)
        run_link_meet(link);
    if (link->state == RUN_LINK_MEETING && link->eof)
        end_of_stream(link);
    const uint64_t now = base_clock_ns();
    check_time(link, now);
    if (link->state == RUN_LINK_OPEN && !link->farewell && now >= link->sent_ns + link->beat_ns) {
        link->sent_ns = now;
        if (link->waiting.used == 0)
            add_frame(link, OWN_BEAT, 0, NULL, 0);
    }
    if (link->state != RUN_LINK_ENDED)
        run_link_write(link);
}

void run_link_finish(struct run_link *link, uint64_t deadline_ns)
{
    struct pollfd polls[RUN_LINK_POLLS];
    struct run_frame frame;
    int left;
    run_link_farewell(link);
    while (link->state == RUN_LINK_OPEN && (left = boot_time_left(deadline_ns, 1000)) > 0) {
        run_link_turn(link);
        if (link->waiting.used == 0 && link->out != link->in)
            boot_fd_close(&link->out);
        else if (link->waiting.used == 0)
            shutdown(link->out, SHUT_WR);
        while (run_link_next(link, &frame))
            json_decref(frame.object);
        run_link_poll(link, polls);
        if (link->state == RUN_LINK_OPEN)
            poll(polls, RUN_LINK_POLLS, left);
    }
}
