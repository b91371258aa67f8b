#include "tools/zero-run/agent.h"

#include "base/arena.h"
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

// How often to look where the training stands.
static const uint64_t areas_ns = UINT64_C(200000000);
// How long what it has said last may take to be read.
static const uint64_t last_words_ns = UINT64_C(5000000000);

enum { LOWEST_PORT = 12000, PORTS = 18000, PORT_TRIES = 64 };

static struct run_agent *agent_of(const struct run_job *job)
{
    return (struct run_agent *)job->span;
}

/* ------------------------------------------------------------------ the beginning */

// A text that is not written to. NULL: there is none.
static char *borrow(const json_t *text)
{
    return (char *)(uintptr_t)json_string_value(text);
}

static char **read_program(const json_t *list)
{
    const size_t count = json_array_size(list);
    char **program = base_calloc(count + 1, sizeof *program);
    for (size_t i = 0; program && i < count; i++)
        program[i] = borrow(json_array_get(list, i));
    return program;
}

// Variables that the coordinator's ranks would have.
static void adopt_environment(const json_t *list)
{
    char name[256];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *entry = json_string_value(json_array_get(list, i));
        const size_t length = entry ? strcspn(entry, "=") : 0;
        if (length == 0 || length >= sizeof name || !entry[length])
            continue;
        memcpy(name, entry, length);
        name[length] = '\0';
        setenv(name, entry + length + 1, 1);
    }
}

static zero_result read_options(struct run_agent *agent, const json_t *begin,
                                struct base_error *error)
{
    struct run_options *options = &agent->options;
    const char *signals = run_span_text(begin, "stop_signals");
    *options = (struct run_options){.ranks = run_span_number(begin, "slots", 1),
                                    .grace_s = run_span_number(begin, "grace", 30),
                                    .bind = (enum run_bind)run_span_number(begin, "bind", 0),
                                    .pty = (enum option_when)run_span_number(begin, "pty", 0),
                                    .prefix = OPTION_NEVER,
                                    .color = OPTION_NEVER,
                                    .status = OPTION_NEVER,
                                    .log_dir = json_string_value(json_object_get(begin, "log_dir")),
                                    .settings = borrow(json_object_get(begin, "settings")),
                                    .program = read_program(json_object_get(begin, "program"))};
    options->metrics = json_is_true(json_object_get(begin, "metrics")) ? "the metrics" : NULL;
    sigemptyset(&options->stop_signals);
    if (!options->program || !options->program[0])
        return zero_fail(error, ZERO_E_INVALID, "no program");
    return *signals ? control_read_signals(&options->stop_signals, signals, "--stop-signal", error)
                    : ZERO_OK;
}

static const struct run_span_ops ops;

static enum run_status begin_job(struct run_agent *agent, struct base_error *error)
{
    struct run_job *job = &agent->job;
    const char *directory = run_span_text(agent->begin, "directory");
    if (run_span_number(agent->begin, "layout", 0) != RUN_SPAN_LAYOUT) {
        zero_fail(error, ZERO_E_INVALID,
                  "its zero-run is not the one of the first host: install the same zero-run on all "
                  "hosts");
        return RUN_ENVIRONMENT;
    }
    adopt_environment(json_object_get(agent->begin, "environment"));
    if (chdir(directory)) {
        zero_fail_errno(error, ZERO_E_IO, errno,
                        "cannot go to '%.200s', where zero-run was started (each host needs that "
                        "directory)",
                        directory);
        return RUN_SYSTEM;
    }
    const int slots = run_span_number(agent->begin, "slots", 1);
    agent->silence_ns = (uint64_t)run_span_number(agent->begin, "silence", 30) * 1000000000U;
    run_link_expect(agent->link, agent->silence_ns);
    agent->areas = base_calloc((size_t)slots, sizeof *agent->areas);
    if (!agent->areas) {
        zero_fail(error, ZERO_E_NOMEM, "no memory for %d ranks", slots);
        return RUN_SYSTEM;
    }
    if (read_options(agent, agent->begin, error) ||
        run_job_init(job, &agent->options, slots, error))
        return RUN_SYSTEM;
    agent->begun = true;
    agent->span = (struct run_span){.ops = &ops, .coordinates = false, .polls = RUN_LINK_POLLS};
    job->span = &agent->span;
    job->metrics.link = agent->link;
    job->output.piped = true;
    job->output.out.watched = json_is_true(json_object_get(agent->begin, "watched"));
    signal(SIGPIPE, SIG_DFL); // as the ranks are to have it
    if (run_signals_begin(job, error) || run_supervise_begin(job, error))
        return RUN_SYSTEM;
    if (run_files_make_directory(&agent->options, error))
        return RUN_CANNOT_CREATE;
    // Before any rank of any host writes one: hosts may share the directory, and a rank may be on
    // another host after a restart.
    if (json_is_true(json_object_get(agent->begin, "first")))
        run_files_clear_logs(job, run_span_number(agent->begin, "world", INT_MAX), true);
    run_job_raise_limit(job);
    run_orphans_adopt();
    run_oom_begin(&job->oom, "");
    return RUN_OK;
}

