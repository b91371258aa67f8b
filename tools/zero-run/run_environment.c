#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "collectives/rendezvous/rendezvous.h"

#include <stdarg.h>
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
    "ZERO_PLAN_LEAST_LOCAL_WORLD",
    "ZERO_PLAN_FD",
    "ZERO_PLAN_PROBE",
    "ZERO_CONTROL_FD",
    "ZERO_RESTARTS",
    "ZERO_FIRST_WORLD",
    "ZERO_HOST",
    "ZERO_HOSTS",
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

/** The environment of a rank while it is made. */
struct variables {
    char **list; /**< with room for all */
    size_t count;
    bool failed; /**< there was no memory for one */
};

static void add(struct variables *to, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct variables *to, const char *format, ...)
{
    va_list values, again;
    va_start(values, format);
    va_copy(again, values);
    const size_t size = (size_t)vsnprintf(NULL, 0, format, again) + 1;
    va_end(again);
    char *entry = base_calloc(size, 1);
    if (entry) {
        vsnprintf(entry, size, format, values);
        to->list[to->count++] = entry;
    }
    to->failed |= !entry;
    va_end(values);
}

// How often what has started zero-run has started it again. Malformed counts are none.
static int restarts_before(void)
{
    int restarts = 0;
    return boot_restarts(&restarts, environ, NULL) ? 0 : restarts;
}

static void add_place(struct variables *to, const struct run_job *job, int place)
{
    static const char *const prefixes[] = {"", "LOCAL_", "ZERO_", "ZERO_LOCAL_"};
    for (size_t i = 0; i < 4; i++) {
        const bool local = i % 2 == 1;
        add(to, "%sRANK=%d", prefixes[i], local ? place : job->at.first + place);
        add(to, "%sWORLD_SIZE=%d", prefixes[i], local ? job->count : job->at.world);
    }
    if (job->span) {
        add(to, "ZERO_HOST=%d", job->at.host);
        add(to, "ZERO_HOSTS=%d", job->at.hosts);
    }
    add(to, "MASTER_ADDR=%s", job->master_address);
    add(to, "MASTER_PORT=%d", job->master_port);
    add(to, "ZERO_JOB=%s", job->token);
    add(to, "ZERO_RESTARTS=%d",
        (job->span ? job->restarts.before : restarts_before()) + job->restarts.count);
    add(to, "ZERO_FIRST_WORLD=%d", job->at.first_world);
}

// ZERO_OPTIONS: what was inherited, then the -o's.
static void add_options(struct variables *to, const struct run_job *job)
{
    const char *outer = getenv("ZERO_OPTIONS"), *own = job->options->settings;
    if (own && outer && *outer)
        add(to, "ZERO_OPTIONS=%s\n%s", outer, own);
    else if (own || outer)
        add(to, "ZERO_OPTIONS=%s", own ? own : outer);
}

static void add_special(struct variables *to, const struct run_job *job, int place)
{
    char signals[CONTROL_LIST_BYTES];
    control_show_signals(&job->options->stop_signals, signals);
    if (*signals)
        add(to, CONTROL_STOP_VARIABLE "=%s", signals);
    if (job->metrics.output >= 0 && job->at.first + place == 0)
        add(to, "ZERO_METRICS_FD=%d", job->metrics.output);
    if (job->watch.fd >= 0)
        add(to, "ZERO_CONTROL_FD=%d", job->watch.fd);
    if (job->plan_fd < 0)
        return;
    add(to, "ZERO_PLAN=1");
    add(to, "ZERO_PLAN_WORLD=%d", job->options->plan_world);
    add(to, "ZERO_PLAN_LOCAL_WORLD=%d", job->options->plan_here);
    add(to, "ZERO_PLAN_LEAST_LOCAL_WORLD=%d", job->options->plan_least);
    add(to, "ZERO_PLAN_FD=%d", job->plan_fd);
    add(to, "ZERO_PLAN_PROBE=%d", job->options->plan_probe);
}

// What a rank is to compute with, and how its terminal shows.
static void add_habits(struct variables *to, const struct run_job *job, int place)
{
    const int threads = run_threads_of(&job->cores, job->binding, job->count, place);
    const bool dumb = is_dumb(job);
    if (threads)
        add(to, "OMP_NUM_THREADS=%d", threads);
    if (dumb)
        add(to, "TERM=dumb");
    if (dumb && !getenv("NO_COLOR"))
        add(to, "NO_COLOR=1");
}

char **run_environment_make(const struct run_job *job, int place)
{
    size_t outer = 0;
    while (environ && environ[outer])
        outer++;
    struct variables made = {
        .list = base_calloc(outer + OWN_VARIABLES + HABITS + 1, sizeof *made.list)};
    if (!made.list)
        return NULL;
    add_place(&made, job, place);
    add_options(&made, job);
    add_special(&made, job, place);
    add_habits(&made, job, place);
    for (size_t i = 0; i < outer; i++)
        if (inherited(job, environ[i]))
            add(&made, "%s", environ[i]);
    if (!made.failed)
        return made.list;
    run_environment_free(made.list);
    return NULL;
}

void run_environment_free(char **environment)
{
    for (size_t i = 0; environment && environment[i]; i++)
        base_free(environment[i]);
    base_free(environment);
}
