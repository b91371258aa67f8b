// The agents of a job's hosts: how they come up, and how they are lost.

#include "tools/zero-run/coordinator.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/reminder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

// How long a remote shell may take until its agent answers, and an agent to leave.
static const uint64_t coming_ns = 60 * SECOND_NS, calling_ns = 600 * SECOND_NS,
                      leaving_ns = 10 * SECOND_NS;
// How long an agent may take to do what it is told.
static const uint64_t answer_ns = 60 * SECOND_NS;
// When it is said first that hosts are waited for.
static const uint64_t said_ns = 5 * SECOND_NS;

void run_far_name(const struct run_coordinator *all, struct run_far_host *far, const char *name)
{
    const int host = (int)(far - all->hosts);
    char own[RUN_LINK_NAME] = "";
    if (!all->platform)
        snprintf(far->name, sizeof far->name, "%s", far->host->name);
    else if (host == 0 && gethostname(own, sizeof own - 1) == 0)
        snprintf(far->name, sizeof far->name, "0 (%s)", own);
    else if (*name)
        snprintf(far->name, sizeof far->name, "%d (%s)", host, name);
    else
        snprintf(far->name, sizeof far->name, "%d", host);
}

zero_result run_far_open(struct run_coordinator *all, struct base_error *error)
{
    const struct run_hosts *hosts = &all->options->far.hosts;
    all->hosts = base_calloc((size_t)hosts->count, sizeof *all->hosts);
    if (!all->hosts)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %d hosts", hosts->count);
    all->count = hosts->count;
    for (int i = 0; i < all->count; i++) {
        all->hosts[i].host = &hosts->list[i];
        all->hosts[i].slots = hosts->list[i].slots;
        run_far_name(all, &all->hosts[i], "");
    }
    return run_shell_prepare(&all->way, all->options->far.rsh, error);
}

/* ------------------------------------------------------------------ what an agent is told first */

// Variables of zero-run's that the ranks of other hosts get: what tells libraries how to work, and
// what -x names.
static bool travels(const char *entry)
{
    static const char *const families[] = {
        "ZERO_", "OMP_", "NCCL_", "UCX_", "LD_LIBRARY_PATH=", "TERM=", "LANG=", "PYTHON"};
    bool found = false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        found = found || !strncmp(entry, families[i], strlen(families[i]));
    return found;
}

static json_t *list_environment(const struct run_coordinator *all)
{
    const struct run_options *options = all->options;
    json_t *list = json_array();
    // Only ssh's channel may carry the secret. Hosts of a platform have it.
    for (char **entry = environ; entry && *entry; entry++)
        if (travels(*entry) && !(all->platform && !strncmp(*entry, "ZERO_SECRET=", 12)))
            json_array_append_new(list, json_string(*entry)); // one that is no UTF-8 stays here
    for (int i = 0; i < options->far.exported; i++)
        json_array_append_new(list, json_string(options->far.exports[i]));
    return list;
}

static json_t *list_program(char *const *program)
{
    json_t *list = json_array();
    for (; *program; program++)
        json_array_append_new(list, json_string(*program));
    return list;
}

static json_t *describe_begin(const struct run_coordinator *all, const struct run_far_host *far)
{
    const struct run_options *options = all->options;
    char directory[PATH_MAX] = "/", signals[CONTROL_LIST_BYTES];
    control_show_signals(&options->stop_signals, signals);
    if (!getcwd(directory, sizeof directory))
        strcpy(directory, "/");
    json_t *begin = json_pack(
        "{s:s,s:i,s:i,s:i,s:b,s:b,s:s,s:o,s:o,s:i,s:i,s:i,s:i,s:b,s:b,s:s}", "is", "begin",
        "layout", RUN_SPAN_LAYOUT, "slots", far->slots, "world", all->job.at.first_world, "first",
        (int)!all->started, "memory", (int)(all->job.watch.period_ns > 0), "directory", directory,
        "program", list_program(options->program), "environment", list_environment(all), "bind",
        (int)options->bind, "pty", (int)options->pty, "grace", options->grace_s, "silence",
        options->far.agent_timeout_s, "metrics", options->metrics != NULL, "watched",
        (int)all->job.output.out.watched, "stop_signals", signals);
    if (begin && options->settings)
        json_object_set_new(begin, "settings", json_string(options->settings));
    if (begin && options->log_dir)
        json_object_set_new(begin, "log_dir", json_string(options->log_dir));
    return begin;
}