/* ------------------------------------------------------------------ a start */

static void read_start(struct run_agent *agent, const json_t *start)
{
    struct run_job *job = &agent->job;
    const int count = run_span_number(start, "count", 1);
    run_restart_clear(job, count < job->slots ? count : job->slots);
    job->at.first = run_span_number(start, "first", 0);
    job->at.world = run_span_number(start, "world", count);
    job->at.first_world = run_span_number(start, "first_world", job->at.world);
    job->restarts.count = run_span_number(start, "restarts", 0);
    job->restarts.before = run_span_number(start, "before", 0);
    job->at.host = run_span_number(start, "host", 0);
    job->at.hosts = run_span_number(start, "hosts", 1);
    job->master_port = run_span_number(start, "port", 0);
    job->stop.signals = 0;
    job->master_address = agent->address;
    snprintf(job->token, sizeof job->token, "%s", run_span_text(start, "token"));
    for (int i = 0; i < job->count; i++)
        job->ranks[i].number = job->at.first + i;
    agent->memory_ns = json_is_true(json_object_get(agent->begin, "memory")) ? 0 : UINT64_MAX;
    memset(agent->areas, 0, (size_t)job->slots * sizeof *agent->areas);
}

static zero_result prepare_metrics(struct run_job *job, struct base_error *error)
{
    if (!job->options->metrics || job->at.first > 0)
        return ZERO_OK;
    return job->metrics.line ? run_metrics_connect(&job->metrics, error)
                             : run_metrics_open(&job->metrics, job->options->metrics, error);
}

// What a start needs, anew each time.
static enum run_status prepare_start(struct run_job *job, struct base_error *error)
{
    if (job->at.first < 0 || job->at.world < job->at.first + job->count || !*job->token) {
        zero_fail(error, ZERO_E_INVALID, "ranks %d to %d of %d", job->at.first,
                  job->at.first + job->count - 1, job->at.world);
        return RUN_SYSTEM;
    }
    if (run_guardian_start(&job->guardian, job->token, job->at.host, error) ||
        run_watch_renew(job, error) || prepare_metrics(job, error))
        return RUN_SYSTEM;
    if (run_files_open_logs(job, error))
        return RUN_CANNOT_CREATE;
    run_bind_close(job->binding);
    job->binding = NULL;
    if (run_bind_open(&job->binding, job->options->bind, job->count, error))
        return RUN_SYSTEM;
    return run_bind_check(job->binding, error) ? RUN_ENVIRONMENT : RUN_OK;
}

static void send_started(struct run_agent *agent, int status, const struct base_error *error)
{
    json_t *pids = json_array();
    for (int i = 0; i < agent->job.running; i++)
        json_array_append_new(pids, json_integer(agent->job.ranks[i].pid));
    run_link_send(agent->link, json_pack("{s:s,s:i,s:o,s:o}", "is", "started", "status", status,
                                         "text", run_span_string(error->message), "pids", pids));
}

// Whether all that ranks have written is in their logs, which are closed now: a file system may say
// only then that it had no room.
static bool complete_logs(struct run_job *job)
{
    bool whole = true;
    run_job_close_logs(job);
    for (int i = 0; i < job->slots; i++)
        whole = whole && !job->ranks[i].log_errno;
    return whole;
}

