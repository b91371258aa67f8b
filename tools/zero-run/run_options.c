#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "collectives/control/control.h"
#include "collectives/rendezvous/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RESTARTS = 10000 };

/** A number, or a range "MIN:MAX" of them. */
struct range {
    const char *option, *of; /**< what it counts */
    int limit;
    int least, most; /**< the same number twice, unless it is a range */
};

static zero_result read_range(struct range *range, const char *text, struct base_error *error)
{
    char least[8] = "";
    const char *colon = strchr(text, ':');
    struct base_error part = {.result = ZERO_OK};
    const size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon) {
        const zero_result result =
            option_number(range->option, text, 1, range->limit, &range->most, error);
        range->least = range->most;
        return result;
    }
    if (length < sizeof least)
        memcpy(least, text, length);
    if (option_number(range->option, least, 1, range->limit, &range->least, &part) ||
        option_number(range->option, colon + 1, 1, range->limit, &range->most, &part))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s takes a number of %s, or MIN:MAX, from 1 to %d, not '%.60s'",
                         range->option, range->of, range->limit, text);
    if (range->least > range->most)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s takes a number of %s, or MIN:MAX, from 1 to %d, not '%.60s': MIN is "
                         "more than MAX",
                         range->option, range->of, range->limit, text);
    return ZERO_OK;
}

static zero_result read_ranks(void *into, const char *text, struct base_error *error)
{
    struct run_options *options = into;
    struct range range = {.option = "-n", .of = "ranks", .limit = BOOT_WORLD_MAX};
    const zero_result result = read_range(&range, text, error);
    options->far.ranks_given = true;
    options->least = range.least;
    options->ranks = options->plan_here = range.most;
    return result;
}

static zero_result read_nodes(void *into, const char *text, struct base_error *error)
{
    struct run_options *options = into;
    struct range range = {.option = "--nodes", .of = "hosts", .limit = RUN_HOSTS_MAX};
    const zero_result result = read_range(&range, text, error);
    options->far.given.hosts = range.most;
    options->far.least_hosts = range.least < range.most ? range.least : 0;
    return result;
}

static zero_result add_setting(void *into, const char *setting, struct base_error *error)
{
    struct run_options *options = into;
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting || strchr(setting, '\n'))
        return zero_fail(error, ZERO_E_INVALID, "-o takes key=value, not '%.60s'", setting);
    const size_t old = options->settings ? strlen(options->settings) : 0;
    char *grown = base_calloc(old + strlen(setting) + 2, 1);
    if (!grown)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the options");
    if (old) {
        memcpy(grown, options->settings, old);
        grown[old] = '\n';
    }
    strcpy(grown + old + (old > 0), setting);
    base_free(options->settings);
    options->settings = grown;
    return ZERO_OK;
}

// NAME=VALUE, or NAME: as it is here.
static zero_result add_export(void *into, const char *text, struct base_error *error)
{
    struct run_options *options = into;
    const bool has_value = strchr(text, '=') != NULL;
    const char *value = has_value ? "" : getenv(text);
    if (*text == '=' || !*text)
        return zero_fail(error, ZERO_E_INVALID, "-x takes NAME or NAME=VALUE, not '%.60s'", text);
    if (!value)
        return zero_fail(error, ZERO_E_INVALID, "-x %.60s: there is no such variable", text);
    char **grown = base_calloc((size_t)options->far.exported + 1, sizeof *grown);
    char *entry = base_calloc(strlen(text) + strlen(value) + 2, 1);
    if (!grown || !entry) {
        base_free(grown);
        base_free(entry);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the options");
    }
    sprintf(entry, "%s%s%s", text, has_value ? "" : "=", value);
    if (options->far.exported)
        memcpy(grown, options->far.exports, (size_t)options->far.exported * sizeof *grown);
    grown[options->far.exported++] = entry;
    base_free(options->far.exports);
    options->far.exports = grown;
    return ZERO_OK;
}

