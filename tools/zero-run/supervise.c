#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

// How long output may still come once every process is gone.
static const uint64_t drain_ns = UINT64_C(500000000);

enum { FIXED_POLLS = 5, STREAMS = 2 };

zero_result run_supervise_begin(struct run_job *job, struct base_error *error)
{
    job->polls = base_calloc(
        (size_t)(FIXED_POLLS + STREAMS * job->count + (job->span ? job->span->polls : 0)),
        sizeof *job->polls);
    if (!job->polls)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to watch %d ranks", job->count);
    job->exits = epoll_create1(EPOLL_CLOEXEC);
    if (job->exits < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "watching processes");
    return ZERO_OK;
}

static bool coordinates(const struct run_job *job)
{
    return job->span && job->span->coordinates;
}

static void order(struct run_job *job, enum run_order what)
{
    if (coordinates(job))
        job->span->ops->order(job, what, 0);
}

// The ranks are not reaped before the job's end, so no other process has their numbers.
void run_kill(struct run_job *job)
{
    job->stop.ended_by = SIGKILL;
    order(job, RUN_ORDER_KILL);
    if (coordinates(job))
        return;
    for (int i = 0; i < job->count; i++)
        run_signals_send_one(&job->ranks[i], SIGKILL);
}

uint64_t run_after_grace(const struct run_job *job)
{
    return base_clock_ns() + (uint64_t)job->options->grace_s * UINT64_C(1000000000);
}

bool run_ask(struct run_job *job)
{
    struct control_segment *segment = job->watch.segment;
    if (!segment || job->stop.stopping)
        return false;
    control_stop(segment);
    order(job, RUN_ORDER_ASK);
    if (!control_listens(segment))
        return false;
    if (job->options->grace_s == 0) {
        control_insist(segment);
        order(job, RUN_ORDER_INSIST);
        return false;
    }
    if (job->stop.ask_ns == UINT64_MAX)
        job->stop.ask_ns = run_after_grace(job);
    return true;
}

static void terminate(struct run_job *job)
{
    job->stop.ask_ns = UINT64_MAX;
    job->stop.kill_ns = run_after_grace(job);
    if (job->watch.segment)
        control_insist(job->watch.segment);
    order(job, RUN_ORDER_INSIST);
    job->stop.ended_by = SIGTERM;
    run_signals_send(job, SIGTERM);
    run_signals_send(job, SIGCONT); // a suspended process would not see it
}

void run_stop(struct run_job *job)
{
    if (job->stop.stopping)
        return;
    job->stop.stopping = true;
    terminate(job);
}

static void drain_streams(struct run_rank *rank)
{
    for (int i = 0; i < STREAMS; i++) {
        struct run_stream *stream = &rank->streams[i];
        // What its processes have left in the pipes, not what they may still write.
        for (int turns = 0; stream->fd >= 0 && turns < 64; turns++) {
            struct pollfd ready = {.fd = stream->fd, .events = POLLIN};
            if (poll(&ready, 1, 0) <= 0)
                break;
            run_stream_read(stream);
        }
        if (stream->line)
            run_stream_flush(stream);
    }
}

void run_rank_gone(struct run_job *job, struct run_rank *rank)
{
    rank->ended = true;
    job->running--;
    drain_streams(rank);
    rank->well = run_ended_well(job, rank);
}

void run_rank_failed(struct run_job *job, const struct run_rank *rank)
{
    job->failed_rank = rank->number;
    job->failed_ns = base_clock_ns();
    // With --plan an exit status counts only if there is no plan.
    if (!job->options->plan)
        run_report_first(job, rank);
    run_stop(job);
}

