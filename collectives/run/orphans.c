#include "collectives/run/run.h"

#include <stdio.h>
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
        known = pid == job->ranks[i].pid;
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