// Starts the ranks once, and sees to them until none is left.
static void start_ranks(struct run_agent *agent)
{
    struct run_job *job = &agent->job;
    struct base_error error = {.result = ZERO_OK};
    read_start(agent, agent->start);
    enum run_status status = run_agent_find_head(agent, agent->start, &error)
                                 ? RUN_NOT_ALONE
                                 : prepare_start(job, &error);
    json_decref(agent->start);
    agent->start = NULL;
    if (!status)
        status = run_spawn(job, &error);
    send_started(agent, (int)status, &error);
    if (status) {
        job->stop.stopping = true;
        run_kill(job);
    }
    agent->areas_ns = base_clock_ns() + areas_ns;
    run_supervise(job);
    agent->areas_ns = UINT64_MAX;
    run_agent_send_areas(agent);
    run_link_send(agent->link,
                  json_pack("{s:s,s:b}", "is", "done", "logged", (int)complete_logs(job)));
}

/* ------------------------------------------------------------------ orders */

// The ranks listen at this port or at the next one. Ports that the kernel gives to callers are
// above these.
static int find_port(void)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return 0;
    const int port = LOWEST_PORT + (int)(random % PORTS);
    return run_port_is_free(port) && run_port_is_free(port + 1) ? port : 0;
}

static void send_port(struct run_agent *agent)
{
    int port = 0;
    for (int try = 0; try < PORT_TRIES && !port; try++)
        port = find_port();
    run_link_send(agent->link, json_pack("{s:s,s:i}", "is", "port", "port", port));
}

// A coordinator that is suspended says nothing.
static void pass_signal(struct run_agent *agent, int number)
{
    if (number == SIGSTOP)
        agent->link->silence_ns = 0;
    if (number == SIGCONT)
        agent->link->silence_ns = agent->silence_ns;
    if (number > 0 && number < NSIG && agent->job.running > 0)
        run_signals_send(&agent->job, number);
}

static void obey(struct run_agent *agent, const json_t *order)
{
    struct run_job *job = &agent->job;
    const int number = run_span_number(order, "number", 0);
    const int what = run_span_number(order, "order", -1);
    const bool needs_ranks = what != RUN_ORDER_BLAME && what != RUN_ORDER_LOOK;
    if (what == RUN_ORDER_SIGNAL)
        pass_signal(agent, number);
    if (!job->watch.segment || (job->running == 0 && needs_ranks))
        return;
    switch ((enum run_order)what) {
    case RUN_ORDER_ASK:
        control_stop(job->watch.segment);
        break;
    case RUN_ORDER_INSIST:
        control_insist(job->watch.segment);
        break;
    case RUN_ORDER_SIGNAL: // see above
        break;
    case RUN_ORDER_KILL:
        run_kill(job);
        break;
    case RUN_ORDER_LOOK:
        run_agent_send_areas(agent);
        break;
    case RUN_ORDER_BLAME:
        run_agent_send_records(agent);
        break;
    }
}

static void take_end(struct run_agent *agent, const json_t *words)
{
    const char *text = run_span_text(words, "text");
    agent->over = true;
    agent->status = run_span_number(words, "status", RUN_SYSTEM);
    if (*text)
        zero_fail(&agent->why, ZERO_E_INVALID, "host 0: %s", text);
}

// It is to call again.
static void take_wait(struct run_agent *agent, const json_t *words)
{
    agent->over = true;
    zero_fail(&agent->why, ZERO_AGAIN, "%s", run_span_text(words, "text"));
}

static void hear(struct run_agent *agent, json_t *object)
{
    if (run_span_is(object, "begin") && !agent->begin)
        agent->begin = json_incref(object);
    else if (run_span_is(object, "start") && agent->begun && !agent->start)
        agent->start = json_incref(object);
    else if (run_span_is(object, "port"))
        send_port(agent);
    else if (run_span_is(object, "order") && agent->begun)
        obey(agent, object);
    else if (run_span_is(object, "end"))
        take_end(agent, object);
    else if (run_span_is(object, "wait") && !agent->begin)
        take_wait(agent, object);
}

static void take_frames(struct run_agent *agent)
{
    struct run_frame frame;
    run_link_turn(agent->link);
    // What comes behind an order to start is for the ranks of that start.
    while (!agent->start && run_link_next(agent->link, &frame)) {
        if (frame.type == RUN_FRAME_CONTROL)
            hear(agent, frame.object);
        json_decref(frame.object);
    }
}

