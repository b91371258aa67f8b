#include "tools/zero-run/run.h"

#include "tools/zero-run/agent_link.h"

#include "base/arena.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

zero_result run_metrics_open(struct run_metrics *metrics, const char *path,
                             struct base_error *error)
{
    zero_result result = ZERO_OK;
    if (!metrics->link)
        result =
            base_open(&metrics->file, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666, error);
    if (result)
        return result;
    metrics->line = base_calloc(RUN_LINE_BYTES, 1);
    if (!metrics->line)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the lines of '%.200s'", path);
    return run_metrics_connect(metrics, error);
}

zero_result run_metrics_connect(struct run_metrics *metrics, struct base_error *error)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return zero_fail_errno(error, ZERO_E_IO, errno, "a pipe for the metrics");
    metrics->input = ends[0];
    metrics->output = ends[1];
    if (fcntl(metrics->input, F_SETFL, O_NONBLOCK))
        return zero_fail_errno(error, ZERO_E_IO, errno, "a pipe for the metrics");
    return ZERO_OK;
}

// A reader of the file never sees half of a line: what did not fit is taken back.
static void take_back(int file, size_t written)
{
    struct stat now;
    if (written > 0 && fstat(file, &now) == 0 && S_ISREG(now.st_mode) &&
        now.st_size >= (off_t)written)
        (void)!ftruncate(file, now.st_size - (off_t)written);
}

static void write_lines(struct run_metrics *metrics, const char *bytes, size_t count)
{
    if (metrics->link) {
        run_link_send_bytes(metrics->link, RUN_FRAME_METRICS, 0, bytes, count);
        return;
    }
    size_t line = 0; // where the line that is being written begins
    for (size_t done = 0; done < count && !metrics->failed;) {
        const ssize_t written = write(metrics->file, bytes + done, count - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            metrics->failed = written < 0 ? errno : ENOSPC;
            take_back(metrics->file, done - line);
            break;
        }
        done += (size_t)written;
        const char *newline = memrchr(bytes + line, '\n', done - line);
        if (newline)
            line = (size_t)(newline - bytes) + 1;
    }
}

// `count` more bytes are in the line: writes what is whole.
static void write_whole(struct run_metrics *metrics, size_t count)
{
    const char *newline = memrchr(metrics->line + metrics->used, '\n', count);
    metrics->used += count;
    size_t whole = newline ? (size_t)(newline - metrics->line) + 1 : 0;
    if (!newline && metrics->used == RUN_LINE_BYTES)
        whole = metrics->used; // a line that is too long for being kept together
    write_lines(metrics, metrics->line, whole);
    metrics->used -= whole;
    memmove(metrics->line, metrics->line + whole, metrics->used);
}

void run_metrics_read(struct run_metrics *metrics)
{
    char *room = metrics->line + metrics->used;
    const ssize_t count = read(metrics->input, room, RUN_LINE_BYTES - metrics->used);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        base_close(&metrics->input, "a pipe", NULL);
        return;
    }
    write_whole(metrics, (size_t)count);
}

void run_metrics_feed(struct run_metrics *metrics, const char *bytes, size_t count)
{
    while (metrics->line && count > 0) {
        const size_t room = RUN_LINE_BYTES - metrics->used, fits = count < room ? count : room;
        memcpy(metrics->line + metrics->used, bytes, fits);
        write_whole(metrics, fits);
        bytes += fits;
        count -= fits;
    }
}

void run_metrics_disconnect(struct run_metrics *metrics)
{
    int *const descriptors[] = {&metrics->input, &metrics->output};
    if (metrics->used > 0 && metrics->used < RUN_LINE_BYTES) {
        metrics->line[metrics->used++] = '\n';
        write_lines(metrics, metrics->line, metrics->used);
    }
    metrics->used = 0;
    for (int i = 0; i < 2; i++)
        base_close(descriptors[i], "a pipe", NULL);
}

void run_metrics_add(struct run_metrics *metrics, const char *line)
{
    if (metrics->file >= 0)
        write_lines(metrics, line, strlen(line));
}

void run_metrics_close(struct run_metrics *metrics)
{
    struct base_error error = {.result = ZERO_OK};
    run_metrics_disconnect(metrics);
    // What a file system has put off fails here.
    if (base_close(&metrics->file, "the metrics", &error) && !metrics->failed)
        metrics->failed = EIO;
    base_free(metrics->line);
    metrics->line = NULL;
}
