#include "tools/zero-run/run.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What zero-run decides; what it inherits of these is of another job.
static const char *const own_variables[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ZERO_RANK",
    "ZERO_LOCAL_RANK",
    "ZERO_WORLD_SIZE",
    "ZERO_LOCAL_WORLD_SIZE",
    "ZERO_JOB",
    "ZERO_OPTIONS",
    "ZERO_METRICS_FD",
    "ZERO_PLAN",
    "ZERO_PLAN_WORLD",
    "ZERO_PLAN_LOCAL_WORLD",
    "ZERO_PLAN_FD",
    "ZERO_PLAN_PROBE",
    "ZERO_CONTROL_FD",
    "ZERO_RESTARTS",
    "ZERO_FIRST_WORLD",
    "ZERO_STOP_SIGNAL",
};
enum { OWN_VARIABLES = sizeof own_variables / sizeof *own_variables, HABITS = 3 };

// A rank that writes to a pseudo-terminal must not take it for one that shows colours, unless
// zero-run's own output is one.
static bool is_dumb(const struct run_job *job)
{
    return job->output.piped && job->options->pty != OPTION_NEVER && !job->output.out.watched &&
           job->options->color != OPTION_ALWAYS;
}

static bool inherited(const struct run_job *job, const char *entry)
{
    const size_t length = strcspn(entry, "=");
    if (is_dumb(job) && !strncmp(entry, "TERM=", 5))
        return false;
    for (size_t i = 0; i < OWN_VARIABLES; i++)
        if (strlen(own_variables[i]) == length && !memcmp(own_variables[i], entry, length))
            return false;
    return true;
}

// Adds NAME=value at the end of a list that has room; `list` is left without it if there is no
// memory, which the caller sees by counting.
static void add(char **list, size_t *count, const char *name, const char *value)
{
    const size_t size = strlen(name) + strlen(value) + 2;
    char *entry = base_calloc(size, 1);
    if (!entry)
        return;
    snprintf(entry, size, "%s=%s", name, value);
    list[(*count)++] = entry;
}

static void add_number(char **list, size_t *count, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    add(list, count, name, text);
}

// The variables of the job. Returns how many there should be.
static size_t add_place(char **list, size_t *count, const struct run_job *job, int rank)
{
    const int world = job->count;
    static const char *const ranks[] = {"RANK", "LOCAL_RANK", "ZERO_RANK", "ZERO_LOCAL_RANK"};
    static const char *const worlds[] = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ZERO_WORLD_SIZE",
                                         "ZERO_LOCAL_WORLD_SIZE"};
    for (size_t i = 0; i < 4; i++) {
        add_number(list, count, ranks[i], rank);
        add_number(list, count, worlds[i], world);
    }
    add(list, count, "MASTER_ADDR", job->master_address);
    add_number(list, count, "MASTER_PORT", job->master_port);
    add(list, count, "ZERO_JOB", job->token);
    add_number(list, count, "ZERO_RESTARTS", job->restarts.count);
    add_number(list, count, "ZERO_FIRST_WORLD", job->slots);
    return 13;
}

// ZERO_OPTIONS: what was inherited, then the -o's.
static size_t add_options(char **list, size_t *count, const struct run_job *job)
{
    const char *outer = getenv("ZERO_OPTIONS"), *own = job->options->settings;
    if (!own || !outer || !*outer) {
        if (!own && !outer)
            return 0;
        add(list, count, "ZERO_OPTIONS", own ? own : outer);
        return 1;
    }
    const size_t size = strlen(outer) + strlen(own) + 2;
    char *both = base_calloc(size, 1);
    if (both) {
        snprintf(both, size, "%s\n%s", outer, own);
        add(list, count, "ZERO_OPTIONS", both);
        base_free(both);
    }
    return 1;
}

static size_t add_special(char **list, size_t *count, const struct run_job *job, int rank)
{
    size_t wanted = 0;
    char signals[CONTROL_LIST_BYTES];
    control_show_signals(&job->options->stop_signals, signals);
    if (*signals) {
        add(list, count, CONTROL_STOP_VARIABLE, signals);
        wanted++;
    }
    if (job->metrics.output >= 0 && rank == 0) {
        add_number(list, count, "ZERO_METRICS_FD", job->metrics.output);
        wanted++;
    }
    if (job->watch.fd >= 0) {
        add_number(list, count, "ZERO_CONTROL_FD", job->watch.fd);
        wanted++;
    }
    if (job->plan_fd >= 0) {
        add_number(list, count, "ZERO_PLAN", 1);
        add_number(list, count, "ZERO_PLAN_WORLD", job->options->plan_world);
        add_number(list, count, "ZERO_PLAN_LOCAL_WORLD", job->options->plan_here);
        add_number(list, count, "ZERO_PLAN_FD", job->plan_fd);
        add_number(list, count, "ZERO_PLAN_PROBE", job->options->plan_probe);
        wanted += 5;
    }
    return wanted;
}

// What a rank is to compute with, and how its terminal shows.
static size_t add_habits(char **list, size_t *count, const struct run_job *job, int rank)
{
    const int threads = run_threads_of(&job->cores, job->binding, job->count, rank);
    const bool dumb = is_dumb(job), colors = dumb && !getenv("NO_COLOR");
    if (threads)
        add_number(list, count, "OMP_NUM_THREADS", threads);
    if (dumb)
        add(list, count, "TERM", "dumb");
    if (colors)
        add(list, count, "NO_COLOR", "1");
    return (size_t)(threads > 0) + (size_t)dumb + (size_t)colors;
}

char **run_environment_make(const struct run_job *job, int rank)
{
    size_t outer = 0, count = 0, wanted = 0;
    while (environ && environ[outer])
        outer++;
    char **list = base_calloc(outer + OWN_VARIABLES + HABITS + 1, sizeof *list);
    if (!list)
        return NULL;
    wanted += add_place(list, &count, job, rank);
    wanted += add_options(list, &count, job);
    wanted += add_special(list, &count, job, rank);
    wanted += add_habits(list, &count, job, rank);
    for (size_t i = 0; i < outer; i++) {
        if (!inherited(job, environ[i]))
            continue;
        wanted++;
        list[count] = base_strdup(environ[i]);
        count += list[count] != NULL;
    }
    if (count == wanted)
        return list;
    run_environment_free(list);
    return NULL;
}

void run_environment_free(char **environment)
{
    for (size_t i = 0; environment && environment[i]; i++)
        base_free(environment[i]);
    base_free(environment);
}
