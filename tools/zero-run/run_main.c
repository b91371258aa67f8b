#include "tools/zero-run/agent.h"
#include "tools/zero-run/coordinator.h"
#include "tools/zero-run/platform.h"

#include "collectives/rendezvous/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum run_status complain(enum run_status status, struct base_error *error)
{
    fprintf(stderr, "zero-run: %s%s\n", error->message,
            status == RUN_USAGE ? " (see zero-run --help)" : "");
    return status;
}

static enum run_status print(const char *text)
{
    return fputs(text, stdout) >= 0 && fflush(stdout) == 0 ? RUN_OK : RUN_OUTPUT;
}

// Which ranks the hosts of a list get.
static void explain_list(const struct run_options *options, struct base_text *text)
{
    const struct run_hosts *hosts = &options->far.hosts;
    int first = 0;
    for (int i = 0; i < hosts->count; i++) {
        const struct run_host *host = &hosts->list[i];
        const int left = options->ranks - first;
        const int count = host->slots < left ? host->slots : left;
        base_text_add(text, "host         %s: ", host->name);
        if (count > 1)
            base_text_add(text, "ranks %d to %d, ", first, first + count - 1);
        else if (count == 1)
            base_text_add(text, "rank %d, ", first);
        else
            base_text_add(text, "no ranks, ");
        if (run_shell_is_here(host))
            base_text_add(text, "this machine\n");
        else
            base_text_add(text, "by %.100s\n", options->far.rsh ? options->far.rsh : "ssh");
        first += count;
    }
}

// Ranks that this process would start here.
static int count_here(const struct run_options *options)
{
    const struct run_hosts *hosts = &options->far.hosts;
    for (int i = 0; i < hosts->count; i++)
        if (run_shell_is_here(&hosts->list[i]))
            return hosts->list[i].slots;
    return hosts->count > 0 ? hosts->list[0].slots : options->ranks;
}

static enum run_status explain(const struct run_options *options)
{
    static char bytes[1 << 20];
    struct base_text text = {bytes, sizeof bytes, 0};
    struct base_error error = {.result = ZERO_OK}, bind_error = {.result = ZERO_OK};
    struct run_binding *binding;
    boot_explain(&options->far.given, environ, bytes, sizeof bytes);
    text.used = strlen(bytes);
    static struct boot_hosts hosts;
    const bool may = boot_find_hosts(&hosts, &options->far.given, environ, &error) == ZERO_OK;
    base_text_add(
        &text, "zero-run     %s%s\n",
        may ? "may start ranks here" : "may not start ranks here: ", may ? "" : error.message);
    if (may && hosts.hosts > 1) {
        const char *source;
        const int each = run_platform_ranks(options, &hosts, &source);
        base_text_add(&text, "ranks        %d on each of %d hosts, from %s\n", each, hosts.hosts,
                      source);
        if (options->far.least_hosts)
            base_text_add(&text, "hosts        %d are enough after a loss, from --nodes\n",
                          options->far.least_hosts);
    }
    explain_list(options, &text);
    const int here = count_here(options);
    const zero_result bound = run_bind_open(&binding, options->bind, here, &bind_error);
    if (!bound && options->bind != RUN_BIND_NONE)
        run_bind_explain(binding, &text);
    struct run_cores cores;
    run_threads_count(&cores);
    base_text_add(&text, "threads      ");
    run_threads_text(&cores, binding, here, &text);
    base_text_add(&text, "\n");
    run_bind_close(binding);
    enum run_status status = print(bytes);
    if (bound)
        status = complain(RUN_SYSTEM, &bind_error);
    return status ? status : error.result == ZERO_E_INVALID ? RUN_ENVIRONMENT : RUN_OK;
}

// Closed standard descriptors are opened in the wrong direction: using them fails as before, and
// none of zero-run's own gets their number.
static zero_result occupy_standard(struct base_error *error)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return zero_fail_errno(error, ZERO_E_IO, errno, "cannot open '/dev/null'");
    return ZERO_OK;
}

// A job whose hosts are known: this one, or those of the command line.
static int run_here(struct run_options *options, const struct boot_hosts *hosts,
                    struct base_error *error)
{
    const bool said = hosts->ranks > 0 && !options->far.ranks_given;
    const zero_result result = run_options_take_ranks(options, said ? hosts->ranks : options->least,
                                                      said ? hosts->ranks : options->ranks, error);
    if (result)
        return result == ZERO_E_INVALID ? RUN_USAGE : RUN_SYSTEM;
    for (int i = 0; i < options->far.exported && options->far.hosts.count == 0; i++)
        putenv(options->far.exports[i]);
    return options->far.hosts.count > 0 && !options->plan ? run_coordinate(options, NULL, error)
                                                          : run_job(options, error);
}

static int run_wanted(struct run_options *options, struct base_error *error)
{
    static struct boot_hosts hosts;
    const bool platform = options->far.hosts.count == 0 && !options->plan;
    const zero_result result = platform
                                   ? boot_find_hosts(&hosts, &options->far.given, environ, error)
                                   : boot_check_alone(environ, error);
    if (result)
        return (int)complain(result == ZERO_E_UNSUPPORTED ? RUN_NOT_ALONE : RUN_ENVIRONMENT, error);
    const int status = platform && hosts.hosts > 1 ? run_platform(options, &hosts, error)
                                                   : run_here(options, &hosts, error);
    if (error->result)
        complain((enum run_status)status, error);
    return status;
}

int main(int argc, char **argv)
{
    struct base_error error = {.result = ZERO_OK};
    struct run_options options = {.settings = NULL};
    int status = RUN_OK;
    zero_result result = occupy_standard(&error);
    if (!result && argc == 2 && !strcmp(argv[1], "--agent"))
        return run_agent_adopted();
    if (!result)
        result = run_options_parse(&options, argc, argv, &error);
    if (result)
        status = (int)complain(result == ZERO_E_INVALID ? RUN_USAGE : RUN_SYSTEM, &error);
    else if (options.help)
        status = (int)print(run_help);
    else if (options.version)
        status = (int)print("zero-run " ZERO_VERSION "\n");
    else if (options.explain)
        status = (int)explain(&options);
    else
        status = run_wanted(&options, &error);
    run_options_free(&options);
    return status;
}
