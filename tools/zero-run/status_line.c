// What zero-run does with the control segment: the status line, the trace, and who is to blame.

#include "tools/zero-run/run.h"
#include "tools/zero-run/utf8.h"

#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

static const uint64_t redraw_ns = SECOND_NS / 5;
static const uint64_t drain_ns = SECOND_NS / 50;
// Adding up a process's memory takes the kernel a while, and stops it meanwhile.
static const uint64_t memory_ns = 10 * SECOND_NS;

// A rank whose output zero-run does not see may write in the middle of a line that is redrawn.
static bool redraws(const struct run_job *job)
{
    const char *kind = getenv("TERM");
    return job->output.piped && job->output.err.watched && !(kind && !strcmp(kind, "dumb"));
}

static zero_result make_segment(struct run_job *job, struct base_error *error)
{
    struct run_watch *watch = &job->watch;
    const zero_result result = control_create(&watch->segment, &watch->fd, job->at.world,
                                              job->options->trace != NULL, error);
    if (!result && watch->period_ns)
        watch->status_ns = base_clock_ns() + watch->period_ns;
    return result;
}

zero_result run_watch_begin(struct run_job *job, struct base_error *error)
{
    const struct run_options *options = job->options;
    struct run_watch *watch = &job->watch;
    if (options->plan)
        return ZERO_OK;
    const bool own_terminal = !job->output.piped && job->output.err.terminal;
    watch->redraws = redraws(job);
    watch->period_ns = watch->redraws ? redraw_ns : (uint64_t)options->status_s * SECOND_NS;
    if (options->status == OPTION_NEVER || (options->status == OPTION_AUTO && own_terminal))
        watch->period_ns = 0;
    return make_segment(job, error);
}

zero_result run_watch_open_trace(struct run_job *job, struct base_error *error)
{
    struct run_watch *watch = &job->watch;
    if (!job->options->trace)
        return ZERO_OK;
    const zero_result result =
        run_trace_open(&watch->trace, job->options->trace, watch->segment, error);
    if (!result)
        watch->drain_ns = base_clock_ns() + drain_ns;
    return result;
}

static void drop_segment(struct run_watch *watch)
{
    control_detach(watch->segment);
    watch->segment = NULL;
    base_close(&watch->fd, "the control segment", NULL);
}

zero_result run_watch_renew(struct run_job *job, struct base_error *error)
{
    struct run_watch *watch = &job->watch;
    drop_segment(watch);
    const zero_result result = make_segment(job, error);
    if (!result && watch->trace) {
        run_trace_join(watch->trace, watch->segment);
        watch->drain_ns = base_clock_ns() + drain_ns;
    }
    return result;
}

void run_watch_close(struct run_job *job)
{
    run_trace_close(job->watch.trace);
    drop_segment(&job->watch);
    job->watch = (struct run_watch){.fd = -1, .status_ns = UINT64_MAX, .drain_ns = UINT64_MAX};
}

/* ------------------------------------------------------------------ trace */

static void check_trace(struct run_job *job)
{
    const int failed = run_trace_failed(job->watch.trace);
    if (!failed || job->watch.told_trace)
        return;
    job->watch.told_trace = true;
    char text[RUN_ERRNO_TEXT];
    run_say(job, "cannot write the trace: %s; the job goes on without it",
            run_describe_errno(failed, text));
}

bool run_watch_trace_lost(const struct run_job *job)
{
    return job->watch.trace && run_trace_failed(job->watch.trace);
}

static void finish_trace(struct run_job *job)
{
    run_trace_finish(job->watch.trace);
    check_trace(job);
    const uint64_t lost = run_trace_lost(job->watch.trace);
    if (lost)
        run_say(job, "the trace lacks %llu records: the ranks were faster than zero-run",
                (unsigned long long)lost);
}

/* ------------------------------------------------------------------ status */

/** Whether the terminal is ours: a job in the background leaves it to the foreground group. */
static bool in_foreground(const struct run_job *job)
{
    const pid_t group = tcgetpgrp(job->output.err.fd);
    return group < 0 || group == getpgrp();
}

static size_t columns(const struct run_job *job)
{
    struct winsize size;
    if (ioctl(job->output.err.fd, TIOCGWINSZ, &size) || size.ws_col < 2)
        return 80;
    return size.ws_col;
}

/** Of ranks on all hosts, as their agents have seen it last. */
static void add_memory(const struct run_job *job, struct run_progress *progress)
{
    progress->memory = 0;
    progress->resident = false;
    for (int i = 0; i < job->count; i++) {
        progress->memory += job->ranks[i].memory;
        progress->resident = progress->resident || job->ranks[i].resident;
    }
}

static void show_status(struct run_job *job, uint64_t now)
{
    struct run_watch *watch = &job->watch;
    const struct run_progress before = watch->progress;
    char bytes[512] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    run_progress_read(watch->segment, &watch->progress);
    watch->progress.memory = before.memory;
    watch->progress.resident = before.resident;
    watch->progress.restarts = job->restarts.count;
    if (watch->progress.step == 0)
        return;
    if (!watch->redraws && watch->progress.step == before.step)
        return;
    if (job->span)
        add_memory(job, &watch->progress);
    else if (now >= watch->memory_ns) {
        run_progress_memory(watch->segment, "/proc", &watch->progress);
        watch->memory_ns = now + memory_ns;
    }
    run_progress_text(&watch->progress, &text);
    if (!watch->redraws) {
        run_threads_say(job);
        run_say(job, "%s", bytes);
        return;
    }
    const size_t most = columns(job) - 1; // in the last column some terminals go to the next line
    if (text.used > most)
        bytes[run_utf8_whole(bytes, most)] = '\0';
    if (in_foreground(job))
        run_sink_draw(&job->output.err, bytes);
}

/* ------------------------------------------------------------------ the loop's */

uint64_t run_watch_due(const struct run_job *job)
{
    const struct run_watch *watch = &job->watch;
    return watch->status_ns < watch->drain_ns ? watch->status_ns : watch->drain_ns;
}

void run_watch_update(struct run_job *job)
{
    struct run_watch *watch = &job->watch;
    const uint64_t now = base_clock_ns();
    if (now >= watch->drain_ns) {
        run_trace_drain(watch->trace);
        check_trace(job);
        watch->drain_ns = now + drain_ns;
    }
    if (now >= watch->status_ns) {
        show_status(job, now);
        watch->status_ns = now + watch->period_ns;
    }
}

void run_watch_finish(struct run_job *job)
{
    struct run_watch *watch = &job->watch;
    watch->status_ns = watch->drain_ns = UINT64_MAX;
    run_sink_erase(&job->output.err);
    if (watch->trace)
        run_trace_leave(watch->trace);
}

void run_watch_end(struct run_job *job)
{
    if (job->watch.trace)
        finish_trace(job);
}

static void say_line(void *user, const char *line)
{
    run_say(user, "%s", line);
}

void run_watch_blame(struct run_job *job, int failed)
{
    if (job->span && job->span->coordinates)
        job->span->ops->order(job, RUN_ORDER_BLAME, failed);
    else if (job->watch.segment)
        run_blame(job->watch.segment, failed, base_clock_ns(), say_line, job);
}
