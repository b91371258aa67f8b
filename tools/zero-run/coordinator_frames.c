// What agents report of their ranks, and what they are told to do with them.

#include "tools/zero-run/coordinator.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

// How long the end of a rank that others have noticed takes at most to be heard of from its host.
static const uint64_t held_ns = UINT64_C(1000000000);
// How long it takes to ask all hosts whether a rank has noticed an end.
static const uint64_t look_ns = UINT64_C(100000000);
// How long what ranks have recorded takes at most.
static const uint64_t blame_ns = UINT64_C(500000000);

static struct run_coordinator *coordinator_of(const struct run_job *job)
{
    return (struct run_coordinator *)job->span;
}

static bool is_mine(const struct run_far_host *far, int rank)
{
    return rank >= far->first && rank < far->first + far->count;
}

/* ------------------------------------------------------------------ ends */

static bool has_failed(const struct run_rank *rank)
{
    return rank && rank->ended && !rank->well;
}

// The rank whose end others have noticed first; NULL: none has said so.
static struct run_rank *find_cause(const struct run_job *job)
{
    return run_job_rank(job, control_first_lost(job->watch.segment));
}

void run_far_decide(struct run_coordinator *all)
{
    struct run_rank *cause = find_cause(&all->job), *rank = all->held;
    all->held = NULL;
    if (rank && !all->job.stop.stopping)
        run_rank_failed(&all->job, has_failed(cause) ? cause : rank);
}

// A rank that has said of its failure that another one's end is why waits for that to be heard of.
// One that has not may have been told by a rank of another host.
static void hold(struct run_coordinator *all, struct run_rank *rank)
{
    const struct run_rank *cause = find_cause(&all->job);
    all->held = rank;
    all->held_ns = base_clock_ns() + (cause ? held_ns : look_ns);
    if (!cause)
        all->span.ops->order(&all->job, RUN_ORDER_LOOK, 0);
}

static void weigh_end(struct run_coordinator *all, struct run_rank *rank)
{
    struct run_job *job = &all->job;
    struct run_rank *cause = find_cause(job);
    const bool by_signal = rank->end.si_code != CLD_EXITED;
    if (rank->well || job->stop.stopping)
        return;
    if (cause ? cause == rank : by_signal) {
        all->held = NULL;
        run_rank_failed(job, rank);
    } else if (!all->held && cause && has_failed(cause)) {
        run_rank_failed(job, cause);
    } else if (!all->held)
        hold(all, rank);
}

static void take_end(struct run_coordinator *all, const struct run_far_host *far,
                     const json_t *report)
{
    struct run_job *job = &all->job;
    const int number = run_span_number(report, "rank", -1);
    struct run_rank *rank = is_mine(far, number) ? run_job_rank(job, number) : NULL;
    if (!rank || rank->ended)
        return;
    const int code = run_span_number(report, "code", CLD_EXITED);
    const int how = run_span_number(report, "number", 1);
    const bool killed = code == CLD_KILLED || code == CLD_DUMPED;
    rank->end.si_code = killed ? code : CLD_EXITED;
    rank->end.si_status = how >= 0 && how < (killed ? NSIG : 256) ? how : 1;
    rank->end.si_pid = rank->pid;
    rank->oom = (enum run_oom_verdict)run_span_number(report, "oom", RUN_OOM_UNKNOWN);
    rank->well = json_is_true(json_object_get(report, "well"));
    run_rank_gone(job, rank);
    weigh_end(all, rank);
    if (job->running == 0)
        run_far_decide(all);
}

/* ------------------------------------------------------------------ who is to blame */

static void say_line(void *user, const char *line)
{
    run_say(user, "%s", line);
}

// Once all hosts have sent what their ranks have recorded, or too late.
static void blame_all(struct run_coordinator *all)
{
    struct run_job *job = &all->job;
    bool whole = true;
    for (int i = 0; i < all->count; i++)
        whole = whole && (!all->hosts[i].busy || all->hosts[i].blamed);
    if (!all->blames || (!whole && base_clock_ns() < all->blame_ns))
        return;
    all->blames = false;
    run_blame(job->watch.segment, all->blamed, base_clock_ns(), say_line, job);
}

/* ------------------------------------------------------------------ other reports */

