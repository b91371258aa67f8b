#include "tools/zero-run/coordinator.h"

#include "base/arena.h"
#include "base/clock.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

// What agents are told travels as JSON, which is UTF-8.
static zero_result check_text(const char *what, const char *text, struct base_error *error)
{
    json_t *value = json_string(text ? text : "");
    json_decref(value);
    return value ? ZERO_OK
                 : zero_fail(error, ZERO_E_INVALID,
                             "%s is no UTF-8, which several hosts need: '%.100s'", what, text);
}

static zero_result check_texts(const struct run_options *options, struct base_error *error)
{
    char directory[PATH_MAX] = "";
    zero_result result = ZERO_OK;
    for (char **word = options->program; *word && !result; word++)
        result = check_text("the program, or an argument of it,", *word, error);
    for (int i = 0; i < options->far.exported && !result; i++)
        result = check_text("-x", options->far.exports[i], error);
    if (!result)
        result = check_text("-o", options->settings, error);
    if (!result)
        result = check_text("--log-dir", options->log_dir, error);
    if (!result && getcwd(directory, sizeof directory))
        result = check_text("the working directory", directory, error);
    return result;
}

static enum run_status prepare_job(struct run_coordinator *all, struct base_error *error)
{
    struct run_job *job = &all->job;
    const struct run_options *options = all->options;
    if (run_job_init(job, options, options->ranks, error) || run_far_open(all, error) ||
        (all->platform && run_far_open_port(all, error)))
        return error->result == ZERO_E_INVALID ? RUN_USAGE : RUN_SYSTEM;
    all->span = (struct run_span){.ops = &run_coordinator_ops,
                                  .coordinates = true,
                                  .polls = all->count * (RUN_LINK_POLLS + RUN_SHELL_POLLS) + 1 +
                                           RUN_CALLERS_MAX};
    job->span = &all->span;
    job->output.piped = true;
    run_job_raise_limit(job);
    if (run_signals_begin(job, error) || run_supervise_begin(job, error) ||
        run_watch_begin(job, error))
        return RUN_SYSTEM;
    if (run_files_check(options, error) || check_texts(options, error))
        return RUN_USAGE;
    if (options->metrics && run_metrics_open(&job->metrics, options->metrics, error))
        return RUN_CANNOT_CREATE;
    run_metrics_disconnect(&job->metrics); // rank 0 is elsewhere
    return RUN_OK;
}

/* ------------------------------------------------------------------ a start */

static struct run_far_host *first_used(const struct run_coordinator *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].up && all->hosts[i].count > 0)
            return &all->hosts[i];
    return NULL;
}

// Whether each machine means itself by a name.
static bool names_loopback(const char *name)
{
    return !strcmp(name, "localhost") || !strncmp(name, "127.", 4) || !strcmp(name, "::1");
}

// Where the ranks meet: at the first host's address, as the others know it.
static void choose_address(const struct run_coordinator *all, const struct run_far_host *head,
                           char *address, size_t size)
{
    bool all_here = true;
    for (int i = 0; i < all->count; i++)
        all_here = all_here && all->hosts[i].shell.local;
    const char *name = run_host_address(head->host);
    if (all->platform) {
        const char *given = all->platform->master.address;
        snprintf(address, size, "%s", given);
        if (!*given || names_loopback(given))
            gethostname(address, size - 1);
        return;
    }
    if (all_here)
        name = "127.0.0.1";
    snprintf(address, size, "%s", name);
    // A name by which this machine is meant here is another one elsewhere.
    if (!all_here && names_loopback(name))
        gethostname(address, size - 1);
}

// Its address, for hosts that do not know that name: as ssh has reached it, or where it is this
// machine, as other hosts have been reached from it. "": none.
static const char *direct_address(const struct run_coordinator *all,
                                  const struct run_far_host *head)
{
    if (all->platform)
        return "";
    if (!head->shell.local)
        return head->server;
    for (int i = 0; i < all->count; i++)
        if (all->hosts[i].up && !all->hosts[i].shell.local && *all->hosts[i].client)
            return all->hosts[i].client;
    return "";
}

static bool ask_port(struct run_coordinator *all, struct run_far_host *head)
{
    head->port = 0;
    head->answered = false;
    run_link_send(&head->shell.link, json_pack("{s:s}", "is", "port"));
    return run_far_await(all) && head->port > 0;
}

static void send_starts(struct run_coordinator *all, const char *address, const char *direct,
                        int port)
{
    const struct run_job *job = &all->job;
    int host = 0, before = 0; // what has started zero-run may have started it again
    if (boot_restarts(&before, environ, NULL))
        before = 0;
    for (int i = 0; i < all->count; i++) {
        struct run_far_host *far = &all->hosts[i];
        if (!far->up || far->count == 0)
            continue;
        far->answered = false;
        far->busy = true;
        run_link_send(&far->shell.link,
                      json_pack("{s:s,s:i,s:i,s:i,s:i,s:s,s:i,s:i,s:s,s:s,s:i,s:i,s:i}", "is",
                                "start", "first", far->first, "count", far->count, "world",
                                job->count, "first_world", job->at.first_world, "token", job->token,
                                "restarts", job->restarts.count, "before", before, "address",
                                address, "direct", direct, "port", port, "host", host++, "hosts",
                                all->used));
    }
}