/* ------------------------------------------------------------------ coming up */

void run_far_drop(struct run_far_host *far)
{
    if (far->shelled)
        run_shell_close(&far->shell);
    far->shelled = far->up = false;
}

static bool start_one(struct run_coordinator *all, struct run_far_host *far,
                      struct base_error *error)
{
    run_far_drop(far);
    struct base_error why = {.result = ZERO_OK};
    far->lost = far->answered = far->busy = false;
    far->shelled = run_shell_start(&far->shell, far->host, &all->way, &why) == ZERO_OK;
    const bool is_named = !strncmp(why.message, "host ", 5);
    if (!far->shelled)
        zero_fail(error, why.result, "%s%s%s%s", is_named ? "" : "host ", is_named ? "" : far->name,
                  is_named ? "" : ": ", why.message);
    return far->shelled;
}

static bool is_coming(const struct run_far_host *far)
{
    return far->shelled && !far->up && !far->lost && !run_shell_is_gone(&far->shell);
}

static void greet(struct run_coordinator *all, struct run_far_host *far)
{
    if (!is_coming(far) || far->shell.link.state != RUN_LINK_OPEN)
        return;
    run_link_expect(&far->shell.link, (uint64_t)all->options->far.agent_timeout_s * SECOND_NS);
    far->up = true;
    run_link_send(&far->shell.link, describe_begin(all, far));
}

// A host that is to call itself.
static bool is_awaited(const struct run_coordinator *all, int host)
{
    return all->platform && host > 0 && !all->hosts[host].shelled;
}

static int count_coming(const struct run_coordinator *all)
{
    int count = 0;
    for (int i = 0; i < all->count; i++)
        count += is_coming(&all->hosts[i]) || is_awaited(all, i);
    return count;
}

// Says of a host that it has no agent, or notes it as the reason.
static void leave_out(struct run_coordinator *all, struct run_far_host *far,
                      struct base_error *error)
{
    char why[1024] = "";
    if (far->lost && far->shelled) { // which has been said; its agent may have been killed for it
        run_far_drop(far);
        return;
    }
    if (is_awaited(all, (int)(far - all->hosts)))
        zero_fail(
            error, ZERO_E_TIMEOUT,
            "host %s has not called in time: zero-run has to run there as this host (NODE_RANK "
            "differs from host to host), and to reach port %d of this one",
            far->name, all->listener.port);
    else if (far->shelled && far->shell.called)
        zero_fail(error, ZERO_E_IO, "host %s: %s", far->name, far->shell.link.why.message);
    else if (far->shelled) {
        run_shell_turn(&far->shell);
        run_shell_why(&far->shell, why, sizeof why);
        zero_fail(error, ZERO_E_IO, "%s", why);
    }
    run_say(&all->job, "%s", error->message);
    run_far_drop(far);
}

// The agent of a platform's host calls by itself, and may have done so already.
static void await_call(struct run_far_host *far)
{
    if (far->lost || (far->shelled && run_shell_is_gone(&far->shell)))
        run_far_drop(far);
}

// How long hosts may take to come. Where those that are left can go on, as long as a host may be
// silent.
static uint64_t patience_ns(const struct run_coordinator *all)
{
    const bool again = all->job.failed_rank >= 0;
    if (again && run_far_room(all) >= all->options->least &&
        run_far_left(all) >= all->options->far.least_hosts)
        return (uint64_t)all->options->far.agent_timeout_s * SECOND_NS;
    return all->platform ? calling_ns : coming_ns;
}

