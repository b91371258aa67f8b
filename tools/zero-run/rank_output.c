#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/file.h"
#include "tools/zero-run/agent_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SINK_FULL = 256 * 1024, // bytes waiting beyond which ranks have to wait
    SINK_CHUNK = 4096,      // a pipe that polls writable takes so much without blocking
};

void run_sink_init(struct run_sink *sink, int number, enum option_when color)
{
    const int fd = STDOUT_FILENO + number;
    const bool terminal = isatty(fd), watched = terminal && tcgetpgrp(fd) >= 0;
    char path[32];
    *sink = (struct run_sink){.fd = fd,
                              .number = number,
                              .terminal = terminal,
                              .watched = watched,
                              .color = option_color(color, watched)};
    if (!terminal)
        return;
    // A terminal that polls writable may take less than is written. Opened once more it doesn't
    // block, and other processes that share the descriptor notice nothing.
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own >= 0)
        sink->fd = own;
}

// Makes room for `count` more bytes behind those that wait.
static bool reserve(struct run_sink *sink, size_t count)
{
    if (sink->start + sink->used + count <= sink->capacity)
        return true;
    if (sink->used + count <= sink->capacity) {
        memmove(sink->bytes, sink->bytes + sink->start, sink->used);
        sink->start = 0;
        return true;
    }
    size_t capacity = sink->capacity ? sink->capacity : SINK_CHUNK;
    while (capacity < sink->used + count)
        capacity *= 2;
    char *bytes = base_calloc(capacity, 1);
    if (!bytes)
        return false;
    if (sink->used)
        memcpy(bytes, sink->bytes + sink->start, sink->used);
    base_free(sink->bytes);
    sink->bytes = bytes;
    sink->start = 0;
    sink->capacity = capacity;
    return true;
}

static void append(struct run_sink *sink, const char *bytes, size_t count)
{
    if (sink->failed || count == 0)
        return;
    if (!reserve(sink, count)) {
        sink->failed = ENOMEM;
        return;
    }
    memcpy(sink->bytes + sink->start + sink->used, bytes, count);
    sink->used += count;
}

void run_sink_erase(struct run_sink *sink)
{
    static const char erase[] = "\r\033[K";
    if (sink->drawn)
        append(sink, erase, sizeof erase - 1);
    sink->drawn = false;
}

void run_sink_draw(struct run_sink *sink, const char *line)
{
    if (sink->used || sink->mid_line)
        return;
    run_sink_erase(sink);
    append(sink, line, strlen(line));
    sink->drawn = true;
}

void run_sink_add(struct run_sink *sink, const char *bytes, size_t count)
{
    if (sink->failed || count == 0)
        return;
    run_sink_erase(sink);
    append(sink, bytes, count);
    sink->mid_line = bytes[count - 1] != '\n';
    for (const char *at = bytes; (at = memchr(at, '\n', (size_t)(bytes + count - at))); at++)
        sink->shown++;
}

bool run_sink_full(const struct run_sink *sink)
{
    return sink->used >= SINK_FULL;
}

void run_sink_write(struct run_sink *sink)
{
    const size_t count = sink->used < SINK_CHUNK ? sink->used : SINK_CHUNK;
    const ssize_t written = write(sink->fd, sink->bytes + sink->start, count);
    if (written < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (written < 0) {
        sink->failed = errno;
        sink->used = 0;
        return;
    }
    sink->start += (size_t)written;
    sink->used -= (size_t)written;
}

void run_sink_free(struct run_sink *sink)
{
    base_free(sink->bytes);
    sink->bytes = NULL;
    sink->used = sink->capacity = 0;
    if (sink->fd > STDERR_FILENO)
        close(sink->fd);
    sink->fd = -1;
}

// One line, its newline included unless it has none.
static void pass_line(struct run_stream *stream, const char *line, size_t length)
{
    const bool waits =
        !stream->hidden && stream->join && run_join_take(stream->join, stream, line, length);
    if (!stream->hidden && !waits) {
        run_sink_add(stream->sink, stream->prefix, strlen(stream->prefix));
        run_sink_add(stream->sink, line, length);
        if (line[length - 1] != '\n')
            run_sink_add(stream->sink, "\n", 1);
    }
    run_tail_add(stream->tail, stream->number, line, length, stream->sink->number,
                 stream->sink->shown);
}

// Passes on the whole lines, and what fills the buffer without being one; keeps the rest.
static void pass_lines(struct run_stream *stream)
{
    size_t done = 0;
    const char *newline;
    while ((newline = memchr(stream->line + done, '\n', stream->used - done))) {
        const size_t length = (size_t)(newline - (stream->line + done)) + 1;
        pass_line(stream, stream->line + done, length);
        done += length;
    }
    if (done == 0 && stream->used == RUN_LINE_BYTES) {
        pass_line(stream, stream->line, stream->used);
        done = stream->used;
    }
    stream->used -= done;
    memmove(stream->line, stream->line + done, stream->used);
}

static void write_log(struct run_stream *stream, const char *bytes, size_t count)
{
    if (*stream->log_fd < 0 || *stream->log_errno)
        return;
    if (base_write_all(*stream->log_fd, bytes, count, "the log", NULL))
        *stream->log_errno = errno ? errno : EIO;
}

// `count` more bytes are in the line: passes on what can be.
static void pass_on(struct run_stream *stream, size_t count)
{
    stream->used += count;
    if (stream->lines) {
        pass_lines(stream);
        return;
    }
    run_sink_add(stream->sink, stream->line, stream->used);
    run_tail_add(stream->tail, stream->number, stream->line, stream->used, stream->sink->number,
                 stream->sink->shown);
    stream->used = 0;
}

void run_stream_read(struct run_stream *stream)
{
    char *room = stream->line + stream->used;
    const ssize_t count = read(stream->fd, room, RUN_LINE_BYTES - stream->used);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        run_stream_close(stream);
        return;
    }
    write_log(stream, room, (size_t)count);
    if (stream->link) {
        run_link_send_bytes(stream->link, RUN_FRAME_OUTPUT,
                            (uint32_t)(2 * stream->rank + stream->number), room, (size_t)count);
        return;
    }
    pass_on(stream, (size_t)count);
}

void run_stream_feed(struct run_stream *stream, const char *bytes, size_t count)
{
    while (stream->line && count > 0) {
        const size_t room = RUN_LINE_BYTES - stream->used, fits = count < room ? count : room;
        memcpy(stream->line + stream->used, bytes, fits);
        pass_on(stream, fits);
        bytes += fits;
        count -= fits;
    }
}
void run_stream_flush(struct run_stream *stream)
{
    if (stream->used)
        pass_line(stream, stream->line, stream->used);
    stream->used = 0;
    run_tail_end(stream->tail, stream->number, stream->sink->number, stream->sink->shown);
}

void run_stream_close(struct run_stream *stream)
{
    run_stream_flush(stream);
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}