static void rank_ended(struct run_job *job, struct run_rank *rank)
{
    // Not reaped: see run_kill().
    if (rank->ended ||
        waitid(P_PIDFD, (id_t)rank->pidfd, &rank->end, WEXITED | WNOWAIT | WNOHANG) ||
        rank->end.si_pid == 0 || (!job->stop.stopping && run_orphans_succeed(job, rank)))
        return;
    epoll_ctl(job->exits, EPOLL_CTL_DEL, rank->pidfd, NULL);
    run_rank_gone(job, rank);
    if (job->span) {
        job->span->ops->ended(job, rank);
        return;
    }
    if (rank->well || job->stop.stopping)
        return;
    struct run_rank *first = run_first_to_end(job);
    if (first)
        rank_ended(job, first);
    if (!job->stop.stopping)
        run_rank_failed(job, rank);
}

// In the order in which they ended.
static void collect_exits(struct run_job *job)
{
    struct epoll_event events[64];
    const int count = epoll_wait(job->exits, events, 64, 0);
    for (int i = 0; i < count; i++)
        rank_ended(job, &job->ranks[events[i].data.u32]);
}

static void time_out(struct run_job *job)
{
    job->stop.timeout_ns = UINT64_MAX;
    job->stop.timed_out = !job->stop.stopping;
    if (!job->stop.timed_out)
        return;
    const bool asked = run_ask(job);
    run_say(job, "the job has run for %d s (--timeout): %s", job->options->timeout_s,
            asked ? "asking the ranks to stop after this step" : "stopping it");
    run_watch_blame(job, -1);
    if (!asked)
        run_stop(job);
}

// The ranks were asked to stop and have not.
static void insist(struct run_job *job)
{
    run_say(job, "the ranks have not stopped in %d s (--grace): SIGTERM", job->options->grace_s);
    run_watch_blame(job, -1);
    // After a time-out none of their ends is a failure; after a signal that decides the status.
    if (job->stop.timed_out)
        run_stop(job);
    else
        terminate(job);
}

static void check_deadlines(struct run_job *job)
{
    const uint64_t now = base_clock_ns();
    if (now >= job->stop.timeout_ns)
        time_out(job);
    if (now >= job->stop.ask_ns)
        insist(job);
    if (now >= job->stop.kill_ns) {
        job->stop.kill_ns = UINT64_MAX - 1; // once
        job->stop.ended_by = SIGKILL;
        run_signals_send(job, SIGKILL);
    }
}

// Ranks that have a while to stop need no reader for that. A closed terminal may be a request.
static bool is_asked(struct run_job *job, const struct run_sink *sink)
{
    const bool hangup = sink->failed == EIO && run_signals_ask(job, SIGHUP);
    return job->stop.ask_ns != UINT64_MAX || (hangup && run_ask(job));
}

// A reader has gone, or a terminal has been closed; nohup's wish is respected.
static bool nobody_reads(const struct run_job *job, const struct run_sink *sink)
{
    return sink->failed == EPIPE ||
           (sink->failed == EIO && sink->terminal && !job->inherited.ignored_hangup);
}

static void check_logs(struct run_job *job)
{
    char text[RUN_ERRNO_TEXT];
    for (int i = 0; i < job->slots; i++) {
        struct run_rank *rank = &job->ranks[i];
        if (!rank->log_errno || rank->log_fd < 0)
            continue;
        run_say(job, "cannot write the log of rank %d: %s; the job goes on without it",
                job->at.first + i, run_describe_errno(rank->log_errno, text));
        base_close(&rank->log_fd, "a log", NULL);
    }
    if (job->metrics.failed && !job->metrics.told) {
        job->metrics.told = true;
        run_say(job, "cannot write the metrics: %s; the job goes on without them",
                run_describe_errno(job->metrics.failed, text));
    }
}

