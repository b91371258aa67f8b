#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/file.h"
#include "collectives/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

// Where a child failed on its way to the program; sent through a pipe that the program closes.
enum stage { STAGE_SETUP, STAGE_BIND, STAGE_EXEC };
struct child_failure {
    enum stage stage;
    int errnum;
};

// Both ends of the pipes of one rank while it is started.
struct plumbing {
    int out[2], err[2], status[2];
};

enum { SOME_PORT = 29500 }; // torchrun's

static void plumbing_close(struct plumbing *pipes)
{
    for (int end = 0; end < 2; end++) {
        base_close(&pipes->out[end], "a pipe", NULL);
        base_close(&pipes->err[end], "a pipe", NULL);
        base_close(&pipes->status[end], "a pipe", NULL);
    }
}

static bool open_pipe(int ends[2])
{
    return pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

static bool has_prefix(const struct run_job *job)
{
    const enum option_when prefix = job->options->prefix;
    return prefix == OPTION_ALWAYS || (prefix == OPTION_AUTO && job->at.first_world > 1);
}

// Standard output: a pseudo-terminal, or without one a pipe, which is said once. What a program
// writes to the pipe comes in blocks.
static bool open_output(struct run_job *job, int rank, int ends[2], struct base_error *error)
{
    char prefix[32], text[RUN_ERRNO_TEXT];
    if (job->options->pty == OPTION_NEVER || job->plan_fd >= 0)
        return open_pipe(ends);
    const int columns = has_prefix(job) ? snprintf(prefix, sizeof prefix, "[%d] ", rank) : 0;
    if (run_terminal_open(ends, job->output.out.fd, columns))
        return true;
    const int reason = errno;
    if (job->options->pty == OPTION_ALWAYS) {
        zero_fail_errno(error, ZERO_E_IO, reason, "no pseudo-terminal for rank %d (--pty always)",
                        rank);
        return false;
    }
    if (!open_pipe(ends))
        return false;
    if (!job->output.no_pty)
        run_say(job,
                "no pseudo-terminal for rank %d: %s; it writes to a pipe, so its lines may come "
                "late (--pty never: ranks have pipes)",
                rank, run_describe_errno(reason, text));
    job->output.no_pty = true;
    return true;
}

static bool plumbing_open(struct run_job *job, int rank, struct plumbing *pipes,
                          struct base_error *error)
{
    *pipes = (struct plumbing){{-1, -1}, {-1, -1}, {-1, -1}};
    if (pipe2(pipes->status, O_CLOEXEC))
        return false;
    return !job->output.piped ||
           (open_output(job, rank, pipes->out, error) && open_pipe(pipes->err));
}

// Standard input: zero-run's for rank 0, unless reading it would stop a background process group,
// or there are several hosts, of which each may have one.
static bool child_input(const struct run_job *job, int rank)
{
    if (rank == 0 && !job->span && !isatty(STDIN_FILENO))
        return true;
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return null >= 0 && dup2(null, STDIN_FILENO) >= 0;
}

static bool child_output(const struct run_job *job, const struct plumbing *pipes)
{
    if (job->output.piped)
        return dup2(pipes->out[1], STDOUT_FILENO) >= 0 && dup2(pipes->err[1], STDERR_FILENO) >= 0;
    return job->plan_fd < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

// Lets the program inherit a descriptor.
static bool child_inherits(int fd)
{
    return fd < 0 || fcntl(fd, F_SETFD, 0) == 0;
}

// Last, for nothing can be opened below a limit that zero-run's own descriptors reach.
static bool child_limits(const struct run_job *job)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return false;
    limit.rlim_cur = job->inherited.files;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// What zero-run ignores is the program's to decide again, unless it was ignored before. A rank that
// has zero-run's own terminal is in the terminal's background: it may write there also if the
// terminal is set to stop such processes (`stty tostop`).
static bool child_signals(const struct run_job *job)
{
    struct sigaction plain = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
    const bool terminal =
        !job->output.piped && (job->output.out.terminal || job->output.err.terminal);
    return (job->inherited.ignored_pipe || sigaction(SIGPIPE, &plain, NULL) == 0) &&
           (job->inherited.ignored_size || sigaction(SIGXFSZ, &plain, NULL) == 0) &&
           (!terminal || sigaction(SIGTTOU, &ignore, NULL) == 0) &&
           sigprocmask(SIG_SETMASK, &job->inherited.mask, NULL) == 0;
}

static bool child_setup(const struct run_job *job, int rank, const struct plumbing *pipes)
{
    return setpgid(0, 0) == 0 && child_input(job, rank) && child_output(job, pipes) &&
           child_inherits(rank == 0 ? job->metrics.output : -1) && child_inherits(job->plan_fd) &&
           child_inherits(job->watch.fd) && child_signals(job);
}

static _Noreturn void child_main(const struct run_job *job, int rank, pid_t parent,
                                 const struct plumbing *pipes, char **environment)
{
    struct child_failure failure = {.stage = STAGE_SETUP};
    // The rank dies with zero-run; if that has happened already, no signal will come.
    const bool tied = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
    if (getppid() != parent)
        _exit(RUN_SYSTEM);
    if (tied && child_setup(job, rank, pipes)) {
        failure.stage = STAGE_BIND;
        if (run_bind_apply(job->binding, rank - job->at.first)) {
            failure.stage = STAGE_EXEC;
            if (child_limits(job))
                execvpe(job->options->program[0], job->options->program, environment);
        }
    }
    failure.errnum = errno;
    const ssize_t sent = write(pipes->status[1], &failure, sizeof failure);
    _exit(sent == sizeof failure ? RUN_SYSTEM : RUN_NO_PROGRAM);
}

static enum run_status explain(const struct child_failure *failure, const char *program, int rank,
                               struct base_error *error)
{
    const int errnum = failure->errnum;
    if (failure->stage == STAGE_EXEC) {
        zero_fail_errno(error, ZERO_E_IO, errnum, "cannot run '%.200s'", program);
        return errnum == ENOMEM || errnum == EAGAIN || errnum == E2BIG ? RUN_SYSTEM
                                                                       : RUN_NO_PROGRAM;
    }
    zero_fail_errno(error, ZERO_E_IO, errnum, "cannot %s rank %d",
                    failure->stage == STAGE_BIND ? "bind" : "set up", rank);
    return RUN_SYSTEM;
}

// Waits until the child has become the program, or has said why not.
static enum run_status await_program(int status, const char *program, int rank,
                                     struct base_error *error)
{
    struct child_failure failure;
    ssize_t count;
    do
        count = read(status, &failure, sizeof failure);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        return RUN_OK;
    if (count == (ssize_t)sizeof failure)
        return explain(&failure, program, rank, error);
    zero_fail_errno(error, ZERO_E_IO, count < 0 ? errno : EIO, "starting rank %d", rank);
    return RUN_SYSTEM;
}

// If the guardian is gone, that is said when its end is noticed.
static bool guard(struct run_job *job, struct run_rank *rank)
{
    rank->pidfd = pidfd_open(rank->pid, 0);
    if (rank->pidfd >= 0)
        run_guardian_tell(&job->guardian, rank->pidfd, rank->pid);
    return rank->pidfd >= 0;
}

static bool watch(struct run_job *job, struct run_rank *rank)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(rank - job->ranks)};
    return epoll_ctl(job->exits, EPOLL_CTL_ADD, rank->pidfd, &event) == 0;
}