static void say_coming(struct run_coordinator *all, uint64_t begun_ns, uint64_t deadline_ns)
{
    char bytes[512] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    const uint64_t now = base_clock_ns();
    int count = 0;
    for (int i = 0; i < all->count; i++)
        if (is_coming(&all->hosts[i]) || is_awaited(all, i))
            if (count++ < 8)
                base_text_add(&text, "%s%s", count > 1 ? ", " : "", all->hosts[i].name);
    run_say(&all->job, "has waited %.0f s for %d of %d hosts, and waits %.0f s more for: %s%s",
            (double)(now - begun_ns) * 1e-9, count, all->count,
            deadline_ns > now ? (double)(deadline_ns - now) * 1e-9 : 0.0, bytes,
            count > 8 ? ", ..." : "");
}

// Until all have an agent, or have had their time.
static void await_coming(struct run_coordinator *all)
{
    struct run_job *job = &all->job;
    const uint64_t begun = base_clock_ns();
    uint64_t deadline = begun + patience_ns(all);
    deadline = deadline < job->stop.timeout_ns ? deadline : job->stop.timeout_ns;
    struct base_reminder said = {said_ns, 0};
    job->resting = true;
    while (count_coming(all) > 0 && base_clock_ns() < deadline && job->stop.signals == 0 &&
           !all->status) {
        run_turn(job, 100);
        run_signals_take(job);
        for (int i = 0; i < all->count; i++)
            greet(all, &all->hosts[i]);
        if (count_coming(all) > 0 && deadline > base_clock_ns() + SECOND_NS &&
            base_reminder_due(&said, base_clock_ns() - begun))
            say_coming(all, begun, deadline);
    }
    job->resting = false;
}

int run_far_start(struct run_coordinator *all, struct base_error *error)
{
    struct run_job *job = &all->job;
    int failed = 0;
    for (int i = 0; i < all->count; i++)
        if (all->platform && i > 0)
            await_call(&all->hosts[i]);
        else if (!all->hosts[i].up)
            start_one(all, &all->hosts[i], error);
    await_coming(all);
    run_far_await(all);
    for (int i = 0; i < all->count; i++) {
        struct base_error why = {.result = ZERO_OK};
        if (all->hosts[i].up)
            continue;
        if (job->stop.signals == 0 && !all->status) // which has a reason of its own
            leave_out(all, &all->hosts[i],
                      all->hosts[i].shelled || is_awaited(all, i) ? &why : error);
        failed++;
    }
    return failed;
}

int run_far_room(const struct run_coordinator *all)
{
    int room = 0;
    for (int i = 0; i < all->count; i++)
        room += all->hosts[i].up ? all->hosts[i].slots : 0;
    return room;
}

int run_far_left(const struct run_coordinator *all)
{
    int left = 0;
    for (int i = 0; i < all->count; i++)
        left += all->hosts[i].up;
    return left;
}

void run_far_deal(struct run_coordinator *all, int ranks)
{
    int first = 0;
    all->used = 0;
    for (int i = 0; i < all->count; i++) {
        struct run_far_host *far = &all->hosts[i];
        const int left = ranks - first, room = far->up ? far->slots : 0;
        far->first = first;
        far->count = room < left ? room : left;
        all->used += far->count > 0;
        first += far->count;
        for (int rank = far->first; rank < first; rank++)
            all->job.ranks[rank].host = far->name;
    }
}

/* ------------------------------------------------------------------ being lost */

static void describe_loss(const struct run_coordinator *all, const struct run_far_host *far,
                          char *text, size_t size)
{
    char how[128];
    if (far->shell.link.end == RUN_LINK_SILENT)
        snprintf(text, size, "nothing has been heard of it for %d s (the machine, or the network)",
                 all->options->far.agent_timeout_s);
    else if (far->shell.ended && far->shell.local) {
        run_describe_end(&far->shell.end, how, sizeof how);
        snprintf(text, size, "its agent (process %d) has ended: %s", (int)far->shell.pid, how);
    } else
        snprintf(text, size, "its agent has ended: %.200s", far->shell.link.why.message);
}

