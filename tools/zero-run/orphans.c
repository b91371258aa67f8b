#include "tools/zero-run/run.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *open_children(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
    return fopen(path, "re");
}

void run_orphans_adopt(void)
{
    // Without the list they would be children whose numbers zero-run doesn't know.
    FILE *children = open_children();
    if (!children)
        return;
    fclose(children);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static bool is_known(const struct run_job *job, pid_t pid)
{
    bool known = pid == job->guardian.pid;
    for (int i = 0; i < job->count && !known; i++)
        known = pid == job->ranks[i].pid || (pid == job->ranks[i].heir && !job->ranks[i].ended);
    return known;
}

// Calls `visit` for each child that is neither a rank nor the guardian; returns how many.
static int each_orphan(const struct run_job *job, void (*visit)(pid_t pid))
{
    FILE *children = open_children();
    int pid, count = 0;
    while (children && fscanf(children, "%d", &pid) == 1)
        if (!is_known(job, pid)) {
            visit(pid);
            count++;
        }
    if (children)
        fclose(children);
    return count;
}

static void reap(pid_t pid)
{
    waitpid(pid, NULL, WNOHANG);
}

void run_orphans_reap(const struct run_job *job)
{
    each_orphan(job, reap);
}

// The process that has opened a context as this rank, if that is a child of zero-run by now.
static int open_heir(const struct run_job *job, const struct run_rank *rank, pid_t *pid)
{
    const struct control_segment *segment = job->watch.segment;
    siginfo_t end;
    if (!segment || !control_rank_listens(&segment->ranks[rank->number]))
        return -1;
    *pid = (pid_t)control_pid(&segment->ranks[rank->number]);
    if (*pid <= 0 || *pid == rank->pid || getpgid(*pid) != rank->pid)
        return -1;
    int fd = pidfd_open(*pid, 0);
    if (fd >= 0 && waitid(P_PIDFD, (id_t)fd, &end, WEXITED | WNOWAIT | WNOHANG)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool run_orphans_succeed(struct run_job *job, struct run_rank *rank)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(rank - job->ranks)};
    const int number = rank->end.si_status;
    pid_t heir = 0;
    if (rank->heir || rank->end.si_code == CLD_EXITED || !run_signals_asked(job, number))
        return false;
    const int fd = open_heir(job, rank, &heir);
    if (fd < 0)
        return false;
    if (epoll_ctl(job->exits, EPOLL_CTL_ADD, fd, &event)) {
        close(fd);
        return false;
    }
    epoll_ctl(job->exits, EPOLL_CTL_DEL, rank->pidfd, NULL);
    close(rank->pidfd);
    rank->pidfd = fd;
    rank->heir = heir;
    run_say(job,
            "rank %d: SIG%s has ended process %d; its program, process %d, is to stop after "
            "this step",
            rank->number, sigabbrev_np(number), (int)rank->pid, (int)heir);
    return true;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

void run_orphans_end(const struct run_job *job)
{
    // What one leaves behind becomes a child in its turn.
    while (each_orphan(job, end) > 0)
        continue;
}
