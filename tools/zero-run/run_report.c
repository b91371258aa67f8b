#include "tools/zero-run/run.h"

#include <stdio.h>
#include <string.h>

// Who may have sent a SIGKILL that zero-run has not sent.
static const char *describe_kill(enum run_oom_verdict verdict)
{
    switch (verdict) {
    case RUN_OOM_GROUP:
        return " (out of memory, probably: the kernel has killed a process of this control group "
               "for it)";
    case RUN_OOM_HOST:
        return " (out of memory, perhaps: the kernel has killed a process of this host for it)";
    case RUN_OOM_NOT:
        return " (not by the kernel for lack of memory)";
    case RUN_OOM_UNKNOWN:
        break;
    }
    return " (out of memory? the kernel's log tells)";
}

// Whether the reader of the report has these lines before him already: they went to the same place,
// and not many lines ago.
static bool in_sight(const struct run_job *job, const struct run_tail *tail)
{
    const struct run_tail_line *line;
    for (int i = 0; (line = run_tail_line(tail, i)); i++) {
        const struct run_sink *sink = line->sink ? &job->output.err : &job->output.out;
        if (sink->failed || sink != &job->output.err || sink->shown - line->place >= RUN_SIGHT)
            return false;
    }
    return true;
}

static void say_last_lines(struct run_job *job, const struct run_rank *rank)
{
    const struct run_tail_line *line;
    if (!rank->hidden && in_sight(job, &rank->tail))
        return;
    run_say(job, "the last lines of rank %d:", rank->number);
    for (int i = 0; (line = run_tail_line(&rank->tail, i)); i++) {
        run_sink_add(&job->output.err, "zero-run: | ", 12);
        run_sink_add(&job->output.err, line->text, (size_t)line->used);
        run_sink_add(&job->output.err, line->cut ? "...\n" : "\n", line->cut ? 4 : 1);
    }
}

// A rank that leaves with 0 in the middle of the job has not failed, and is why others do.
static void say_who_left(struct run_job *job)
{
    const int lost = job->watch.segment ? control_first_lost(job->watch.segment) : -1;
    const struct run_rank *rank = run_job_rank(job, lost);
    if (rank && rank->ended && run_end_status(&rank->end) == 0)
        run_say(job, "rank %d had ended before with exit code 0, in the middle of the job", lost);
}

// A rank that ends the job itself has said why.
static void say_reason(struct run_job *job)
{
    char reason[CONTROL_REASON_BYTES];
    const int lost = job->watch.segment ? control_first_lost(job->watch.segment) : -1;
    if (lost >= 0 && control_reason(job->watch.segment, lost, reason))
        run_say(job, "rank %d has ended the job: \"%s\"", lost, reason);
}

// The signal of zero-run's by which a rank has ended, or because of which it may have; 0: none.
static int own_signal(const struct run_job *job, const siginfo_t *end)
{
    if (end->si_code != CLD_EXITED && sigismember(&job->stop.sent, end->si_status) == 1)
        return end->si_status;
    return job->stop.ended_by;
}

static void describe_rank(const struct run_rank *rank, char *text, size_t size)
{
    if (rank->host)
        snprintf(text, size, "rank %d on host %s (process %d)", rank->number, rank->host,
                 (int)rank->pid);
    else
        snprintf(text, size, "rank %d (process %d)", rank->number, (int)rank->pid);
}

void run_report_first(struct run_job *job, const struct run_rank *rank)
{
    char how[128], others[64] = "", who[320];
    describe_rank(rank, who, sizeof who);
    run_join_show_warnings(&job->output.join);
    run_describe_end(&rank->end, how, sizeof how);
    if (job->running > 0)
        snprintf(others, sizeof others, "; stopping the other%s", job->running > 1 ? "s" : "");
    const int own = own_signal(job, &rank->end);
    if (own) {
        run_say(job, "%s ended: %s, after zero-run had sent SIG%s%s", who, how, sigabbrev_np(own),
                others);
        return;
    }
    const bool killed = rank->end.si_code != CLD_EXITED && rank->end.si_status == SIGKILL;
    const char *hint =
        killed ? describe_kill(rank->host ? rank->oom : run_oom_check(&job->oom)) : "";
    run_say(job, "%s failed%s: %s%s%s", who, job->at.world > 1 ? " first" : "", how, hint, others);
    say_who_left(job);
    say_reason(job);
    run_watch_blame(job, rank->number);
    say_last_lines(job, rank);
}

int run_end_status(const siginfo_t *end)
{
    return end->si_code == CLD_EXITED ? end->si_status : 128 + end->si_status;
}

// Whether a shell has been ended by a request to stop after its program had stopped and ended.
static bool was_shell(const struct run_job *job, const struct run_rank *rank)
{
    const struct control_rank *area = &job->watch.segment->ranks[rank->number];
    return rank->end.si_code != CLD_EXITED && run_signals_asked(job, rank->end.si_status) &&
           !rank->heir && control_pid(area) != (uint32_t)rank->pid;
}

bool run_ended_well(const struct run_job *job, const struct run_rank *rank)
{
    const int status = run_end_status(&rank->end);
    const struct control_segment *segment = job->watch.segment;
    if (status == 0)
        return true;
    if (rank->host)
        return rank->well; // its agent has decided
    return segment && control_rank_heard(&segment->ranks[rank->number]) &&
           ((rank->end.si_code == CLD_EXITED && status == RUN_STOPPED) || was_shell(job, rank));
}

// One more than the step after which the ranks stopped because they were told to; 0: they were not,
// or one has failed or been killed.
static uint64_t stopped_after(const struct run_job *job)
{
    for (int i = 0; i < job->count; i++)
        if (!job->ranks[i].ended || !job->ranks[i].well)
            return 0;
    return job->watch.segment ? control_heard(job->watch.segment) : 0;
}

void run_report_stop(struct run_job *job)
{
    const uint64_t after = stopped_after(job);
    if (after == 1)
        run_say(job, "stopped on request before the first step");
    else if (after)
        run_say(job, "stopped on request after step %llu", (unsigned long long)after - 1);
}

int run_job_status(const struct run_job *job)
{
    if (job->stop.timed_out)
        return RUN_STOPPED;
    if (job->failed_rank >= 0)
        return run_end_status(&job->ranks[job->failed_rank].end);
    if (stopped_after(job))
        return RUN_STOPPED;
    bool lost = job->output.out.failed || job->output.err.failed || job->metrics.failed ||
                run_watch_trace_lost(job);
    for (int i = 0; i < job->slots; i++)
        lost = lost || job->ranks[i].log_errno;
    return lost ? RUN_OUTPUT : RUN_OK;
}
