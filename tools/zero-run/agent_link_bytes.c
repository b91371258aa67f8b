#include "tools/zero-run/agent_link_parts.h"

#include "base/arena.h"
#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SMALLEST = 4096,
    PIECE = 64 * 1024,       // of one read or write
    READ_AHEAD = 256 * 1024, // received bytes that wait for run_link_next(): no more are read
};

/* ------------------------------------------------------------------ bytes that wait */

/** Makes room for `count` bytes behind those that are there, and returns where; NULL: no memory. */
static char *make_room(struct run_bytes *bytes, size_t count)
{
    assert(bytes->start + bytes->used <= bytes->capacity);
    if (count <= bytes->capacity - bytes->start - bytes->used)
        return bytes->data + bytes->start + bytes->used;
    if (bytes->used + count > bytes->capacity) {
        size_t capacity = bytes->capacity ? bytes->capacity : SMALLEST;
        while (capacity < bytes->used + count)
            capacity *= 2;
        char *data = base_calloc(capacity, 1);
        if (!data)
            return NULL;
        if (bytes->used)
            memcpy(data, bytes->data + bytes->start, bytes->used);
        base_free(bytes->data);
        bytes->data = data;
        bytes->capacity = capacity;
    } else
        memmove(bytes->data, bytes->data + bytes->start, bytes->used);
    bytes->start = 0;
    return bytes->data + bytes->used;
}

void run_bytes_drop(struct run_bytes *bytes, size_t count)
{
    assert(count <= bytes->used);
    bytes->start += count;
    bytes->used -= count;
    if (bytes->used == 0)
        bytes->start = 0;
}

void run_bytes_free(struct run_bytes *bytes)
{
    base_free(bytes->data);
    *bytes = (struct run_bytes){.data = NULL};
}

/* ------------------------------------------------------------------ writing */

void run_link_fail(struct run_link *link, enum run_link_end end, const char *format, ...)
{
    char text[400];
    va_list arguments;
    if (link->state == RUN_LINK_ENDED)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    zero_fail(&link->why, ZERO_E_PEER, "%s", text);
    link->state = RUN_LINK_ENDED;
    link->end = end;
}

void run_link_add(struct run_link *link, const void *bytes, size_t count)
{
    if (link->state == RUN_LINK_ENDED || link->deaf)
        return;
    if (link->waiting.used + count > RUN_LINK_MOST) {
        run_link_fail(link, RUN_LINK_WRONG, "it does not take what it is sent: %zu bytes wait",
                      link->waiting.used);
        return;
    }
    char *room = make_room(&link->waiting, count);
    if (!room) {
        run_link_fail(link, RUN_LINK_FAILED, "no memory for %zu bytes to send", count);
        return;
    }
    memcpy(room, bytes, count);
    link->waiting.used += count;
    link->sent_ns = base_clock_ns();
}

// A pipe is no socket, and has no flags.
static ssize_t write_some(int fd, const char *data, size_t count)
{
    const ssize_t sent = send(fd, data, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 && errno == ENOTSOCK ? write(fd, data, count) : sent;
}

// A side that takes nothing any more may have said before why.
void run_link_write(struct run_link *link)
{
    struct run_bytes *waiting = &link->waiting;
    while (waiting->used > 0 && link->out >= 0) {
        const size_t piece = waiting->used < PIECE ? waiting->used : PIECE;
        const ssize_t sent = write_some(link->out, waiting->data + waiting->start, piece);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return;
        if (sent < 0) {
            link->deaf = true;
            link->errnum = errno;
            run_bytes_drop(waiting, waiting->used);
            return;
        }
        run_bytes_drop(waiting, (size_t)sent);
    }
}

/* ------------------------------------------------------------------ reading */

// Whether no more is to be read before what is there has been taken.
static bool is_full(const struct run_link *link)
{
    const size_t most = link->wanted > READ_AHEAD ? link->wanted : READ_AHEAD;
    return link->received.used >= most;
}

void run_link_read(struct run_link *link)
{
    while (!link->eof && link->in >= 0 && !is_full(link)) {
        char *room = make_room(&link->received, PIECE);
        if (!room) {
            run_link_fail(link, RUN_LINK_FAILED, "no memory for what it sends");
            return;
        }
        const ssize_t count = read(link->in, room, PIECE);
        if (count > 0) {
            link->received.used += (size_t)count;
            link->heard_ns = base_clock_ns();
            continue;
        }
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        link->eof = true;
        // A write that failed before has taken the reason away.
        if (count < 0)
            link->errnum = errno;
    }
    if (is_full(link)) // what waits to be taken is no silence
        link->heard_ns = base_clock_ns();
}
