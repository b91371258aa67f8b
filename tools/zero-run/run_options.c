#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "collectives/control/control.h"
#include "collectives/rendezvous/rendezvous.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RESTARTS = 10000 };

enum long_option {
    OPTION_BIND = 256,
    OPTION_LOG_DIR,
    OPTION_METRICS,
    OPTION_PREFIX,
    OPTION_COLOR,
    OPTION_PTY,
    OPTION_ONLY,
    OPTION_TIMEOUT,
    OPTION_GRACE,
    OPTION_STOP_SIGNAL,
    OPTION_MAX_RESTARTS,
    OPTION_BACKOFF,
    OPTION_STATUS,
    OPTION_TRACE,
    OPTION_PLAN,
    OPTION_PROBE,
    OPTION_WORLD,
    OPTION_EXPLAIN,
    OPTION_VERSION,
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, 'n'},
    {"bind", required_argument, NULL, OPTION_BIND},
    {"log-dir", required_argument, NULL, OPTION_LOG_DIR},
    {"metrics", required_argument, NULL, OPTION_METRICS},
    {"prefix", required_argument, NULL, OPTION_PREFIX},
    {"color", required_argument, NULL, OPTION_COLOR},
    {"pty", required_argument, NULL, OPTION_PTY},
    {"only", required_argument, NULL, OPTION_ONLY},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"grace", required_argument, NULL, OPTION_GRACE},
    {"stop-signal", required_argument, NULL, OPTION_STOP_SIGNAL},
    {"max-restarts", required_argument, NULL, OPTION_MAX_RESTARTS},
    {"backoff", required_argument, NULL, OPTION_BACKOFF},
    {"status", required_argument, NULL, OPTION_STATUS},
    {"trace", required_argument, NULL, OPTION_TRACE},
    {"plan", optional_argument, NULL, OPTION_PLAN},
    {"probe", no_argument, NULL, OPTION_PROBE},
    {"world", required_argument, NULL, OPTION_WORLD},
    {"explain", no_argument, NULL, OPTION_EXPLAIN},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static zero_result parse_number(const char *option, const char *text, int min, int max, int *number,
                                struct base_error *error)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < min || value > max)
        return zero_fail(error, ZERO_E_INVALID, "%s takes a number from %d to %d, not '%.60s'",
                         option, min, max, text);
    *number = (int)value;
    return ZERO_OK;
}

// RANKS, or MIN:MAX.
static zero_result parse_ranks(struct run_options *options, const char *text,
                               struct base_error *error)
{
    char least[8] = "";
    const char *colon = strchr(text, ':');
    if (!colon) {
        const zero_result result =
            parse_number("-n", text, 1, BOOT_WORLD_MAX, &options->ranks, error);
        options->least = options->ranks;
        return result;
    }
    struct base_error part = {.result = ZERO_OK};
    const size_t length = (size_t)(colon - text);
    if (length < sizeof least)
        memcpy(least, text, length);
    if (parse_number("-n", least, 1, BOOT_WORLD_MAX, &options->least, &part) ||
        parse_number("-n", colon + 1, 1, BOOT_WORLD_MAX, &options->ranks, &part) ||
        options->least > options->ranks)
        return zero_fail(error, ZERO_E_INVALID,
                         "-n takes a number of ranks, or MIN:MAX, from 1 to %d, not '%.60s'",
                         BOOT_WORLD_MAX, text);
    return ZERO_OK;
}

// A time of at least `min` seconds: digits, and perhaps a unit.
static zero_result parse_time(const char *option, const char *text, int min, int *seconds,
                              struct base_error *error)
{
    static const char units[] = "smhd";
    static const int unit_s[] = {1, 60, 3600, 86400};
    const long most = 365L * 86400;
    char *end;
    errno = 0;
    const long count = strtol(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : units;
    const bool good = *text >= '0' && *text <= '9' && !errno && unit && (!*end || !end[1]);
    const long scale = good ? unit_s[unit - units] : 1;
    if (!good || count > most / scale || count * scale < min)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s takes a time such as 90, 90s, 15m or 2h, from %d s to 365d, not "
                         "'%.60s'",
                         option, min, text);
    *seconds = (int)(count * scale);
    return ZERO_OK;
}

// The index of `text` in `choices`, a list with a NULL at the end.
static zero_result parse_choice(const char *option, const char *text, const char *const *choices,
                                const char *shown, int *index, struct base_error *error)
{
    for (*index = 0; choices[*index]; ++*index)
        if (!strcmp(choices[*index], text))
            return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID, "%s takes %s, not '%.60s'", option, shown, text);
}

static zero_result parse_when(const char *option, const char *text, enum run_when *when,
                              struct base_error *error)
{
    static const char *const choices[] = {"auto", "always", "never", NULL};
    int index = 0;
    const zero_result result =
        parse_choice(option, text, choices, "auto, always or never", &index, error);
    *when = (enum run_when)index;
    return result;
}

