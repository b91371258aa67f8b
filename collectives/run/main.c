#include "collectives/run/run.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "collectives/boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum run_status complain(enum run_status status, struct base_error *error)
{
    fprintf(stderr, "zero-run: %s%s\n", error->message,
            status == RUN_USAGE ? " (see zero-run --help)" : "");
    return status;
}

static enum run_status print(const char *text)
{
    return fputs(text, stdout) >= 0 && fflush(stdout) == 0 ? RUN_OK : RUN_OUTPUT;
}

static enum run_status explain_place(void)
{
    static char text[16384];
    struct base_error error = {.result = ZERO_OK};
    boot_explain(environ, text, sizeof text);
    const size_t used = strlen(text);
    const bool alone = boot_check_alone(environ, &error) == ZERO_OK;
    snprintf(
        text + used, sizeof text - used, "zero-run     %s%s\n",
        alone ? "may start ranks here" : "may not start ranks here: ", alone ? "" : error.message);
    const enum run_status status = print(text);
    return status ? status : error.result == ZERO_E_INVALID ? RUN_ENVIRONMENT : RUN_OK;
}

static zero_result open_logs(struct run_job *job, struct base_error *error)
{
    const char *dir = job->options->log_dir;
    if (!dir)
        return ZERO_OK;
    if (mkdir(dir, 0777) && errno != EEXIST)
        return zero_fail_errno(error, ZERO_E_IO, errno, "cannot create '%.200s'", dir);
    for (int i = 0; i < job->count; i++) {
        char path[4096];
        const int length = snprintf(path, sizeof path, "%s/rank-%d.log", dir, i);
        if (length < 0 || (size_t)length >= sizeof path)
            return zero_fail(error, ZERO_E_INVALID, "--log-dir: the path is too long");
        const zero_result result = base_open(&job->ranks[i].log_fd, path,
                                             O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

static zero_result open_files(struct run_job *job, struct base_error *error)
{
    zero_result result = open_logs(job, error);
    if (!result && job->options->metrics)
        result = base_open(&job->metrics_fd, job->options->metrics,
                           O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666, error);
    return result;
}

static zero_result job_init(struct run_job *job, const struct run_options *options,
                            struct base_error *error)
{
    *job = (struct run_job){.options = options,
                            .count = options->plan ? 1 : options->ranks,
                            .metrics_fd = -1,
                            .plan_fd = -1,
                            .out.fd = STDOUT_FILENO,
                            .err.fd = STDERR_FILENO,
                            .signals = -1,
                            .exits = -1,
                            .timeout_ns = UINT64_MAX,
                            .kill_ns = UINT64_MAX,
                            .failed_rank = -1};
    // One rank whose lines need no number keeps zero-run's own output, a terminal perhaps.
    job->piped = job->count > 1 || options->log_dir || options->prefix == RUN_PREFIX_ALWAYS;
    job->ranks = base_calloc((size_t)job->count, sizeof *job->ranks);
    if (!job->ranks)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %d ranks", job->count);
    for (int i = 0; i < job->count; i++) {
        job->ranks[i].number = i;
        job->ranks[i].pidfd = job->ranks[i].log_fd = -1;
        job->ranks[i].streams[0].fd = job->ranks[i].streams[1].fd = -1;
    }
    if (options->timeout_s)
        job->timeout_ns = base_clock_ns() + (uint64_t)options->timeout_s * UINT64_C(1000000000);
    if (options->plan) {
        job->plan_fd = memfd_create("zero-plan", MFD_CLOEXEC);
        if (job->plan_fd < 0)
            return zero_fail_errno(error, ZERO_E_IO, errno, "memory for the plan");
    }
    return ZERO_OK;
}

static void job_free(struct run_job *job)
{
    int *const own[] = {&job->metrics_fd, &job->plan_fd, &job->signals, &job->exits};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        base_close(own[i], "a descriptor", NULL);
    for (int i = 0; job->ranks && i < job->count; i++) {
        struct run_rank *rank = &job->ranks[i];
        base_close(&rank->pidfd, "a process", NULL);
        base_close(&rank->log_fd, "a log", NULL);
        base_free(rank->streams[0].line);
        base_free(rank->streams[1].line);
    }
    base_free(job->ranks);
    base_free(job->polls);
    run_sink_free(&job->out);
    run_sink_free(&job->err);
}

// A log's last write may fail at its close.
static void close_logs(struct run_job *job)
{
    for (int i = 0; i < job->count; i++) {
        struct run_rank *rank = &job->ranks[i];
        struct base_error error = {.result = ZERO_OK};
        if (base_close(&rank->log_fd, "the log", &error)) {
            rank->log_errno = EIO;
            run_say(job, "rank %d: %s", i, error.message);
        }
    }
}

static int run(const struct run_options *options, struct base_error *error)
{
    struct run_job job;
    int status = RUN_SYSTEM;
    if (job_init(&job, options, error) || run_supervise_begin(&job, error))
        goto out;
    if (open_files(&job, error)) {
        status = RUN_CANNOT_CREATE;
        goto out;
    }
    status = (int)run_spawn(&job, error);
    if (status)
        run_stop_now(&job);
    run_supervise(&job);
    close_logs(&job);
    if (!status)
        status = options->plan ? run_plan_print(&job) : run_job_status(&job);
    run_flush(&job);
out:
    job_free(&job);
    return status;
}

// Closed standard descriptors are opened in the wrong direction: using them fails as before, and
// none of zero-run's own gets their number.
static zero_result occupy_standard(struct base_error *error)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return zero_fail_errno(error, ZERO_E_IO, errno, "cannot open '/dev/null'");
    return ZERO_OK;
}

int main(int argc, char **argv)
{
    struct base_error error = {.result = ZERO_OK};
    struct run_options options = {.settings = NULL};
    int status = RUN_OK;
    zero_result result = occupy_standard(&error);
    if (!result)
        result = run_options_parse(&options, argc, argv, &error);
    if (result)
        status = (int)complain(result == ZERO_E_INVALID ? RUN_USAGE : RUN_SYSTEM, &error);
    else if (options.help)
        status = (int)print(run_help);
    else if (options.version)
        status = (int)print("zero-run " ZERO_VERSION "\n");
    else if (options.explain)
        status = (int)explain_place();
    else if ((result = boot_check_alone(environ, &error)))
        status =
            (int)complain(result == ZERO_E_UNSUPPORTED ? RUN_NOT_ALONE : RUN_ENVIRONMENT, &error);
    else {
        status = run(&options, &error);
        if (error.result)
            complain((enum run_status)status, &error);
    }
    run_options_free(&options);
    return status;
}
