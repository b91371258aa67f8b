#include "collectives/run/run.h"

#include "base/arena.h"
#include "collectives/boot/boot.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

const char run_help[] =
    "usage: zero-run [options] [--] program [arguments]\n"
    "\n"
    "Starts the ranks of a job on this host, puts their number before each line they write, and\n"
    "when one fails says which and why, stops the others and exits with its status.\n"
    "\n"
    "  -n, --ranks N         ranks to start (1)\n"
    "  -o KEY=VALUE          set a key of the library's configuration; wins over the program and\n"
    "                        over ZERO_<KEY>; may be repeated\n"
    "      --bind core|none  core: rank i may use its share of the allowed CPUs only (none)\n"
    "      --log-dir DIR     write what each rank writes to DIR/rank-<number>.log too\n"
    "      --metrics FILE    rank 0 writes a JSON object a step to FILE\n"
    "      --prefix WHEN     \"[rank] \" before each line: always, never, auto: if there are\n"
    "                        several ranks (auto)\n"
    "      --timeout S       stop the job after S seconds\n"
    "      --plan            start the program once to plan only, print the plan (what it writes\n"
    "                        itself goes to standard error)\n"
    "      --world W         with --plan: plan for W ranks (those of -n)\n"
    "      --explain         say which rank this process is and why, and whether it may start\n"
    "                        others; start nothing\n"
    "      --version         print the version\n"
    "  -h, --help            print this\n"
    "\n"
    "Every rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,\n"
    "ZERO_RANK, ZERO_LOCAL_RANK, ZERO_WORLD_SIZE, ZERO_LOCAL_WORLD_SIZE, ZERO_JOB (random),\n"
    "ZERO_OPTIONS (a line for each -o), and if asked for ZERO_METRICS_FD (rank 0), ZERO_PLAN,\n"
    "ZERO_PLAN_WORLD, ZERO_PLAN_FD. Rank 0 reads zero-run's standard input unless that is a\n"
    "terminal; the others read /dev/null. Lines beyond 64 KiB are broken.\n"
    "\n"
    "SIGINT, SIGTERM and SIGHUP are passed on to the ranks, unless they were ignored when\n"
    "zero-run was started (nohup); the second one kills the ranks. Ranks that are to stop get\n"
    "SIGTERM, and SIGKILL 2 s later. Each rank has a process group of its own, which ends with\n"
    "the job. If zero-run is killed, so are its ranks.\n"
    "\n"
    "Exit status:\n"
    "    0   every rank ended with 0\n"
    "    N   that of the rank that failed first; 128 + N if signal N ended it\n"
    "   64   the command line is wrong\n"
    "   66   the program is not there or cannot be executed\n"
    "   69   zero-run itself is one of several processes of another launcher\n"
    "   71   the system refused a process, memory or a descriptor\n"
    "   73   --log-dir or --metrics cannot be created\n"
    "   74   the ranks succeeded, but not all of their output could be written; or its reader is\n"
    "        gone\n"
    "   75   --timeout has passed\n"
    "   76   --plan: the program ended without making a plan\n"
    "   78   launchers' variables are malformed or disagree\n";

enum long_option {
    OPTION_BIND = 256,
    OPTION_LOG_DIR,
    OPTION_METRICS,
    OPTION_PREFIX,
    OPTION_TIMEOUT,
    OPTION_PLAN,
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
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"plan", no_argument, NULL, OPTION_PLAN},
    {"world", required_argument, NULL, OPTION_WORLD},
    {"explain", no_argument, NULL, OPTION_EXPLAIN},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static zero_result parse_number(const char *option, const char *text, int max, int *number,
                                struct base_error *error)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < 1 || value > max)
        return zero_fail(error, ZERO_E_INVALID, "%s takes a number from 1 to %d, not '%.60s'",
                         option, max, text);
    *number = (int)value;
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

static zero_result parse_option(struct run_options *options, int option, const char *argument,
                                struct base_error *error)
{
    static const char *const binds[] = {"none", "core", NULL};
    static const char *const prefixes[] = {"auto", "always", "never", NULL};
    const int most_seconds = 365 * 86400;
    int index = 0;
    zero_result result = ZERO_OK;
    switch (option) {
    case 'n':
        return parse_number("-n", argument, BOOT_WORLD_MAX, &options->ranks, error);
    case 'o':
        return add_setting(options, argument, error);
    case 'h':
        options->help = true;
        break;
    case OPTION_BIND:
        result = parse_choice("--bind", argument, binds, "core or none", &index, error);
        options->bind_core = index == 1;
        break;
    case OPTION_LOG_DIR:
        options->log_dir = argument;
        break;
    case OPTION_METRICS:
        options->metrics = argument;
        break;
    case OPTION_PREFIX:
        result =
            parse_choice("--prefix", argument, prefixes, "auto, always or never", &index, error);
        options->prefix = (enum run_prefix)index;
        break;
    case OPTION_TIMEOUT:
        return parse_number("--timeout", argument, most_seconds, &options->timeout_s, error);
    case OPTION_PLAN:
        options->plan = true;
        break;
    case OPTION_WORLD:
        return parse_number("--world", argument, BOOT_WORLD_MAX, &options->plan_world, error);
    case OPTION_EXPLAIN:
        options->explain = true;
        break;
    case OPTION_VERSION:
        options->version = true;
        break;
    }
    return result;
}

static zero_result check(const struct run_options *options, struct base_error *error)
{
    if (options->help || options->version)
        return ZERO_OK;
    if (options->plan_world && !options->plan)
        return zero_fail(error, ZERO_E_INVALID, "--world is for --plan only");
    if (options->plan && options->metrics)
        return zero_fail(error, ZERO_E_INVALID, "--plan runs no step, so --metrics has no effect");
    if (options->explain && *options->program)
        return zero_fail(error, ZERO_E_INVALID, "--explain starts nothing, but there is a program");
    if (!options->explain && !*options->program)
        return zero_fail(error, ZERO_E_INVALID, "no program given");
    return ZERO_OK;
}

zero_result run_options_parse(struct run_options *options, int argc, char **argv,
                              struct base_error *error)
{
    *options = (struct run_options){.ranks = 1};
    zero_result result = ZERO_OK;
    int option;
    opterr = 0;
    // '+': options end at the program; ':': a missing argument is told from an unknown option.
    while (!result && (option = getopt_long(argc, argv, "+:n:o:h", long_options, NULL)) != -1) {
        const char *given = argv[optind - 1];
        if (option == ':')
            result = zero_fail(error, ZERO_E_INVALID, "%.60s needs a value", given);
        else if (option == '?' && optopt && optopt < 256)
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
    options->settings = NULL;
}