static zero_result add_setting(struct run_options *options, const char *setting,
                               struct base_error *error)
{
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

// What is about zero-run's own output.
static zero_result parse_shown(struct run_options *options, int option, const char *argument,
                               struct base_error *error)
{
    switch (option) {
    case OPTION_PREFIX:
        return parse_when("--prefix", argument, &options->prefix, error);
    case OPTION_COLOR:
        return parse_when("--color", argument, &options->color, error);
    case OPTION_PTY:
        return parse_when("--pty", argument, &options->pty, error);
    case OPTION_ONLY:
        options->only = argument;
        break;
    case OPTION_STATUS:
        options->status = strcmp(argument, "off") ? RUN_ALWAYS : RUN_NEVER;
        if (options->status == RUN_ALWAYS)
            return parse_time("--status", argument, 1, &options->status_s, error);
        break;
    }
    return ZERO_OK;
}

static zero_result parse_option(struct run_options *options, int option, const char *argument,
                                struct base_error *error)
{
    static const char *const binds[] = {"none", "core", "numa", "auto", NULL};
    static const char *const plans[] = {"text", "json", NULL};
    int index = 0;
    zero_result result = ZERO_OK;
    switch (option) {
    case 'n':
        result = parse_ranks(options, argument, error);
        options->plan_here = options->ranks;
        break;
    case 'o':
        return add_setting(options, argument, error);
    case 'h':
        options->help = true;
        break;
    case OPTION_BIND:
        result = parse_choice("--bind", argument, binds, "none, core, numa or auto", &index, error);
        options->bind = (enum run_bind)index;
        break;
    case OPTION_LOG_DIR:
        options->log_dir = argument;
        break;
    case OPTION_METRICS:
        options->metrics = argument;
        break;
    case OPTION_TIMEOUT:
        return parse_time("--timeout", argument, 1, &options->timeout_s, error);
    case OPTION_GRACE:
        return parse_time("--grace", argument, 0, &options->grace_s, error);
    case OPTION_STOP_SIGNAL:
        return control_read_signals(&options->stop_signals, argument, "--stop-signal", error);
    case OPTION_MAX_RESTARTS:
        return parse_number("--max-restarts", argument, 0, MOST_RESTARTS, &options->restarts,
                            error);
    case OPTION_BACKOFF:
        return parse_time("--backoff", argument, 0, &options->backoff_s, error);
    case OPTION_TRACE:
        options->trace = argument;
        break;
    case OPTION_PLAN:
        options->plan = true;
        result = parse_choice("--plan", argument ? argument : "text", plans, "text or json", &index,
                              error);
        options->plan_json = index == 1;
        break;
    case OPTION_PROBE:
        options->plan_probe = true;
        break;
    case OPTION_WORLD:
        return parse_number("--world", argument, 1, BOOT_WORLD_MAX, &options->plan_world, error);
    case OPTION_EXPLAIN:
        options->explain = true;
        break;
    case OPTION_VERSION:
        options->version = true;
        break;
    default:
        return parse_shown(options, option, argument, error);
    }
    return result;
}

// Whatever is about restarts needs some.
static zero_result check_restarts(struct run_options *options, struct base_error *error)
{
    const bool range = options->least < options->ranks, given = options->restarts >= 0;
    if (options->plan && (range || given))
        return zero_fail(error, ZERO_E_INVALID, "--plan restarts nothing, so %s has no effect",
                         range ? "MIN of -n" : "--max-restarts");
    if (!given)
        options->restarts = options->ranks - options->least;
    if (range && options->restarts == 0)
        return zero_fail(error, ZERO_E_INVALID,
                         "--max-restarts 0 restarts nothing, so MIN of -n has no effect");
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
    if (options->plan_here > options->plan_world)
        return zero_fail(error, ZERO_E_INVALID,
                         "-n %d: so many ranks of this host, but --world %d in all",
                         options->plan_here, options->plan_world);
    return ZERO_OK;
}

// Whose output is shown: known when -n is.
static zero_result check_only(struct run_options *options, struct base_error *error)
{
    if (!options->only)
        return ZERO_OK;
    if (options->plan || options->explain)
        return zero_fail(error, ZERO_E_INVALID, "%s starts no ranks, so --only has no effect",
                         options->plan ? "--plan" : "--explain");
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
    zero_result result = check_world(options, error);
    if (!result)
        result = check_restarts(options, error);
    return result ? result : check_only(options, error);
}

zero_result run_options_parse(struct run_options *options, int argc, char **argv,
                              struct base_error *error)
{
    *options = (struct run_options){
        .ranks = 1, .least = 1, .restarts = -1, .backoff_s = -1, .grace_s = 30, .status_s = 30};
    const char *signals = getenv(CONTROL_STOP_VARIABLE);
    zero_result result = ZERO_OK;
    int option;
    opterr = 0;
    sigemptyset(&options->stop_signals);
    if (signals && *signals)
        result =
            control_read_signals(&options->stop_signals, signals, CONTROL_STOP_VARIABLE, error);
    // '+': options end at the program; ':': a missing argument is told from an unknown option.
    while (!result && (option = getopt_long(argc, argv, "+:n:o:h", long_options, NULL)) != -1) {
        const char *given = argv[optind - 1];
        if (option == ':')
            result = zero_fail(error, ZERO_E_INVALID, "%.60s needs a value", given);
        else if (option == '?' && optopt && optopt < 256 && strncmp(given, "--", 2) != 0)
            result = zero_fail(error, ZERO_E_INVALID, "unknown option -%c", optopt);
        else if (option == '?')
            result = zero_fail(error, ZERO_E_INVALID, "unknown option %.60s%s", given,
                               optopt ? " (it takes no value)" : "");
        else
            result = parse_option(options, option, optarg, error);
    }
    options->program = argv + optind;
    return result ? result : check(options, error);
}

void run_options_free(struct run_options *options)
{
    base_free(options->settings);
    base_free(options->shown);
    options->settings = NULL;
    options->shown = NULL;
}