// A rank's prefix has one of a few colours, none of them red.
static void make_prefix(const struct run_sink *sink, int rank, char *prefix, size_t size)
{
    static const int colors[] = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
    const int count = sizeof colors / sizeof *colors;
    if (sink->color)
        snprintf(prefix, size, "\033[%dm[%d]\033[0m ", colors[rank % count], rank);
    else
        snprintf(prefix, size, "[%d] ", rank);
}

bool run_spawn_streams(struct run_job *job, struct run_rank *rank)
{
    const bool prefixed = has_prefix(job), several = job->at.first_world > 1;
    for (int i = 0; i < 2 && job->output.piped; i++) {
        struct run_stream *stream = &rank->streams[i];
        stream->line = base_calloc(RUN_LINE_BYTES, 1);
        if (!stream->line)
            return false;
        stream->sink = i == 1 || job->plan_fd >= 0 || job->output.one_sink ? &job->output.err
                                                                           : &job->output.out;
        stream->number = i;
        stream->rank = rank->number;
        stream->hidden = rank->hidden;
        stream->join = i == 1 && several ? &job->output.join : NULL;
        stream->lines = prefixed || several;
        stream->link = job->metrics.link;
        stream->tail = &rank->tail;
        stream->log_fd = &rank->log_fd;
        stream->log_errno = &rank->log_errno;
        if (prefixed)
            make_prefix(stream->sink, rank->number, stream->prefix, sizeof stream->prefix);
    }
    return true;
}