// The first of those that could not.
static void take_status(struct run_coordinator *all, const struct run_far_host *far,
                        const json_t *report)
{
    const int status = run_span_number(report, "status", 0);
    if (!status || all->status)
        return;
    all->status = status >= RUN_USAGE && status <= RUN_ENVIRONMENT ? status : RUN_SYSTEM;
    all->why = (struct base_error){.result = ZERO_OK};
    zero_fail(&all->why, ZERO_E_IO, "host %s: %s%s", far->name, run_span_text(report, "text"),
              all->status == RUN_NO_PROGRAM ? "; each host needs it at the same path" : "");
}

// An agent that a platform has started was given numbers of its own.
static void compare(struct run_coordinator *all, const struct run_far_host *far, const char *what,
                    int theirs, int ours)
{
    if (theirs == 0 || theirs == ours || all->status)
        return;
    all->status = RUN_ENVIRONMENT;
    all->why = (struct base_error){.result = ZERO_OK};
    zero_fail(&all->why, ZERO_E_INVALID, "host %s has %s %d, and host 0 has %d: give all the same",
              far->name, what, theirs, ours);
}

static void take_ready(struct run_coordinator *all, struct run_far_host *far, const json_t *report)
{
    take_status(all, far, report);
    compare(all, far, "-n", run_span_number(report, "ranks", 0), far->slots);
    compare(all, far, "--nodes", run_span_number(report, "hosts", 0), all->count);
    snprintf(far->client, sizeof far->client, "%s", run_span_text(report, "client"));
    snprintf(far->server, sizeof far->server, "%s", run_span_text(report, "server"));
}

static void take_started(struct run_coordinator *all, struct run_far_host *far,
                         const json_t *report)
{
    struct run_job *job = &all->job;
    const json_t *pids = json_object_get(report, "pids");
    take_status(all, far, report);
    for (int i = 0; i < far->count; i++) {
        struct run_rank *rank = &job->ranks[far->first + i];
        if (rank->pid || rank->ended)
            continue;
        rank->pid = (pid_t)json_integer_value(json_array_get(pids, (size_t)i));
        if (rank->pid)
            continue;
        rank->ended = true;
        job->running--;
    }
}

static void take_report(struct run_coordinator *all, struct run_far_host *far, const json_t *report)
{
    struct run_job *job = &all->job;
    if (run_span_is(report, "ended"))
        take_end(all, far, report);
    else if (run_span_is(report, "say"))
        run_say(job, "host %s: %s", far->name, run_span_text(report, "text"));
    else if (run_span_is(report, "signal"))
        run_signals_take_far(job, run_span_number(report, "number", 0));
    else if (run_span_is(report, "done")) {
        far->busy = false;
        all->unlogged = all->unlogged || json_is_false(json_object_get(report, "logged"));
    } else if (run_span_is(report, "blamed"))
        far->blamed = true;
    else {
        if (run_span_is(report, "started"))
            take_started(all, far, report);
        else if (run_span_is(report, "ready"))
            take_ready(all, far, report);
        else if (run_span_is(report, "port"))
            far->port = run_span_number(report, "port", 0);
        far->answered = true;
    }
}

static void take_area(struct run_coordinator *all, const struct run_frame *frame, uint32_t kind,
                      struct run_rank *rank)
{
    struct control_rank *to = &all->job.watch.segment->ranks[rank->number];
    const bool knew = find_cause(&all->job) != NULL;
    static struct run_records records;
    struct run_area area;
    if (kind == RUN_TAG_AREA && frame->count == sizeof area) {
        memcpy(&area, frame->bytes, sizeof area);
        run_area_write(&area, base_clock_ns(), to);
        rank->memory = area.memory;
        rank->resident = area.resident;
        const bool knows = find_cause(&all->job) != NULL;
        if (all->held && !knew && knows)
            all->held_ns = base_clock_ns() + held_ns;
        all->job.output.join.errors = knows;
    } else if (kind == RUN_TAG_RECORDS && frame->count <= sizeof records) {
        memcpy(&records, frame->bytes, frame->count);
        run_records_write(&records, frame->count, base_clock_ns(), to);
    }
}

