#include "tools/zero-run/run.h"

#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A signal that a process repeats within this time is one wish: longer than a process that has to
// send it twice waits for a processor in between.
#define ECHO_NS UINT64_C(500000000)

// What zero-run passes on; SIGTSTP as SIGSTOP, which no process can ignore.
static const int passed[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// Those that zero-run was started with as ignored, as nohup does, are ignored by it and its ranks.
static void choose(struct run_job *job, sigset_t *chosen)
{
    struct sigaction before;
    sigemptyset(chosen);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        sigaddset(chosen, passed[i]);
    sigorset(chosen, chosen, &job->options->stop_signals);
    for (int number = 1; number < NSIG; number++) {
        if (sigismember(chosen, number) != 1 || sigaction(number, NULL, &before) ||
            before.sa_handler != SIG_IGN)
            continue;
        sigdelset(chosen, number);
        job->inherited.ignored_hangup = job->inherited.ignored_hangup || number == SIGHUP;
    }
    sigaddset(chosen, SIGCHLD);
}

zero_result run_signals_begin(struct run_job *job, struct base_error *error)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, plain = {.sa_handler = SIG_DFL};
    struct sigaction before, before_size;
    sigset_t chosen;
    choose(job, &chosen);
    // A process that ignores SIGCHLD is never told how a child has ended.
    if (sigprocmask(SIG_BLOCK, &chosen, &job->inherited.mask) ||
        sigaction(SIGPIPE, &ignore, &before) || sigaction(SIGXFSZ, &ignore, &before_size) ||
        sigaction(SIGCHLD, &plain, NULL))
        return zero_fail_errno(error, ZERO_E_IO, errno, "blocking signals");
    job->inherited.ignored_pipe = before.sa_handler == SIG_IGN;
    job->inherited.ignored_size = before_size.sa_handler == SIG_IGN;
    job->signals = signalfd(-1, &chosen, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signals < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "watching signals");
    return ZERO_OK;
}

void run_signals_send_one(const struct run_rank *rank, int number)
{
    if (!rank->pid)
        return;
    const bool gone = kill(-rank->pid, number) != 0;
    // A rank may have left its own process group.
    if (gone || number == SIGKILL)
        kill(rank->pid, number);
}

void run_signals_send(struct run_job *job, int number)
{
    sigaddset(&job->stop.sent, number);
    if (number == SIGSTOP || number == SIGCONT)
        job->stop.suspended = number == SIGSTOP;
    if (job->span && job->span->coordinates) {
        job->span->ops->order(job, RUN_ORDER_SIGNAL, number);
        return;
    }
    for (int i = 0; i < job->count; i++)
        if (!job->ranks[i].ended)
            run_signals_send_one(&job->ranks[i], number);
}

// Time that zero-run has been suspended does not count.
static void shift(uint64_t *deadline, uint64_t by)
{
    if (*deadline < UINT64_MAX - 1 - by)
        *deadline += by;
}

static void suspend(struct run_job *job)
{
    sigset_t stop, resumed;
    const struct timespec now = {0};
    const uint64_t began = base_clock_ns();
    run_signals_send(job, SIGSTOP);
    if (job->span)
        run_turn(job, 0); // that is on its way to other hosts before this process stops
    // As it would have been without zero-run's own handling: not at all, if there is no shell that
    // could resume the process group.
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    raise(SIGTSTP);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    sigemptyset(&resumed);
    sigaddset(&resumed, SIGCONT);
    sigtimedwait(&resumed, NULL, &now);
    run_signals_send(job, SIGCONT);
    const uint64_t slept = base_clock_ns() - began;
    shift(&job->stop.timeout_ns, slept);
    shift(&job->stop.ask_ns, slept);
    shift(&job->stop.kill_ns, slept);
}

static void look_at_children(struct run_job *job)
{
    if (job->span && job->span->coordinates)
        return;
    run_orphans_reap(job);
    run_stopped_look(job);
    if (job->guardian.pid > 0 && waitpid(job->guardian.pid, NULL, WNOHANG) > 0) {
        job->guardian.pid = 0;
        run_say(job, "the guardian process has been killed: if zero-run is killed too, what the "
                     "ranks have started may stay behind");
    }
}

static void pass_stop(struct run_job *job, int number)
{
    if (job->span && !job->span->coordinates) {
        job->span->ops->came(job, number);
        return;
    }
    // The platform that has told another host tells this one, too.
    if (job->stop.told_far) {
        job->stop.told_far = false;
        return;
    }
    if (job->stop.signals++ > 0) {
        run_kill(job);
        return;
    }
    if (job->resting) {
        run_say(job, "SIG%s: the job is not started%s", sigabbrev_np(number),
                job->failed_rank >= 0 ? " again" : "");
        return;
    }
    if (run_signals_ask(job, number) && run_ask(job)) {
        run_say(job,
                "SIG%s: asking the ranks to stop after this step; in %d s they get SIGTERM (once "
                "more kills them)",
                sigabbrev_np(number), job->options->grace_s);
        return;
    }
    run_say(job, "SIG%s: passed on to the ranks (once more kills them)", sigabbrev_np(number));
    if (number == SIGQUIT)
        run_watch_blame(job, -1);
    run_signals_send(job, number);
    // The terminal is gone: no user can ask a second time.
    if (number == SIGHUP && job->stop.kill_ns == UINT64_MAX)
        job->stop.kill_ns = run_after_grace(job);
}

// Whether a signal to stop is one that has been taken already: timeout(1) and others send it to
// their child, and then to the process group that the child is in.
static bool is_echo(struct run_job *job, const struct signalfd_siginfo *got)
{
    const uint64_t now = base_clock_ns();
    const bool echo = got->ssi_pid && got->ssi_pid == job->stop.sender &&
                      got->ssi_signo == job->stop.number && now - job->stop.at_ns < ECHO_NS;
    if (echo) // of one; a third is a signal of its own again, half a second after the first
        return true;
    job->stop.number = got->ssi_signo;
    job->stop.sender = got->ssi_pid;
    job->stop.at_ns = now;
    return false;
}

static void take(struct run_job *job, const struct signalfd_siginfo *got)
{
    const int number = (int)got->ssi_signo;
    switch (number) {
    case SIGCHLD:
        look_at_children(job);
        break;
    case SIGTSTP:
        suspend(job);
        break;
    case SIGCONT:
        run_signals_send(job, number);
        break;
    default:
        if ((number == SIGUSR1 || number == SIGUSR2) && !run_signals_ask(job, number))
            run_signals_send(job, number);
        else if (!is_echo(job, got))
            pass_stop(job, number);
    }
}

// A platform sends it to every host, so one is all of them.
void run_signals_take_far(struct run_job *job, int number)
{
    if (job->stop.signals != 0 || number <= 0 || number >= NSIG)
        return;
    pass_stop(job, number);
    job->stop.told_far = true;
}

void run_signals_take(struct run_job *job)
{
    struct signalfd_siginfo got;
    while (read(job->signals, &got, sizeof got) == (ssize_t)sizeof got)
        take(job, &got);
}