// All its ranks are lost with it: their guardian kills them.
static void lose_ranks(struct run_coordinator *all, struct run_far_host *far)
{
    struct run_job *job = &all->job;
    int first = -1;
    for (int i = far->first; i < far->first + far->count; i++) {
        struct run_rank *rank = &job->ranks[i];
        if (rank->ended)
            continue;
        rank->end = (siginfo_t){.si_code = CLD_KILLED, .si_status = SIGKILL};
        rank->oom = RUN_OOM_UNKNOWN;
        run_rank_gone(job, rank);
        rank->well = false;
        first = first < 0 ? i : first;
    }
    if (first < 0 || job->stop.stopping)
        return;
    all->held = NULL;
    job->failed_rank = first;
    job->failed_ns = base_clock_ns();
    run_watch_blame(job, -1);
    run_stop(job);
}

void run_far_lose(struct run_coordinator *all, struct run_far_host *far, const char *why)
{
    const bool ranks = far->busy && far->count > 0;
    far->up = far->busy = false;
    far->lost = true;
    if (all->closing || (all->status && !ranks))
        return;
    if (ranks && far->count > 1)
        run_say(&all->job, "host %s with ranks %d to %d is lost: %s", far->name, far->first,
                far->first + far->count - 1, why);
    else if (ranks)
        run_say(&all->job, "host %s with rank %d is lost: %s", far->name, far->first, why);
    else
        run_say(&all->job, "host %s is lost: %s", far->name, why);
    if (ranks)
        lose_ranks(all, far);
    run_shell_signal(&far->shell, SIGKILL);
}

void run_far_look(struct run_coordinator *all, struct run_far_host *far)
{
    char line[1024], why[512];
    run_shell_turn(&far->shell);
    while (far->up && run_shell_line(&far->shell, line, sizeof line))
        run_say(&all->job, "host %s: %s", far->name, line);
    if (!run_shell_is_gone(&far->shell))
        return;
    const bool called = far->shell.called, awaited = all->job.resting;
    if (far->up) {
        describe_loss(all, far, why, sizeof why);
        run_far_lose(all, far, why);
    } else if (!called)
        return;
    // The platform may start an agent again that has ended before it was needed.
    if (called && (awaited || !far->lost))
        run_far_drop(far);
}

/* ------------------------------------------------------------------ answers */

static void lose_silent(struct run_coordinator *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].up && !all->hosts[i].answered)
            run_far_lose(all, &all->hosts[i], "its agent lives, and does not do what it is told");
}

bool run_far_await(struct run_coordinator *all)
{
    struct run_job *job = &all->job;
    const uint64_t deadline = base_clock_ns() + answer_ns;
    for (;;) {
        bool waits = false;
        for (int i = 0; i < all->count; i++)
            waits = waits || (all->hosts[i].up && !all->hosts[i].answered);
        if (!waits || job->stop.signals || base_clock_ns() >= job->stop.timeout_ns)
            return !waits;
        if (base_clock_ns() >= deadline) {
            lose_silent(all);
            return false;
        }
        const int due_ms = run_turn_timeout(job);
        run_turn(job, due_ms >= 0 && due_ms < 100 ? due_ms : 100);
        run_signals_take(job);
    }
}

/* ------------------------------------------------------------------ the end */

// Also one that has called and was not needed.
static bool is_to_leave(const struct run_far_host *far)
{
    return far->shelled && (far->up || far->shell.link.state == RUN_LINK_OPEN);
}

void run_far_close(struct run_coordinator *all, int status)
{
    struct run_job *job = &all->job;
    const uint64_t deadline = base_clock_ns() + leaving_ns;
    bool left = true;
    all->closing = true;
    for (int i = 0; i < all->count; i++)
        if (is_to_leave(&all->hosts[i])) {
            run_link_send(&all->hosts[i].shell.link,
                          json_pack("{s:s,s:i}", "is", "end", "status", status));
            run_link_farewell(&all->hosts[i].shell.link);
        }
    while (left && base_clock_ns() < deadline) {
        left = false;
        for (int i = 0; i < all->count; i++)
            left = left || is_to_leave(&all->hosts[i]);
        if (left)
            run_turn(job, 100);
    }
    for (int i = 0; i < all->count; i++)
        run_far_drop(&all->hosts[i]);
    base_free(all->hosts);
    all->hosts = NULL;
    all->count = 0;
}