static zero_result add_stop_signals(void *into, const char *list, struct base_error *error)
{
    struct run_options *options = into;
    return control_read_signals(&options->stop_signals, list, "--stop-signal", error);
}

static zero_result read_status(void *into, const char *text, struct base_error *error)
{
    struct run_options *options = into;
    options->status = OPTION_NEVER;
    if (!strcmp(text, "off"))
        return ZERO_OK;
    options->status = OPTION_ALWAYS;
    return option_time("--status", text, 1, &options->status_s, error);
}

#define AT(member) offsetof(struct run_options, member)

static const struct option_row rows[] = {
    {"-o", 'o', .kind = OPTION_CALL, .read = add_setting},
    {"--hosts", .kind = OPTION_TEXT, .field = AT(far.host_list)},
    {"--hostfile", .kind = OPTION_TEXT, .field = AT(far.host_file)},
    {"--rsh", .kind = OPTION_TEXT, .field = AT(far.rsh)},
    {"--nodes", .kind = OPTION_CALL, .read = read_nodes},
    {"--master", .kind = OPTION_TEXT, .field = AT(far.given.master)},
    {"-x", 'x', .kind = OPTION_CALL, .read = add_export},
    {"--agent-timeout", .kind = OPTION_TIME, .field = AT(far.agent_timeout_s), .least = 1},
    {"--ranks", 'n', .kind = OPTION_CALL, .read = read_ranks},
    {"--bind", .kind = OPTION_CHOICE, .field = AT(bind), .choices = "none, core, numa or auto"},
    {"--log-dir", .kind = OPTION_TEXT, .field = AT(log_dir)},
    {"--metrics", .kind = OPTION_TEXT, .field = AT(metrics)},
    {"--prefix", .kind = OPTION_CHOICE, .field = AT(prefix), .choices = OPTION_WHEN},
    {"--color", .kind = OPTION_CHOICE, .field = AT(color), .choices = OPTION_WHEN},
    {"--pty", .kind = OPTION_CHOICE, .field = AT(pty), .choices = OPTION_WHEN},
    {"--only", .kind = OPTION_TEXT, .field = AT(only)},
    {"--timeout", .kind = OPTION_TIME, .field = AT(timeout_s), .least = 1},
    {"--grace", .kind = OPTION_TIME, .field = AT(grace_s)},
    {"--stop-signal", .kind = OPTION_CALL, .read = add_stop_signals},
    {"--max-restarts", .kind = OPTION_NUMBER, .field = AT(restarts), .most = MOST_RESTARTS},
    {"--backoff", .kind = OPTION_TIME, .field = AT(backoff_s)},
    {"--status", .kind = OPTION_CALL, .read = read_status},
    {"--trace", .kind = OPTION_TEXT, .field = AT(trace)},
    {"--plan", .kind = OPTION_CHOICE, .field = AT(plan_json), .choices = "text or json",
     .optional = true, .flag = AT(plan)},
    {"--probe", .flag = AT(plan_probe)},
    {"--world", .kind = OPTION_NUMBER, .field = AT(plan_world), .least = 1, .most = BOOT_WORLD_MAX},
    {"--explain", .flag = AT(explain)},
    {"--version", .flag = AT(version)},
    {"--help", 'h', .flag = AT(help)},
    {.name = NULL},
};

// Ranks of hosts that say none: their share of -n, or one.
static void fill_slots(struct run_options *options)
{
    struct run_hosts *hosts = &options->far.hosts;
    int said = 0, open = 0;
    for (int i = 0; i < hosts->count; i++) {
        said += hosts->list[i].slots;
        open += hosts->list[i].slots == 0;
    }
    const int left = options->far.ranks_given && options->ranks > said ? options->ranks - said : 0;
    for (int i = 0, number = 0; i < hosts->count; i++)
        if (hosts->list[i].slots == 0) {
            const int share = open ? left / open + (number++ < left % open) : 0;
            hosts->list[i].slots = share > 0 ? share : 1;
        }
}

