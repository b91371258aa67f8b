// What all files of zero-run ask and say: lines of its own, ends and errors in words, and whether a
// signal asks the job to stop. Calls none of them but the sinks.
#include "tools/zero-run/run.h"
#include "tools/zero-run/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void run_say(struct run_job *job, const char *format, ...)
{
    char line[1024] = "zero-run: ";
    const size_t start = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    const size_t room = sizeof line - start - 1;
    const int length = vsnprintf(line + start, room, format, arguments);
    va_end(arguments);
    if (length >= (int)room)
        line[start + run_utf8_whole(line + start, room - 1)] = '\0';
    if (job->span && !job->span->coordinates) {
        job->span->ops->say(job, line + start);
        return;
    }
    strcat(line, "\n");
    run_sink_add(&job->output.err, line, strlen(line));
}

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

const char *run_describe_errno(int errnum, char text[RUN_ERRNO_TEXT])
{
    char limit[BASE_LIMIT_TEXT];
    base_limit_text(errnum, limit);
    snprintf(text, RUN_ERRNO_TEXT, "%s (%s)%s", strerrordesc_np(errnum), strerrorname_np(errnum),
             limit);
    return text;
}

bool run_signals_ask(const struct run_job *job, int number)
{
    return number == SIGTERM || number == SIGINT ||
           sigismember(&job->options->stop_signals, number) == 1;
}

bool run_signals_asked(const struct run_job *job, int number)
{
    return run_signals_ask(job, number) && sigismember(&job->stop.sent, number) != 1;
}

struct run_rank *run_job_rank(const struct run_job *job, int number)
{
    const bool here = number >= job->at.first && number < job->at.first + job->count;
    return here ? &job->ranks[number - job->at.first] : NULL;
}
