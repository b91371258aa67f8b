#include "collectives/run/run.h"

#include <stdio.h>
#include <string.h>

void run_describe_end(const siginfo_t *end, char *text, size_t size)
{
    if (end->si_code == CLD_EXITED) {
        snprintf(text, size, "exit code %d", end->si_status);
        return;
    }
    const char *name = sigabbrev_np(end->si_status);
    if (name)
        snprintf(text, size, "signal SIG%s%s", name,
                 end->si_code == CLD_DUMPED ? ", core dumped" : "");
    else
        snprintf(text, size, "signal %d", end->si_status);
}

int run_end_status(const siginfo_t *end)
{
    return end->si_code == CLD_EXITED ? end->si_status : 128 + end->si_status;
}

int run_job_status(const struct run_job *job)
{
    if (job->timed_out)
        return RUN_TIMEOUT;
    if (job->failed_rank >= 0)
        return run_end_status(&job->ranks[job->failed_rank].end);
    bool lost = job->out.failed || job->err.failed;
    for (int i = 0; i < job->count; i++)
        lost = lost || job->ranks[i].log_errno;
    return lost ? RUN_OUTPUT : RUN_OK;
}
