// Starting a job again that has failed: whether that can help, with how many ranks, and when.

#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECOND_NS UINT64_C(1000000000)

enum { LONGEST_WAIT_S = 60 };

zero_result run_restart_begin(struct run_job *job, struct base_error *error)
{
    const int most = job->options->restarts;
    if (most <= 0)
        return ZERO_OK;
    job->restarts.list = base_calloc((size_t)most, sizeof *job->restarts.list);
    if (!job->restarts.list)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %d restarts", most);
    return ZERO_OK;
}

void run_restart_end(struct run_job *job)
{
    base_free(job->restarts.list);
}

/* ------------------------------------------------------------------ what the ranks have done */

/** The newest step that any rank of this start has told, 0: none. */
static uint64_t last_step(const struct run_job *job)
{
    uint64_t last = 0;
    for (int rank = 0; rank < job->count; rank++) {
        struct control_status status;
        if (control_status_read(&job->watch.segment->ranks[rank], &status) && status.step > last)
            last = status.step;
    }
    return last;
}

/** Notes of the last restart what became of it, now that its ranks have ended. */
static void complete_last(struct run_job *job)
{
    if (job->restarts.count == 0)
        return;
    struct run_restart *last = &job->restarts.list[job->restarts.count - 1];
    uint64_t first_ns = UINT64_MAX;
    for (int rank = 0; rank < job->count; rank++) {
        struct control_status status;
        if (!control_status_read(&job->watch.segment->ranks[rank], &status) ||
            status.first_ns >= first_ns)
            continue;
        first_ns = status.first_ns;
        last->first_step = status.first_step;
    }
    // A program without steps goes on when it starts; one that has come to none has lost all of it.
    const uint64_t end_ns = first_ns < UINT64_MAX        ? first_ns
                            : job->restarts.furthest > 0 ? base_clock_ns()
                                                         : last->started_ns;
    last->lost_s = end_ns > last->failed_ns ? (double)(end_ns - last->failed_ns) * 1e-9 : 0;
}

/* ------------------------------------------------------------------ deciding */

/** Exit codes that say: another start would end in the same way. */
static bool is_final(const siginfo_t *end)
{
    static const int codes[] = {2, 64, 78, 126, 127};
    bool final = false;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        final = final || (end->si_code == CLD_EXITED && end->si_status == codes[i]);
    return final;
}

/** Says why the job is not started again; false: nothing stands against it. */
static bool rule_out(struct run_job *job)
{
    const siginfo_t *end = &job->ranks[job->failed_rank].end;
    if (job->stop.timed_out || job->stop.signals || control_heard(job->watch.segment))
        run_say(job, "not started again: the job was asked to stop");
    else if (job->output.unread)
        run_say(job, "not started again: the reader of its output is gone");
    else if (is_final(end))
        run_say(job, "not started again: exit code %d says that it would end in the same way",
                end->si_status);
    else if (job->at.left < job->options->far.least_hosts)
        run_say(job, "not started again: %d host%s left, and --nodes wants %d at least",
                job->at.left, job->at.left == 1 ? " is" : "s are", job->options->far.least_hosts);
    else if (job->at.room < job->options->least)
        run_say(job,
                "not started again: the hosts that are left have room for %d rank%s, and the job "
                "wants %d (MIN:MAX of -n, or of a platform's --nodes, lets it go on with fewer)",
                job->at.room, job->at.room == 1 ? "" : "s", job->options->least);
    else if (job->restarts.count == job->options->restarts)
        run_say(job, "not started again: %s",
                job->restarts.count == 1 ? "that was the one restart it had"
                                         : "all its restarts are used up");
    else
        return false;
    return true;
}

int run_restart_wait_s(int backoff_s, int idle)
{
    int64_t seconds = idle < 2 ? 0 : backoff_s;
    for (int i = 2; i < idle && seconds < LONGEST_WAIT_S; i++)
        seconds *= 2;
    return seconds < LONGEST_WAIT_S ? (int)seconds : LONGEST_WAIT_S;
}

static void write_metrics(struct run_job *job, const struct run_restart *restart)
{
    char line[256], how[128];
    run_describe_end(&restart->end, how, sizeof how);
    snprintf(line, sizeof line,
             "{\"restart\":%d,\"rank\":%d,\"cause\":\"%s\",\"after_step\":%" PRIu64
             ",\"ranks\":%d}\n",
             job->restarts.count, restart->rank, how, restart->step, restart->ranks);
    run_metrics_add(&job->metrics, line);
}

/** Ranks below which a failure alone does not go. With --nodes MIN:MAX, MIN of -n on each host that
 * is left. */
static int least_ranks(const struct run_job *job)
{
    const int least = job->options->least, hosts = job->options->far.least_hosts;
    return hosts ? least / hosts * job->at.left : least;
}

/** Ranks of the next start: one fewer if that is allowed, and those of a lost host fewer. */
static int next_ranks(const struct run_job *job)
{
    const int fewer = job->count > least_ranks(job) ? job->count - 1 : job->count;
    return job->at.room < job->count ? job->at.room : fewer;
}

