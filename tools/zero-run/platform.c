// A platform has started zero-run once on each host of a job: that of host 0 coordinates, and the
// others call it and are agents.

#include "tools/zero-run/platform.h"

#include "tools/zero-run/agent.h"
#include "tools/zero-run/coordinator.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/reminder.h"
#include "collectives/rendezvous/rendezvous.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How long host 0 may take to answer.
static const uint64_t calling_ns = UINT64_C(600000000000);
// How long it may take once it has told an agent to call again: when its job is over, it is gone.
static const uint64_t again_ns = UINT64_C(5000000000);

// GPUs that the ranks may use; 0: none.
static int count_gpus(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (visible) {
        for (const char *at = visible; *at; at++)
            count += *at == ',';
        return *visible && *visible != '-' ? count + 1 : 0;
    }
    // A container may have any of the host's.
    DIR *devices = opendir("/dev");
    for (struct dirent *entry; devices && (entry = readdir(devices));)
        count += !strncmp(entry->d_name, "nvidia", 6) && entry->d_name[6] >= '0' &&
                 entry->d_name[6] <= '9';
    if (devices)
        closedir(devices);
    return count;
}

int run_platform_ranks(const struct run_options *options, const struct boot_hosts *hosts,
                       const char **source)
{
    struct run_cores cores;
    const char *threads = getenv("OMP_NUM_THREADS");
    const int each = threads ? (int)strtol(threads, NULL, 10) : 1, gpus = count_gpus();
    *source = hosts->source;
    if (hosts->ranks > 0)
        return hosts->ranks;
    *source = "-n";
    if (options->far.ranks_given)
        return options->ranks;
    *source = "its GPUs";
    if (gpus > 0)
        return gpus;
    *source = "its cores, and OMP_NUM_THREADS";
    run_threads_count(&cores);
    return each > 0 && cores.count >= each ? cores.count / each : 1;
}

/* ------------------------------------------------------------------ host 0 */

// The options with the ranks of all hosts. Each host checks them: if host 0 alone did, the others
// would wait for it.
static enum run_status take_options(struct run_options *all, const struct run_options *options,
                                    const struct boot_hosts *hosts, struct base_error *error)
{
    const char *source;
    const int ranks = run_platform_ranks(options, hosts, &source);
    const bool range = options->least < options->ranks;
    const int least = range ? options->least : ranks;
    const int enough = options->far.least_hosts ? options->far.least_hosts : hosts->hosts;
    *all = *options;
    all->shown = NULL;
    if (options->trace)
        zero_fail(error, ZERO_E_INVALID, RUN_TRACE_ALONE);
    else if (hosts->hosts > RUN_HOSTS_MAX)
        zero_fail(error, ZERO_E_INVALID, "%d hosts (%s): a job has at most %d", hosts->hosts,
                  hosts->source, RUN_HOSTS_MAX);
    else if ((int64_t)ranks * hosts->hosts > BOOT_WORLD_MAX)
        zero_fail(error, ZERO_E_INVALID,
                  "%d ranks (%s) on each of %d hosts are %lld, and a job has at most %d: give each "
                  "host fewer",
                  ranks, source, hosts->hosts, (long long)ranks * hosts->hosts, BOOT_WORLD_MAX);
    else if (least > ranks)
        zero_fail(error, ZERO_E_INVALID,
                  "-n %d:%d wants at least %d ranks of each host, which has %d (%s): MIN is at "
                  "most that",
                  options->least, options->ranks, least, ranks, source);
    else
        run_options_take_ranks(all, least * enough, ranks * hosts->hosts, error);
    if (!options->far.restarts_given)
        all->restarts = (ranks - least) * hosts->hosts + hosts->hosts - enough;
    return !error->result ? RUN_OK : error->result == ZERO_E_INVALID ? RUN_USAGE : RUN_SYSTEM;
}

static zero_result list_hosts(struct run_options *all, const struct boot_hosts *hosts,
                              struct base_error *error)
{
    struct run_hosts *list = &all->far.hosts;
    list->list = base_calloc((size_t)hosts->hosts, sizeof *list->list);
    if (!list->list)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %d hosts", hosts->hosts);
    list->count = hosts->hosts;
    for (int i = 0; i < hosts->hosts; i++) {
        list->list[i].slots = all->ranks / hosts->hosts;
        snprintf(list->list[i].name, RUN_HOST_BYTES, "%d", i);
    }
    strcpy(list->list[0].name, "localhost");
    return ZERO_OK;
}

static int coordinate(struct run_options *all, const struct boot_hosts *hosts,
                      struct base_error *error)
{
    int status = RUN_SYSTEM;
    if (!*hosts->master.secret)
        fprintf(stderr,
                "zero-run: ZERO_SECRET is not set: whatever reaches port %d of this host can join "
                "the job\n",
                hosts->master.port);
    if (!list_hosts(all, hosts, error))
        status = run_coordinate(all, hosts, error);
    run_hosts_free(&all->far.hosts);
    return status;
}

/* ------------------------------------------------------------------ the others */

