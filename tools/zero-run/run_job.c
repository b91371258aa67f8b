// A job of this host: what it needs, and the order of things.

#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static zero_result open_files(struct run_job *job, struct base_error *error)
{
    zero_result result = run_files_open_logs(job, error);
    if (!result && job->options->metrics)
        result = run_metrics_open(&job->metrics, job->options->metrics, error);
    return result ? result : run_watch_open_trace(job, error);
}

static void init_sinks(struct run_job *job)
{
    struct stat out, err;
    run_sink_init(&job->output.out, 0, job->options->color);
    run_sink_init(&job->output.err, 1, job->options->color);
    job->output.one_sink = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
                           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

// A rank needs four descriptors; the usual limit has room for 250 ranks.
void run_job_raise_limit(struct run_job *job)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    job->inherited.files = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

zero_result run_job_init(struct run_job *job, const struct run_options *options, int count,
                         struct base_error *error)
{
    *job = (struct run_job){
        .options = options,
        .slots = count,
        .count = count,
        .at = {.world = count, .first_world = count, .room = INT_MAX, .left = 1, .hosts = 1},
        .metrics = {.file = -1, .input = -1, .output = -1},
        .plan_fd = -1,
        .guardian.socket = -1,
        .watch = {.fd = -1, .status_ns = UINT64_MAX, .drain_ns = UINT64_MAX},
        .signals = -1,
        .exits = -1,
        .stop = {.timeout_ns = UINT64_MAX, .ask_ns = UINT64_MAX, .kill_ns = UINT64_MAX},
        .failed_rank = -1};
    init_sinks(job);
    // One rank whose lines need no number keeps zero-run's own output, a terminal perhaps.
    job->output.piped = count > 1 || options->log_dir || options->prefix == OPTION_ALWAYS ||
                        (options->pty == OPTION_ALWAYS && !options->plan);
    run_threads_count(&job->cores);
    job->ranks = base_calloc((size_t)count, sizeof *job->ranks);
    if (!job->ranks)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %d ranks", count);
    for (int i = 0; i < count; i++) {
        job->ranks[i].number = i;
        job->ranks[i].hidden = options->shown && !options->shown[i];
        job->ranks[i].pidfd = job->ranks[i].log_fd = -1;
        job->ranks[i].streams[0].fd = job->ranks[i].streams[1].fd = -1;
    }
    if (options->timeout_s)
        job->stop.timeout_ns =
            base_clock_ns() + (uint64_t)options->timeout_s * UINT64_C(1000000000);
    if (options->plan) {
        job->plan_fd = memfd_create("zero-plan", MFD_CLOEXEC);
        if (job->plan_fd < 0)
            return zero_fail_errno(error, ZERO_E_IO, errno, "memory for the plan");
    }
    return run_restart_begin(job, error);
}

void run_job_free(struct run_job *job)
{
    int *const own[] = {&job->plan_fd, &job->signals, &job->exits};
    run_metrics_close(&job->metrics);
    run_guardian_end(&job->guardian);
    run_bind_close(job->binding);
    run_watch_close(job);
    run_restart_end(job);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        base_close(own[i], "a descriptor", NULL);
    for (int i = 0; job->ranks && i < job->slots; i++) {
        struct run_rank *rank = &job->ranks[i];
        base_close(&rank->pidfd, "a process", NULL);
        base_close(&rank->log_fd, "a log", NULL);
        base_free(rank->streams[0].line);
        base_free(rank->streams[1].line);
    }
    base_free(job->ranks);
    base_free(job->polls);
    run_sink_free(&job->output.out);
    run_sink_free(&job->output.err);
}

// A log's last write may fail at its close.
void run_job_close_logs(struct run_job *job)
{
    for (int i = 0; i < job->slots; i++) {
        struct run_rank *rank = &job->ranks[i];
        struct base_error error = {.result = ZERO_OK};
        if (base_close(&rank->log_fd, "the log", &error)) {
            rank->log_errno = EIO;
            run_say(job, "rank %d: %s", rank->number, error.message);
        }
    }
}

// Everything that is there before the ranks are first started.
static enum run_status prepare_ranks(struct run_job *job, struct base_error *error)
{
    const struct run_options *options = job->options;
    if (run_signals_begin(job, error) || run_choose_token(job, error) ||
        run_guardian_start(&job->guardian, job->token, -1, error) ||
        run_supervise_begin(job, error) || run_watch_begin(job, error))
        return RUN_SYSTEM;
    if (run_files_make_directory(options, error))
        return RUN_CANNOT_CREATE;
    if (run_files_check(options, error))
        return RUN_USAGE;
    if (open_files(job, error))
        return RUN_CANNOT_CREATE;
    if (run_bind_open(&job->binding, options->bind, job->count, error))
        return RUN_SYSTEM;
    if (run_bind_check(job->binding, error))
        return RUN_ENVIRONMENT;
    run_job_raise_limit(job);
    run_orphans_adopt();
    run_oom_begin(&job->oom, "");
    return RUN_OK;
}

// Starts the ranks once, and sees to them until none is left.
static enum run_status start_once(struct run_job *job, struct base_error *error)
{
    if (job->output.err.watched && job->count > 1 && job->options->status != OPTION_NEVER)
        run_threads_say(job);
    const enum run_status status = run_spawn(job, error);
    if (status) {
        job->stop.stopping = true;
        run_kill(job);
    }
    run_supervise(job);
    return status;
}

int run_job(const struct run_options *options, struct base_error *error)
{
    struct run_job job;
    const int count = options->plan ? 1 : options->ranks;
    int status = RUN_SYSTEM;
    if (run_job_init(&job, options, count, error))
        goto out;
    status = (int)prepare_ranks(&job, error);
    if (status)
        goto out;
    status = (int)start_once(&job, error);
    while (!status && run_restart_due(&job))
        status = run_restart_prepare(&job, error) ? RUN_SYSTEM : (int)start_once(&job, error);
    run_report_stop(&job);
    run_restart_report(&job);
    run_end(&job);
    run_job_close_logs(&job);
    if (!status)
        status = options->plan ? run_plan_print(&job) : run_job_status(&job);
    run_flush(&job);
out:
    run_job_free(&job);
    return status;
}