/* ------------------------------------------------------------------ the loop's */

static int poll_link(const struct run_job *job, struct pollfd *polls)
{
    run_link_poll(agent_of(job)->link, polls);
    return RUN_LINK_POLLS;
}

static uint64_t due(const struct run_job *job)
{
    const struct run_agent *agent = agent_of(job);
    const uint64_t link = run_link_due(agent->link);
    return link < agent->areas_ns ? link : agent->areas_ns;
}

// Without a coordinator the ranks are to end.
static void turn(struct run_job *job)
{
    struct run_agent *agent = agent_of(job);
    const uint64_t now = base_clock_ns();
    take_frames(agent);
    if (now >= agent->areas_ns) {
        run_agent_send_areas(agent);
        agent->areas_ns = now + areas_ns;
    }
    if (agent->link->state != RUN_LINK_ENDED)
        return;
    agent->over = true;
    if (job->running > 0)
        run_stop(job);
}

static bool full(const struct run_job *job)
{
    const struct run_link *link = agent_of(job)->link;
    return link->state == RUN_LINK_OPEN && run_link_full(link);
}

static const struct run_span_ops ops = {
    .poll = poll_link,
    .due = due,
    .turn = turn,
    .noticed = run_agent_noticed,
    .ended = run_agent_ended,
    .say = run_agent_say,
    .came = run_agent_came,
    .full = full,
};

static bool is_asked(const struct run_agent *agent)
{
    return agent->own.asked && agent->own.asked();
}

// Until it has been told what it is to do, there is no job.
static bool await_begin(struct run_agent *agent)
{
    while (!agent->begin && !is_asked(agent) && !agent->over &&
           agent->link->state != RUN_LINK_ENDED) {
        struct pollfd polls[RUN_LINK_POLLS];
        const uint64_t now = base_clock_ns(), next = run_link_due(agent->link);
        run_link_poll(agent->link, polls);
        poll(polls, RUN_LINK_POLLS, next > now ? (int)((next - now) / 1000000) % 1000 + 1 : 0);
        take_frames(agent);
    }
    if (!agent->begin && !agent->over && is_asked(agent)) {
        agent->status = RUN_STOPPED;
        zero_fail(&agent->why, ZERO_E_ABORTED,
                  "this process was asked to stop while it waited for host 0 to need it");
    }
    return agent->begin != NULL;
}

static void serve(struct run_agent *agent)
{
    struct run_job *job = &agent->job;
    while (!agent->over) {
        run_turn(job, run_turn_timeout(job));
        run_signals_take(job);
        if (agent->start && !agent->over)
            start_ranks(agent);
    }
}

int run_agent(struct run_link *link, const struct run_agent_own *own, struct base_error *why)
{
    static struct run_agent agent;
    struct base_error error = {.result = ZERO_OK};
    agent = (struct run_agent){
        .link = link, .areas_ns = UINT64_MAX, .memory_ns = UINT64_MAX, .status = RUN_SYSTEM};
    if (own)
        agent.own = *own;
    if (await_begin(&agent)) {
        const enum run_status status = begin_job(&agent, &error);
        run_agent_send_ready(&agent, (int)status, &error);
        if (!status)
            serve(&agent);
        else
            agent.status = (int)status;
    }
    if (agent.begun) {
        run_job_close_logs(&agent.job);
        run_job_free(&agent.job);
    }
    run_link_finish(link, base_clock_ns() + last_words_ns);
    *why = agent.why;
    base_free(agent.options.program);
    base_free(agent.areas);
    json_decref(agent.begin);
    json_decref(agent.start);
    return agent.status;
}

int run_agent_adopted(void)
{
    static struct run_link link;
    static const struct run_self self = {.side = RUN_SIDE_AGENT, .host = -1};
    struct base_error error = {.result = ZERO_OK};
    signal(SIGPIPE, SIG_IGN);
    if (run_link_adopt(&link, &self, &error)) {
        fprintf(stderr, "zero-run: --agent: %s\n", error.message);
        return RUN_USAGE;
    }
    const int status = run_agent(&link, NULL, &error);
    run_link_close(&link);
    return status;
}