static void say_unanswered(void *user, double seconds, const char *why)
{
    const struct boot_hosts *hosts = user;
    fprintf(stderr, "zero-run: host %d has waited %.0f s for the zero-run of host 0: %s\n",
            hosts->host, seconds, why);
}

static volatile sig_atomic_t stop_asked;

static void ask_to_stop(int number)
{
    (void)number;
    stop_asked = 1;
}

static bool is_asked_to_stop(void)
{
    return stop_asked;
}

// The first process of a container is ended by no signal that it does not handle.
static void listen_to_signals(void)
{
    const struct sigaction stop = {.sa_handler = ask_to_stop};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
}

static void pause_again(void)
{
    for (int i = 0; i < 20 && !stop_asked; i++)
        poll(NULL, 0, 100);
}

// Calls, after host 0 has said *why this agent is to do so again if that has a result.
static zero_result call_again(struct run_link *link, const struct run_calling *calling,
                              const struct run_self *self, const struct base_error *why,
                              struct base_error *error)
{
    struct run_calling again = *calling;
    const uint64_t soon = base_clock_ns() + again_ns;
    if (!why->result)
        return run_link_call(link, calling, self, error);
    again.deadline_ns = soon < calling->deadline_ns ? soon : calling->deadline_ns;
    struct base_error last = {.result = ZERO_OK};
    const zero_result result = run_link_call(link, &again, self, &last);
    if (result == ZERO_E_TIMEOUT && again.deadline_ns < calling->deadline_ns)
        return zero_fail(error, ZERO_E_PEER, "%s; then host 0 was gone", why->message);
    *error = result == ZERO_E_TIMEOUT ? *why : last;
    return result;
}

// Is the agent of this host, as soon as host 0 takes it as such.
static int be_agent(struct run_link *link, const struct run_calling *calling,
                    const struct run_self *self, const struct run_agent_own *own,
                    struct base_error *error)
{
    struct base_reminder said = {1, 0};
    const uint64_t begun_ns = base_clock_ns();
    struct base_error why = {.result = ZERO_OK};
    int status;
    do {
        if (why.result) {
            run_link_close(link);
            pause_again();
        }
        const zero_result called = call_again(link, calling, self, &why, error);
        if (called)
            return called == ZERO_E_ABORTED ? RUN_STOPPED : RUN_NOT_ALONE;
        if (!why.result)
            fprintf(stderr, "zero-run: host %d: host 0 at port %d of %s has all output\n",
                    self->host, calling->port, *calling->addresses);
        why.result = ZERO_OK;
        status = run_agent(link, own, &why);
        if (why.result == ZERO_AGAIN && base_reminder_due(&said, base_clock_ns() - begun_ns))
            fprintf(stderr, "zero-run: host %d waits: %s\n", self->host, why.message);
    } while (why.result == ZERO_AGAIN);
    *error = why;
    return status;
}

static int call(const struct run_options *options, const struct boot_hosts *hosts,
                struct base_error *error)
{
    const uint64_t timeout_ns = (uint64_t)options->timeout_s * UINT64_C(1000000000);
    const bool short_time = timeout_ns > 0 && timeout_ns < calling_ns;
    static struct run_link link;
    const char *address = hosts->master.address;
    char job[RUN_LINK_NAME];
    snprintf(job, sizeof job, "%.*s", RUN_LINK_NAME - 1, hosts->job);
    const struct run_self self = {
        .side = RUN_SIDE_AGENT, .host = hosts->host, .job = job, .secret = hosts->master.secret};
    const struct run_calling calling = {.addresses = &address,
                                        .count = 1,
                                        .port = hosts->master.port,
                                        .deadline_ns = base_clock_ns() +
                                                       (short_time ? timeout_ns : calling_ns),
                                        .asked = is_asked_to_stop,
                                        .say = say_unanswered,
                                        .user = (void *)(uintptr_t)hosts};
    // The platform's own number of ranks comes before -n.
    const bool own_ranks = options->far.ranks_given && hosts->ranks == 0;
    const struct run_agent_own own = {.asked = is_asked_to_stop,
                                      .ranks = own_ranks ? options->ranks / hosts->hosts : 0,
                                      .hosts = hosts->hosts};
    listen_to_signals();
    int status = be_agent(&link, &calling, &self, &own, error);
    if (short_time && error->result == ZERO_E_TIMEOUT) // --timeout has passed
        status = RUN_STOPPED;
    if (status == RUN_SYSTEM && !error->result && link.end != RUN_LINK_FAREWELL)
        fprintf(stderr, "zero-run: host %d: host 0 at port %d of %s: %s\n", hosts->host,
                hosts->master.port, hosts->master.address, link.why.message);
    else if (status && !error->result)
        fprintf(stderr, "zero-run: host %d: the job has ended with status %d; host 0 says why\n",
                hosts->host, status);
    run_link_close(&link);
    return status;
}

int run_platform(const struct run_options *options, const struct boot_hosts *hosts,
                 struct base_error *error)
{
    struct run_options all;
    int status = (int)take_options(&all, options, hosts, error);
    if (!status)
        status = hosts->host == 0 ? coordinate(&all, hosts, error) : call(&all, hosts, error);
    base_free(all.shown);
    return status;
}
