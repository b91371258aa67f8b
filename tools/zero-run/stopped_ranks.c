// Ranks that a signal has stopped. They have not failed, and the others wait for them.

#include "tools/zero-run/run.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static const char *describe_reason(int number)
{
    switch (number) {
    case SIGTTOU:
        return ": it has written to a terminal, or set one, in whose background it is";
    case SIGTTIN:
        return ": it has read from a terminal in whose background it is; give its input by a file "
               "or a pipe";
    default:
        return "";
    }
}

static void say_stopped(struct run_job *job, const struct run_rank *rank)
{
    const char *name = sigabbrev_np(rank->stopped);
    run_say(job, "rank %d (process %d) is stopped by SIG%s%s; `kill -CONT -%d` lets it go on",
            rank->number, (int)rank->pid, name ? name : "?", describe_reason(rank->stopped),
            (int)rank->pid);
}

static struct run_rank *find(struct run_job *job, pid_t pid)
{
    for (int i = 0; i < job->count; i++)
        if (job->ranks[i].pid == pid)
            return &job->ranks[i];
    return NULL;
}

void run_stopped_look(struct run_job *job)
{
    siginfo_t change = {.si_pid = 0};
    while (waitid(P_ALL, 0, &change, WSTOPPED | WCONTINUED | WNOHANG) == 0 && change.si_pid != 0) {
        struct run_rank *rank = find(job, change.si_pid);
        if (rank && change.si_code == CLD_STOPPED && !job->stop.suspended) {
            rank->stopped = change.si_status;
            say_stopped(job, rank);
        } else if (rank && change.si_code == CLD_CONTINUED) {
            if (rank->stopped && !job->stop.stopping)
                run_say(job, "rank %d goes on", rank->number);
            rank->stopped = 0;
        }
        change.si_pid = 0;
    }
}