static void check_sinks(struct run_job *job)
{
    struct run_sink *sinks[2] = {&job->output.out, &job->output.err};
    char text[RUN_ERRNO_TEXT];
    const char *const names[2] = {"output", job->output.one_sink ? "output and error" : "error"};
    for (int i = 0; i < 2; i++) {
        if (!sinks[i]->failed || job->output.told_sink[i])
            continue;
        job->output.told_sink[i] = true;
        const bool useless = nobody_reads(job, sinks[i]);
        const bool asked = useless && is_asked(job, sinks[i]);
        run_say(job, "cannot write to standard %s: %s%s", names[i],
                run_describe_errno(sinks[i]->failed, text),
                asked     ? "; the ranks are asked to stop"
                : useless ? "; stopping the job"
                          : "; its output is lost");
        if (!useless)
            continue;
        job->output.unread = true;
        if (!asked)
            run_stop(job);
    }
}

int run_turn_timeout(const struct run_job *job)
{
    const uint64_t due[] = {job->stop.timeout_ns,
                            job->stop.ask_ns,
                            job->stop.kill_ns,
                            run_watch_due(job),
                            run_join_due(&job->output.join),
                            job->span ? job->span->ops->due(job) : UINT64_MAX};
    const uint64_t now = base_clock_ns();
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < sizeof due / sizeof *due; i++)
        next = due[i] < next ? due[i] : next;
    if (next >= UINT64_MAX - 1)
        return -1;
    const uint64_t ms = next > now ? (next - now) / 1000000 + 1 : 0;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

static struct pollfd poll_sink(const struct run_sink *sink)
{
    return (struct pollfd){.fd = sink->used ? sink->fd : -1, .events = POLLOUT};
}

// Adds what can be read now. No others: poll() refuses more entries than there may be descriptors.
static int poll_streams(struct run_job *job)
{
    const bool full = job->span && !job->span->coordinates && job->span->ops->full(job);
    int count = FIXED_POLLS;
    for (int i = 0; i < STREAMS * job->count; i++) {
        struct run_stream *stream = &job->ranks[i / STREAMS].streams[i % STREAMS];
        const bool wait = stream->fd < 0 || full || run_sink_full(stream->sink);
        stream->poll = wait ? 0 : count++;
        if (!wait)
            job->polls[stream->poll] = (struct pollfd){.fd = stream->fd, .events = POLLIN};
    }
    return count;
}

// Whether a rank has noticed the end of another one. It has before it writes so to standard error.
static void notice_loss(struct run_job *job)
{
    struct run_join *join = &job->output.join;
    bool ready = false;
    for (int i = 1; i < STREAMS * job->count && !join->errors && !ready; i += STREAMS) {
        const struct run_stream *stream = &job->ranks[i / STREAMS].streams[1];
        ready = stream->poll && job->polls[stream->poll].revents;
    }
    if (!ready || !job->watch.segment || control_first_lost(job->watch.segment) < 0)
        return;
    join->errors = true;
    if (job->span)
        job->span->ops->noticed(job);
}

void run_turn(struct run_job *job, int timeout_ms)
{
    struct pollfd *polls = job->polls;
    polls[0] = (struct pollfd){.fd = job->signals, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = job->exits, .events = POLLIN};
    polls[2] = poll_sink(&job->output.out);
    polls[3] = poll_sink(&job->output.err);
    polls[4] = (struct pollfd){.fd = job->metrics.input, .events = POLLIN};
    int count = poll_streams(job);
    if (job->span)
        count += job->span->ops->poll(job, polls + count);
    if (poll(polls, (nfds_t)count, timeout_ms) < 0)
        return; // interrupted: the caller comes back

    if (polls[2].revents)
        run_sink_write(&job->output.out);
    if (polls[3].revents)
        run_sink_write(&job->output.err);
    if (polls[4].revents)
        run_metrics_read(&job->metrics);
    notice_loss(job);
    for (int i = 0; i < STREAMS * job->count; i++) {
        struct run_stream *stream = &job->ranks[i / STREAMS].streams[i % STREAMS];
        if (stream->poll && polls[stream->poll].revents)
            run_stream_read(stream);
    }
    if (job->span)
        job->span->ops->turn(job);
    check_sinks(job);
    check_logs(job);
}