/** Enters the failure in the list. */
static const struct run_restart *note(struct run_job *job)
{
    struct run_restarts *restarts = &job->restarts;
    struct run_restart *restart = &restarts->list[restarts->count++];
    *restart = (struct run_restart){
        .rank = job->failed_rank,
        .host = job->ranks[job->failed_rank].host,
        .end = job->ranks[job->failed_rank].end,
        .step = last_step(job),
        .failed_ns = job->failed_ns,
        .ranks = next_ranks(job),
    };
    restarts->idle = restart->step > restarts->furthest ? 0 : restarts->idle + 1;
    if (restart->step > restarts->furthest)
        restarts->furthest = restart->step;
    return restart;
}

bool run_restart_due(struct run_job *job)
{
    if (!job->restarts.list)
        return false;
    complete_last(job);
    if (job->failed_rank < 0 || rule_out(job))
        return false;
    const struct run_restart *restart = note(job);
    const int seconds = run_restart_wait_s(job->options->backoff_s, job->restarts.idle);
    char when[128] = "";
    if (seconds)
        snprintf(when, sizeof when, ", in %d s, as it does not get further", seconds);
    run_say(job, "restart %d of %d, with %d rank%s%s", job->restarts.count, job->options->restarts,
            restart->ranks, restart->ranks > 1 ? "s" : "", when);
    const bool due = run_rest(job, base_clock_ns() + (uint64_t)seconds * SECOND_NS);
    if (due)
        write_metrics(job, restart);
    else
        job->restarts.count--;
    return due;
}

/* ------------------------------------------------------------------ starting again */

static void clear(struct run_rank *rank)
{
    base_close(&rank->pidfd, "a process", NULL);
    for (int i = 0; i < 2; i++) {
        base_free(rank->streams[i].line);
        rank->streams[i] = (struct run_stream){.fd = -1};
    }
    rank->tail = (struct run_tail){.count = 0};
    rank->end = (siginfo_t){.si_code = 0};
    rank->oom = RUN_OOM_UNKNOWN;
    rank->memory = 0;
    rank->ended = false;
    rank->stopped = 0;
    rank->heir = 0;
}

void run_restart_clear(struct run_job *job, int count)
{
    for (int i = 0; i < job->count; i++)
        clear(&job->ranks[i]);
    job->count = job->at.world = count;
    job->stop.stopping = job->stop.suspended = false;
    job->stop.ended_by = 0;
    sigemptyset(&job->stop.sent);
    job->failed_rank = -1;
    job->output.join.errors = false;
    job->stop.kill_ns = job->stop.ask_ns = UINT64_MAX;
}

zero_result run_restart_prepare(struct run_job *job, struct base_error *error)
{
    struct run_restart *restart = &job->restarts.list[job->restarts.count - 1];
    const int count = restart->ranks;
    const bool fewer = count < job->count;
    restart->started_ns = base_clock_ns();
    run_restart_clear(job, count);
    // A rank that is left of the start before knows another token, and meets no rank of this one.
    zero_result result = run_choose_token(job, error);
    if (!result)
        result = run_guardian_start(&job->guardian, job->token, -1, error);
    if (!result)
        result = run_watch_renew(job, error);
    if (!result && job->options->metrics)
        result = run_metrics_connect(&job->metrics, error);
    if (!result && fewer) {
        run_bind_close(job->binding);
        job->binding = NULL;
        result = run_bind_open(&job->binding, job->options->bind, count, error);
    }
    return result;
}

/* ------------------------------------------------------------------ the report */

static void say_restart(struct run_job *job, int number)
{
    const struct run_restart *restart = &job->restarts.list[number - 1];
    char bytes[512], how[128];
    struct base_text text = {bytes, sizeof bytes, 0};
    run_describe_end(&restart->end, how, sizeof how);
    base_text_add(&text, "| %d: rank %d", number, restart->rank);
    if (restart->host)
        base_text_add(&text, " on host %s", restart->host);
    base_text_add(&text, ": %s", restart->host && !restart->end.si_pid ? "the host was lost" : how);
    if (restart->step)
        base_text_add(&text, " after step %" PRIu64, restart->step);
    base_text_add(&text, "; then %d rank%s", restart->ranks, restart->ranks > 1 ? "s" : "");
    if (restart->first_step)
        base_text_add(&text, " from step %" PRIu64 " on", restart->first_step);
    run_say(job, "%s, %.1f s lost", bytes, restart->lost_s);
}

void run_restart_report(struct run_job *job)
{
    const int count = job->restarts.count;
    double lost_s = 0;
    if (count == 0)
        return;
    for (int i = 0; i < count; i++)
        lost_s += job->restarts.list[i].lost_s;
    char line[128];
    snprintf(line, sizeof line, "{\"restarts\":%d,\"lost_s\":%.3f}\n", count, lost_s);
    run_metrics_add(&job->metrics, line);
    run_say(job, "%d restart%s, %.1f s lost", count, count > 1 ? "s" : "", lost_s);
    for (int i = 0; i < count; i++)
        say_restart(job, i + 1);
}
