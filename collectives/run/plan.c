#include "collectives/run/run.h"

#include "base/arena.h"
#include "base/file.h"

#include <unistd.h>

int run_plan_print(struct run_job *job)
{
    const char *path = "the plan";
    struct base_error error = {.result = ZERO_OK};
    const siginfo_t *end = &job->ranks[0].end;
    uint64_t size = 0;
    char *text = NULL;
    int status = RUN_SYSTEM;
    if (base_file_size(job->plan_fd, &size, path, &error))
        goto out;
    if (size == 0 || end->si_code != CLD_EXITED) {
        char how[128];
        run_describe_end(end, how, sizeof how);
        run_say(job, "no plan: the program ended with %s%s", how,
                size ? "" : " before zero_commit had made one");
        status = run_job_status(job);
        status = status ? status : RUN_NO_PLAN;
        goto out;
    }
    text = base_calloc(size, 1);
    if (!text) {
        zero_fail(&error, ZERO_E_NOMEM, "no memory for a plan of %llu bytes",
                  (unsigned long long)size);
        goto out;
    }
    if (base_pread_all(job->plan_fd, text, size, 0, path, &error))
        goto out;
    status =
        base_write_all(STDOUT_FILENO, text, size, "standard output", &error) ? RUN_OUTPUT : RUN_OK;
out:
    if (error.result)
        run_say(job, "%s", error.message);
    base_free(text);
    return status;
}