static bool open_streams(struct run_job *job, struct run_rank *rank, struct plumbing *pipes)
{
    int *ends[2] = {&pipes->out[0], &pipes->err[0]};
    if (!run_spawn_streams(job, rank))
        return false;
    for (int i = 0; i < 2 && job->output.piped; i++) {
        rank->streams[i].fd = *ends[i];
        *ends[i] = -1;
    }
    return true;
}

static enum run_status spawn_rank(struct run_job *job, struct run_rank *rank,
                                  struct base_error *error)
{
    enum run_status status = RUN_SYSTEM;
    struct plumbing pipes;
    char **environment = run_environment_make(job, (int)(rank - job->ranks));
    const pid_t parent = getpid();
    if (!plumbing_open(job, rank->number, &pipes, error) || !environment) {
        zero_fail_errno(error, ZERO_E_IO, errno, "cannot start rank %d", rank->number);
        goto out;
    }
    rank->pid = fork();
    if (rank->pid == 0)
        child_main(job, rank->number, parent, &pipes, environment);
    if (rank->pid < 0) {
        rank->pid = 0;
        zero_fail_errno(error, ZERO_E_IO, errno, "cannot start rank %d", rank->number);
        goto out;
    }
    base_close(&pipes.status[1], "a pipe", NULL);
    const bool guarded = guard(job, rank);
    status = await_program(pipes.status[0], job->options->program[0], rank->number, error);
    if (!status && (!guarded || !open_streams(job, rank, &pipes) || !watch(job, rank))) {
        zero_fail_errno(error, ZERO_E_IO, errno, "cannot watch rank %d", rank->number);
        status = RUN_SYSTEM;
    }
out:
    plumbing_close(&pipes);
    run_environment_free(environment);
    return status;
}

// A port of the loopback that is free at the moment; 0: there is none.
static int free_port(int family)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const bool older = family == AF_INET;
    struct sockaddr *address = older ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t size = older ? sizeof v4 : sizeof v6;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool good = fd >= 0 && boot_has_loopback(family) && bind(fd, address, size) == 0 &&
                      getsockname(fd, address, &size) == 0;
    base_close(&fd, "a socket", NULL);
    return good ? ntohs(older ? v4.sin_port : v6.sin6_port) : 0;
}

// Where ranks that go by tcp are to meet: at the loopback's IPv4 address, or else that of IPv6.
// Most ranks share memory and need neither, so a host that has none is no error here; a rank that
// does need one says so.
static void choose_port(struct run_job *job)
{
    job->master_address = "127.0.0.1";
    job->master_port = free_port(AF_INET);
    if (job->master_port)
        return;
    job->master_port = free_port(AF_INET6);
    if (job->master_port)
        job->master_address = "::1";
    else
        job->master_port = SOME_PORT;
}

bool run_port_is_free(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_free = fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    base_close(&fd, "a socket", NULL);
    return is_free;
}

zero_result run_choose_token(struct run_job *job, struct base_error *error)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return zero_fail_errno(error, ZERO_E_IO, errno, "a token for the job");
    snprintf(job->token, sizeof job->token, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return ZERO_OK;
}

enum run_status run_spawn(struct run_job *job, struct base_error *error)
{
    if (!job->span)
        choose_port(job);
    job->output.join.ranks = job->at.world;
    for (int i = 0; i < job->count; i++) {
        const enum run_status status = spawn_rank(job, &job->ranks[i], error);
        if (status)
            return status;
        job->running++;
    }
    base_close(&job->metrics.output, "a pipe", NULL);
    return RUN_OK;
}