static zero_result open_streams(struct run_job *job, struct base_error *error)
{
    for (int i = 0; i < job->count; i++)
        if (!run_spawn_streams(job, &job->ranks[i]))
            return zero_fail(error, ZERO_E_NOMEM, "no memory for the output of %d ranks",
                             job->count);
    return ZERO_OK;
}

static enum run_status pass_reason(const struct run_coordinator *all, struct base_error *error)
{
    *error = all->why;
    return (enum run_status)all->status;
}

// A host may have been lost since its room was counted.
static zero_result check_hosts(const struct run_coordinator *all, struct base_error *error)
{
    int dealt = 0;
    for (int i = 0; i < all->count; i++) {
        const struct run_far_host *far = &all->hosts[i];
        dealt += far->count;
        if (far->count > 0 && !far->up)
            return zero_fail(error, ZERO_E_PEER,
                             "host %s was lost while the ranks were about to start", far->name);
    }
    return dealt == all->job.count
               ? ZERO_OK
               : zero_fail(error, ZERO_E_PEER,
                           "the hosts that are left have room for %d of %d ranks that were about "
                           "to start",
                           dealt, all->job.count);
}

// Starts the ranks on all hosts once, and sees to them until none is left.
static enum run_status start_ranks(struct run_coordinator *all, struct base_error *error)
{
    struct run_job *job = &all->job;
    char address[RUN_HOST_BYTES] = "";
    run_far_deal(all, job->count);
    struct run_far_host *head = first_used(all);
    all->status = 0;
    const bool has_port = head && ask_port(all, head);
    if (job->stop.signals)
        return RUN_STOPPED;
    if (check_hosts(all, error))
        return RUN_NOT_ALONE;
    if (!has_port) {
        zero_fail(error, ZERO_E_IO, "host %s has no port for the ranks to meet at",
                  head ? head->name : "?");
        return RUN_SYSTEM;
    }
    choose_address(all, head, address, sizeof address);
    if (run_choose_token(job, error) || open_streams(job, error))
        return RUN_SYSTEM;
    job->output.join.ranks = job->count;
    job->running = job->count;
    all->started = true;
    send_starts(all, address, direct_address(all, head), head->port);
    run_far_await(all);
    if (all->status) {
        job->stop.stopping = true;
        run_kill(job);
    }
    run_supervise(job);
    run_far_decide(all);
    return all->status ? pass_reason(all, error) : RUN_OK;
}

static enum run_status start_again(struct run_coordinator *all, struct base_error *error)
{
    struct run_job *job = &all->job;
    struct run_restart *restart = &job->restarts.list[job->restarts.count - 1];
    restart->started_ns = base_clock_ns();
    run_restart_clear(job, restart->ranks);
    return run_watch_renew(job, error) ? RUN_SYSTEM : start_ranks(all, error);
}

// Whether there will be another start, with agents for all hosts that can have one.
static bool is_again(struct run_coordinator *all)
{
    struct run_job *job = &all->job;
    struct base_error error = {.result = ZERO_OK};
    const bool may = job->restarts.list && job->failed_rank >= 0 && job->stop.signals == 0 &&
                     job->restarts.count < job->options->restarts;
    if (may)
        run_far_start(all, &error);
    job->at.room = run_far_room(all);
    job->at.left = run_far_left(all);
    return run_restart_due(job);
}

// Who feeds this process expects that rank 0 reads it, as on one host.
static void check_input(struct run_job *job)
{
    struct stat status;
    int waiting = 0;
    if (fstat(STDIN_FILENO, &status))
        return;
    if ((S_ISREG(status.st_mode) && lseek(STDIN_FILENO, 0, SEEK_CUR) < status.st_size) ||
        (S_ISFIFO(status.st_mode) && !ioctl(STDIN_FILENO, FIONREAD, &waiting) && waiting > 0))
        run_say(job, "standard input is not read: ranks of several hosts have /dev/null; give the "
                     "program a file that its host has");
}

static int run_starts(struct run_coordinator *all, struct base_error *error)
{
    struct run_job *job = &all->job;
    check_input(job);
    int status = (int)start_ranks(all, error);
    while (!status && is_again(all))
        status = (int)start_again(all, error);
    run_report_stop(job);
    run_restart_report(job);
    run_end(job);
    status = status ? status : run_job_status(job);
    return status == RUN_OK && all->unlogged ? RUN_OUTPUT : status;
}

int run_coordinate(const struct run_options *options, const struct boot_hosts *platform,
                   struct base_error *error)
{
    static struct run_coordinator all;
    all = (struct run_coordinator){
        .options = options, .platform = platform, .listener = {.fd = -1, .port = -1}};
    struct base_error ignored = {.result = ZERO_OK};
    int status = (int)prepare_job(&all, error);
    if (status)
        goto out;
    const int missing = run_far_start(&all, &ignored);
    if (all.status)
        status = (int)pass_reason(&all, error);
    else if (missing > 0)
        status = all.job.stop.signals ? RUN_STOPPED : RUN_NOT_ALONE;
    else
        status = run_starts(&all, error);
    run_far_close(&all, status);
    run_flush(&all.job);
out:
    run_listener_close(&all.listener);
    run_job_free(&all.job);
    base_free(all.hosts);
    return status;
}