static bool streams_open(const struct run_job *job)
{
    if (job->metrics.input >= 0)
        return true;
    for (int i = 0; i < STREAMS * job->count; i++)
        if (job->ranks[i / STREAMS].streams[i % STREAMS].fd >= 0)
            return true;
    return false;
}

static void give_up(struct run_sink *sink)
{
    if (sink->used)
        sink->failed = EINTR;
    sink->used = 0;
}

void run_flush(struct run_job *job)
{
    const int signals = job->stop.signals;
    while (((job->output.out.used && !job->output.out.failed) ||
            (job->output.err.used && !job->output.err.failed)) &&
           job->stop.signals == signals) {
        run_turn(job, -1);
        run_signals_take(job);
    }
    if (job->stop.signals == signals)
        return;
    // A user who interrupts now doesn't want the rest, but for zero-run's own words.
    give_up(&job->output.out);
    check_sinks(job);
    run_turn(job, 0);
    give_up(&job->output.err);
}

// Waits for the agents, which end what ranks have left behind, and for the last output.
static void finish_far(struct run_job *job)
{
    run_kill(job);
    while (job->span->ops->busy(job)) {
        run_turn(job, run_turn_timeout(job));
        run_signals_take(job);
    }
}

// Ends what ranks have left behind, and takes the last output.
static void finish_here(struct run_job *job)
{
    run_kill(job);
    siginfo_t ignored;
    for (int i = 0; i < job->count; i++)
        if (job->ranks[i].pid)
            waitid(P_PID, (id_t)job->ranks[i].pid, &ignored, WEXITED | WNOWAIT);
    run_orphans_end(job);
    const uint64_t deadline = base_clock_ns() + drain_ns;
    while (streams_open(job) && base_clock_ns() < deadline) {
        run_turn(job, 10);
        run_signals_take(job);
    }
}

static void reap_ranks(struct run_job *job)
{
    siginfo_t ignored;
    // Last, for a number that has been reaped may become a stranger's.
    run_guardian_end(&job->guardian);
    for (int i = 0; i < job->count; i++) {
        if (job->ranks[i].pid)
            waitid(P_PID, (id_t)job->ranks[i].pid, &ignored, WEXITED);
        job->ranks[i].pid = 0;
    }
}

static void finish(struct run_job *job)
{
    if (coordinates(job))
        finish_far(job);
    else
        finish_here(job);
    for (int i = 0; i < job->count; i++)
        for (int s = 0; s < STREAMS; s++)
            if (job->ranks[i].streams[s].line)
                run_stream_close(&job->ranks[i].streams[s]);
    run_join_show(&job->output.join, UINT64_MAX);
    run_metrics_disconnect(&job->metrics);
    if (!coordinates(job))
        reap_ranks(job);
    run_watch_finish(job);
    check_logs(job);
    run_flush(job);
}

bool run_rest(struct run_job *job, uint64_t until)
{
    job->resting = true;
    for (;;) {
        run_signals_take(job);
        const uint64_t now = base_clock_ns();
        if (now >= job->stop.timeout_ns) {
            run_say(job, "the job has run for %d s (--timeout)", job->options->timeout_s);
            job->stop.timed_out = true;
        }
        if (job->stop.signals || job->stop.timed_out || job->output.unread || now >= until)
            break;
        const uint64_t next = until < job->stop.timeout_ns ? until : job->stop.timeout_ns;
        run_turn(job, (int)((next - now) / 1000000) + 1);
    }
    job->resting = false;
    return !job->stop.signals && !job->stop.timed_out && !job->output.unread;
}

void run_end(struct run_job *job)
{
    run_metrics_close(&job->metrics);
    run_watch_end(job);
    check_logs(job);
}

void run_supervise(struct run_job *job)
{
    while (job->running > 0) {
        run_turn(job, run_turn_timeout(job));
        collect_exits(job);
        run_signals_take(job);
        check_deadlines(job);
        run_join_show(&job->output.join, base_clock_ns());
        run_watch_update(job);
    }
    finish(job);
}
