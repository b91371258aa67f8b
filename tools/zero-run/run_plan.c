#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/file.h"

#include <string.h>
#include <unistd.h>

/** What a program has handed over, with a zero at its end. */
struct handed {
    const char *at, *end;
};

/** The next text, NULL behind the last. */
static const char *next_text(struct handed *handed)
{
    if (handed->at >= handed->end)
        return NULL;
    const char *text = handed->at;
    handed->at += strlen(text) + 1;
    return text;
}

/** Writes a plan and ends its last line. */
static enum run_status print_plan(const char *text, struct base_error *error)
{
    const size_t length = strlen(text);
    const bool ended = length > 0 && text[length - 1] == '\n';
    return base_write_all(STDOUT_FILENO, text, length, "standard output", error) ||
                   (!ended && base_write_all(STDOUT_FILENO, "\n", 1, "standard output", error))
               ? RUN_OUTPUT
               : RUN_OK;
}

/** The plan of every context, and for the last that does not fit why. */
static enum run_status print_plans(struct run_job *job, struct handed *handed,
                                   struct base_error *error)
{
    enum run_status status = RUN_OK;
    const char *text;
    while ((text = next_text(handed)) != NULL) {
        const char *json = next_text(handed), *reason = next_text(handed);
        const bool as_json = job->options->plan_json;
        if (as_json && !json) {
            run_say(job, "no plan: the program made it as text only");
            return RUN_NO_PLAN;
        }
        const enum run_status printed = print_plan(as_json ? json : text, error);
        if (printed)
            return printed;
        if (reason && *reason) {
            run_say(job, "the plan does not fit: %s", reason);
            status = RUN_DOES_NOT_FIT;
        }
    }
    return status;
}

/** What becomes of a job without a plan. */
static int no_plan(struct run_job *job, uint64_t size)
{
    char how[128];
    run_describe_end(&job->ranks[0].end, how, sizeof how);
    run_say(job, "no plan: the program ended with %s%s", how,
            size ? "" : " before zero_commit had made one");
    const int status = run_job_status(job);
    return status ? status : RUN_NO_PLAN;
}

int run_plan_print(struct run_job *job)
{
    const char *path = "the plan";
    struct base_error error = {.result = ZERO_OK};
    uint64_t size = 0;
    char *text = NULL;
    int status = RUN_SYSTEM;
    if (base_file_size(job->plan_fd, &size, path, &error))
        goto out;
    if (size == 0 || job->ranks[0].end.si_code != CLD_EXITED) {
        status = no_plan(job, size);
        goto out;
    }
    text = base_calloc(size + 1, 1);
    if (!text) {
        zero_fail(&error, ZERO_E_NOMEM, "no memory for a plan of %llu bytes",
                  (unsigned long long)size);
        goto out;
    }
    if (base_pread_all(job->plan_fd, text, size, 0, path, &error))
        goto out;
    status = (int)print_plans(job, &(struct handed){text, text + size}, &error);
out:
    if (error.result)
        run_say(job, "%s", error.message);
    base_free(text);
    return status;
}
