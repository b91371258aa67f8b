// A platform has started zero-run once on each host of a job: that of host 0 coordinates, and the
// others call it and are agents.

#include "tools/zero-run/platform.h"

#include "tools/zero-run/agent.h"
#include "tools/zero-run/coordinator.h"

#include "base/arena.h"
#include "base/clock.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How long host 0 may take to answer.
static const uint64_t calling_ns = UINT64_C(600000000000);

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

static int coordinate(const struct run_options *options, const struct boot_hosts *hosts,
                      struct base_error *error)
{
    const char *source;
    const int ranks = run_platform_ranks(options, hosts, &source);
    struct run_options all = *options;
    struct run_hosts *list = &all.far.hosts;
    if (options->trace) {
        zero_fail(error, ZERO_E_INVALID, "--trace is for a job of one host");
        return RUN_USAGE;
    }
    if (!*hosts->master.secret)
        fprintf(stderr,
                "zero-run: ZERO_SECRET is not set: whatever reaches port %d of this host can join "
                "the job\n",
                hosts->master.port);
    list->list = base_calloc((size_t)hosts->hosts, sizeof *list->list);
    if (!list->list) {
        zero_fail(error, ZERO_E_NOMEM, "no memory for %d hosts", hosts->hosts);
        return RUN_SYSTEM;
    }
    list->count = hosts->hosts;
    for (int i = 0; i < hosts->hosts; i++) {
        list->list[i].slots = ranks;
        snprintf(list->list[i].name, RUN_HOST_BYTES, "%d", i);
    }
    strcpy(list->list[0].name, "localhost");
    const int least = options->least < options->ranks ? options->least : ranks;
    all.shown = NULL;
    int status = RUN_USAGE;
    if (!run_options_take_ranks(&all, least * hosts->hosts, ranks * hosts->hosts, error))
        status = run_coordinate(&all, hosts, error);
    base_free(all.shown);
    run_hosts_free(list);
    return status;
}

/* ------------------------------------------------------------------ the others */

static void say_unanswered(void *user, double seconds, const char *why)
{
    const struct boot_hosts *hosts = user;
    fprintf(stderr, "zero-run: host %d has waited %.0f s for host 0 at port %d of %s: %s\n",
            hosts->host, seconds, hosts->master.port, hosts->master.address, why);
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

static int call(const struct boot_hosts *hosts, struct base_error *error)
{
    static struct run_link link;
    const char *address = hosts->master.address;
    char job[RUN_LINK_NAME];
    snprintf(job, sizeof job, "%.*s", RUN_LINK_NAME - 1, hosts->job);
    const struct run_self self = {
        .side = RUN_SIDE_AGENT, .host = hosts->host, .job = job, .secret = hosts->master.secret};
    const struct run_calling calling = {.addresses = &address,
                                        .count = 1,
                                        .port = hosts->master.port,
                                        .deadline_ns = base_clock_ns() + calling_ns,
                                        .asked = is_asked_to_stop,
                                        .say = say_unanswered,
                                        .user = (void *)(uintptr_t)hosts};
    // The first process of a container is ended by no signal that it does not handle.
    const struct sigaction stop = {.sa_handler = ask_to_stop};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    const zero_result called = run_link_call(&link, &calling, &self, error);
    if (called)
        return called == ZERO_E_ABORTED ? RUN_STOPPED : RUN_NOT_ALONE;
    const int status = run_agent(&link);
    if (status == RUN_SYSTEM && link.end != RUN_LINK_FAREWELL)
        fprintf(stderr, "zero-run: host %d: host 0 at port %d of %s: %s\n", hosts->host,
                hosts->master.port, hosts->master.address, link.why.message);
    run_link_close(&link);
    return status;
}

int run_platform(const struct run_options *options, const struct boot_hosts *hosts,
                 struct base_error *error)
{
    return hosts->host == 0 ? coordinate(options, hosts, error) : call(hosts, error);
}