// How many ranks a plan has on the hosts with the most and the fewest: they are dealt in order.
static void plan_hosts(struct run_options *options)
{
    const struct run_hosts *hosts = &options->far.hosts;
    const bool dealt = !options->plan_world;
    int left = options->ranks;
    options->plan_world = dealt ? options->ranks : options->plan_world;
    options->plan_here = options->plan_least = 0;
    for (int i = 0; i < hosts->count; i++) {
        const int slots = hosts->list[i].slots, ranks = dealt && left < slots ? left : slots;
        left -= ranks;
        if (ranks > options->plan_here)
            options->plan_here = ranks;
        if (ranks > 0 && (options->plan_least == 0 || ranks < options->plan_least))
            options->plan_least = ranks;
    }
    if (!dealt)
        options->plan_least = options->plan_here;
}

// Whether a word that stands where the program's name should is one more host, as "b:4".
static bool is_more_hosts(const char *word)
{
    const char *colon = strrchr(word, ':');
    return colon && colon > word && colon[1] && !strchr(word, '/') &&
           colon[1 + strspn(colon + 1, "0123456789")] == '\0';
}

// The hosts, and how many ranks they have room for.
static zero_result check_hosts(struct run_options *options, struct base_error *error)
{
    struct run_hosts *hosts = &options->far.hosts;
    zero_result result = ZERO_OK;
    int room = 0;
    if (options->far.host_list && options->far.host_file)
        return zero_fail(error, ZERO_E_INVALID, "--hosts and --hostfile both say the hosts");
    const bool listed = options->far.host_list || options->far.host_file;
    if (listed && (options->far.given.hosts || options->far.given.master))
        return zero_fail(error, ZERO_E_INVALID,
                         "--hosts and --hostfile list all hosts: --nodes and --master are for "
                         "platforms that start zero-run on each");
    if ((!listed || options->plan) && options->plan_here > BOOT_HOST_RANKS_MAX)
        return zero_fail(error, ZERO_E_INVALID, "-n %d: a host has at most %d ranks",
                         options->plan_here, BOOT_HOST_RANKS_MAX);
    if (!listed)
        return options->far.rsh ? zero_fail(error, ZERO_E_INVALID, "--rsh is for --hosts only")
                                : ZERO_OK;
    if (options->far.host_list && *options->program && is_more_hosts(*options->program))
        return zero_fail(error, ZERO_E_INVALID, "--hosts takes one list: %.200s,%.100s",
                         options->far.host_list, *options->program);
    result = options->far.host_list ? run_hosts_parse(hosts, options->far.host_list, error)
                                    : run_hosts_read(hosts, options->far.host_file, error);
    if (result)
        return result == ZERO_E_NOMEM ? result : ZERO_E_INVALID;
    fill_slots(options);
    for (int i = 0; i < hosts->count; i++)
        room += hosts->list[i].slots;
    if (room > BOOT_WORLD_MAX || (options->far.ranks_given && options->ranks > room))
        return zero_fail(error, ZERO_E_INVALID,
                         "the hosts have room for %d ranks, not for %d: --hosts a:N says how many "
                         "a host has",
                         room, room > BOOT_WORLD_MAX ? BOOT_WORLD_MAX : options->ranks);
    if (options->trace)
        return zero_fail(error, ZERO_E_INVALID, RUN_TRACE_ALONE);
    if (!options->far.ranks_given)
        options->ranks = options->least = room;
    options->plan_here = options->ranks;
    if (options->plan)
        plan_hosts(options);
    return ZERO_OK;
}