static void take_bytes(struct run_coordinator *all, const struct run_far_host *far,
                       const struct run_frame *frame)
{
    struct run_job *job = &all->job;
    const uint32_t kind = frame->tag & (RUN_TAG_AREA | RUN_TAG_RECORDS);
    const int number = (int)(kind ? frame->tag & ~kind : frame->tag / 2);
    struct run_rank *rank = is_mine(far, number) ? run_job_rank(job, number) : NULL;
    if (frame->type == RUN_FRAME_METRICS && is_mine(far, 0))
        run_metrics_feed(&job->metrics, frame->bytes, frame->count);
    if (frame->type != RUN_FRAME_OUTPUT || !rank)
        return;
    if (kind)
        take_area(all, frame, kind, rank);
    else
        run_stream_feed(&rank->streams[frame->tag % 2], frame->bytes, frame->count);
}

/* ------------------------------------------------------------------ the loop's */

static int poll_hosts(const struct run_job *job, struct pollfd *polls)
{
    const struct run_coordinator *all = coordinator_of(job);
    int count = all->listener.fd >= 0 ? run_listener_poll(&all->listener, polls) : 0;
    for (int i = 0; i < all->count; i++) {
        if (!all->hosts[i].shelled)
            continue;
        run_link_poll(&all->hosts[i].shell.link, polls + count);
        run_shell_poll(&all->hosts[i].shell, polls + count + RUN_LINK_POLLS);
        count += RUN_LINK_POLLS + RUN_SHELL_POLLS;
    }
    // poll() refuses more entries than there may be descriptors.
    int used = 0;
    for (int i = 0; i < count; i++)
        if (polls[i].fd >= 0)
            polls[used++] = polls[i];
    return used;
}

static uint64_t due(const struct run_job *job)
{
    const struct run_coordinator *all = coordinator_of(job);
    uint64_t next = all->held ? all->held_ns : UINT64_MAX;
    const uint64_t callers = all->listener.fd >= 0 ? run_listener_due(&all->listener) : UINT64_MAX;
    next = callers < next ? callers : next;
    if (all->blames && all->blame_ns < next)
        next = all->blame_ns;
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].shelled) {
            const uint64_t link = run_link_due(&all->hosts[i].shell.link);
            next = link < next ? link : next;
        }
    return next;
}

static void turn(struct run_job *job)
{
    struct run_coordinator *all = coordinator_of(job);
    const bool full = run_sink_full(&job->output.out) || run_sink_full(&job->output.err);
    for (int i = 0; i < all->count; i++) {
        struct run_far_host *far = &all->hosts[i];
        struct run_frame frame;
        if (!far->shelled)
            continue;
        run_link_hold(&far->shell.link, full);
        run_link_turn(&far->shell.link);
        while (run_link_next(&far->shell.link, &frame)) {
            if (frame.type == RUN_FRAME_CONTROL)
                take_report(all, far, frame.object);
            else
                take_bytes(all, far, &frame);
            json_decref(frame.object);
        }
        run_far_look(all, far);
    }
    run_far_listen(all); // last: an agent that calls again may just have ended
    if (all->held && base_clock_ns() >= all->held_ns)
        run_far_decide(all);
    blame_all(all);
}

static void order(struct run_job *job, enum run_order what, int number)
{
    struct run_coordinator *all = coordinator_of(job);
    if (what == RUN_ORDER_BLAME) {
        all->blames = true;
        all->blamed = number;
        all->blame_ns = base_clock_ns() + blame_ns;
        for (int i = 0; i < all->count; i++)
            all->hosts[i].blamed = false;
    }
    // A coordinator that is suspended says nothing, which agents without ranks have to know, too.
    const bool pauses = what == RUN_ORDER_SIGNAL && (number == SIGSTOP || number == SIGCONT);
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].up && (all->hosts[i].busy || pauses))
            run_link_send(
                &all->hosts[i].shell.link,
                json_pack("{s:s,s:i,s:i}", "is", "order", "order", (int)what, "number", number));
}

static bool busy(const struct run_job *job)
{
    const struct run_coordinator *all = coordinator_of(job);
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].busy)
            return true;
    return false;
}

const struct run_span_ops run_coordinator_ops = {
    .poll = poll_hosts, .due = due, .turn = turn, .order = order, .busy = busy};