// Whatever is about restarts needs some.
static zero_result check_restarts(struct run_options *options, struct base_error *error)
{
    const int fewer_hosts =
        options->far.least_hosts ? options->far.given.hosts - options->far.least_hosts : 0;
    const bool range = options->least < options->ranks, given = options->restarts >= 0;
    const char *what = range ? "MIN of -n" : fewer_hosts ? "MIN of --nodes" : NULL;
    if (options->plan && (what || given))
        return zero_fail(error, ZERO_E_INVALID, "--plan restarts nothing, so %s has no effect",
                         what ? what : "--max-restarts");
    options->far.restarts_given = given;
    if (!given)
        options->restarts = options->ranks - options->least + fewer_hosts;
    if (what && options->restarts == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "--max-restarts 0 restarts nothing, so %s has no effect", what);
    if (options->backoff_s >= 0 && options->restarts == 0)
        return zero_fail(error, ZERO_E_INVALID, "--backoff is for --max-restarts only");
    if (options->backoff_s < 0)
        options->backoff_s = 1;
    return ZERO_OK;
}

// What a plan is for: the ranks that would be started, or some of more.
static zero_result check_world(struct run_options *options, struct base_error *error)
{
    if (options->plan_world && !options->plan)
        return zero_fail(error, ZERO_E_INVALID, "--world is for --plan only");
    if (options->plan_probe && !options->plan)
        return zero_fail(error, ZERO_E_INVALID, "--probe is for --plan only");
    if (!options->plan_world)
        options->plan_world = options->ranks;
    if (!options->plan_here)
        options->plan_here = options->plan_world;
    if (!options->plan_least)
        options->plan_least = options->plan_here;
    if (options->plan_here > options->plan_world)
        return zero_fail(error, ZERO_E_INVALID,
                         "-n %d: so many ranks of this host, but --world %d in all",
                         options->plan_here, options->plan_world);
    return ZERO_OK;
}

zero_result run_options_take_ranks(struct run_options *options, int least, int ranks,
                                   struct base_error *error)
{
    options->ranks = ranks;
    options->least = least;
    base_free(options->shown);
    options->shown = NULL;
    if (!options->only)
        return ZERO_OK;
    options->shown = base_calloc((size_t)options->ranks, sizeof *options->shown);
    if (!options->shown)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for --only");
    return run_only_parse(options->only, options->ranks, options->shown, error);
}

static zero_result check(struct run_options *options, struct base_error *error)
{
    if (options->help || options->version)
        return ZERO_OK;
    if (options->plan && options->metrics)
        return zero_fail(error, ZERO_E_INVALID, "--plan runs no step, so --metrics has no effect");
    if (options->plan && options->trace)
        return zero_fail(error, ZERO_E_INVALID, "--plan runs no step, so --trace has no effect");
    if (options->explain && *options->program)
        return zero_fail(error, ZERO_E_INVALID, "--explain starts nothing, but there is a program");
    if (!options->explain && !*options->program)
        return zero_fail(error, ZERO_E_INVALID, "no program given");
    if (options->only && (options->plan || options->explain))
        return zero_fail(error, ZERO_E_INVALID, "%s starts no ranks, so --only has no effect",
                         options->plan ? "--plan" : "--explain");
    zero_result result = check_hosts(options, error);
    if (!result)
        result = check_world(options, error);
    return result ? result : check_restarts(options, error);
}

zero_result run_options_parse(struct run_options *options, int argc, char **argv,
                              struct base_error *error)
{
    *options = (struct run_options){.ranks = 1,
                                    .least = 1,
                                    .restarts = -1,
                                    .backoff_s = -1,
                                    .grace_s = 30,
                                    .status_s = 30,
                                    .far.agent_timeout_s = 30};
    const char *signals = getenv(CONTROL_STOP_VARIABLE);
    zero_result result = ZERO_OK;
    sigemptyset(&options->stop_signals);
    if (signals && *signals)
        result =
            control_read_signals(&options->stop_signals, signals, CONTROL_STOP_VARIABLE, error);
    if (!result)
        result = option_parse(rows, false, options, NULL, argc, argv, error);
    options->program = argv + optind;
    return result ? result : check(options, error);
}

void run_options_free(struct run_options *options)
{
    base_free(options->settings);
    base_free(options->shown);
    run_hosts_free(&options->far.hosts);
    for (int i = 0; i < options->far.exported; i++)
        base_free(options->far.exports[i]);
    base_free(options->far.exports);
    options->settings = NULL;
    options->shown = NULL;
}
