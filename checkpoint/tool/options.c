#include "checkpoint/tool/tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct tool_command commands[] = {
    {"list", "DIR", 1, 1, tool_list},
    {"inspect", "PATH", 1, 1, tool_inspect},
    {"verify", "PATH...", 1, INT32_MAX, tool_verify},
    {"diff", "PATH PATH", 2, 2, tool_diff},
    {"prune", "DIR", 1, 1, tool_prune},
};

enum long_option {
    OPTION_ALL = 256,
    OPTION_COLOR,
    OPTION_DRY_RUN,
    OPTION_JSON,
    OPTION_KEEP,
    OPTION_KEEP_EVERY,
    OPTION_VERSION,
};

static const struct option long_options[] = {
    {"all", no_argument, NULL, OPTION_ALL},
    {"color", required_argument, NULL, OPTION_COLOR},
    {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
    {"help", no_argument, NULL, 'h'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"keep", required_argument, NULL, OPTION_KEEP},
    {"keep-every", required_argument, NULL, OPTION_KEEP_EVERY},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

/** Options that one command alone has. */
static const struct {
    const char *name;
    int option;
    tool_run_fn run;
} own_options[] = {
    {"--all", OPTION_ALL, tool_verify},
    {"--dry-run", OPTION_DRY_RUN, tool_prune},
    {"--keep", OPTION_KEEP, tool_prune},
    {"--keep-every", OPTION_KEEP_EVERY, tool_prune},
};

enum { OWN_OPTIONS = sizeof own_options / sizeof *own_options };

static zero_result parse_number(const char *option, const char *text, uint64_t *number,
                                struct base_error *error)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < 1 || value > CKPT_MAX_NUMBER)
        return zero_fail(error, ZERO_E_INVALID, "%s takes a number from 1 to 2^53, not '%.60s'",
                         option, text);
    *number = value;
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

static zero_result parse_option(struct tool_options *options, int option, const char *argument,
                                struct base_error *error)
{
    static const char *const whens[] = {"auto", "always", "never", NULL};
    int index = 0;
    zero_result result = ZERO_OK;
    switch (option) {
    case 'h':
        options->help = true;
        break;
    case OPTION_ALL:
        options->all = true;
        break;
    case OPTION_COLOR:
        result = parse_choice("--color", argument, whens, "auto, always or never", &index, error);
        options->color = (enum tool_when)index;
        break;
    case OPTION_DRY_RUN:
        options->dry_run = true;
        break;
    case OPTION_JSON:
        options->json = true;
        break;
    case OPTION_KEEP:
        return parse_number("--keep", argument, &options->retention.keep, error);
    case OPTION_KEEP_EVERY:
        return parse_number("--keep-every", argument, &options->retention.keep_every, error);
    case OPTION_VERSION:
        options->version = true;
        break;
    }
    return result;
}

static zero_result find_command(struct tool_options *options, const char *name,
                                struct base_error *error)
{
    if (!name)
        return zero_fail(error, ZERO_E_INVALID, "no command given");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].name, name))
            options->command = &commands[i];
    return options->command ? ZERO_OK
                            : zero_fail(error, ZERO_E_INVALID, "there is no command '%.60s'", name);
}

// `given` has the places in own_options of those that were.
static zero_result check(const struct tool_options *options, const bool *given,
                         struct base_error *error)
{
    const struct tool_command *command = options->command;
    for (int i = 0; i < OWN_OPTIONS; i++)
        if (given[i] && own_options[i].run != command->run)
            return zero_fail(error, ZERO_E_INVALID, "%s has no option %s", command->name,
                             own_options[i].name);
    if (options->path_count < command->fewest || options->path_count > command->most)
        return zero_fail(error, ZERO_E_INVALID, "%s takes %s, and %d %s given", command->name,
                         command->takes, options->path_count,
                         options->path_count == 1 ? "path is" : "paths are");
    if (command->run == tool_prune && options->retention.keep == 0)
        return zero_fail(error, ZERO_E_INVALID, "prune needs --keep");
    return ZERO_OK;
}

static zero_result parse_all(struct tool_options *options, bool *given, int argc, char **argv,
                             struct base_error *error)
{
    zero_result result = ZERO_OK;
    int option;
    opterr = 0;
    // ':': a missing argument is told from an unknown option. Options may follow paths.
    while (!result && (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
        const char *text = argv[optind - 1];
        if (option == ':')
            result = zero_fail(error, ZERO_E_INVALID, "%.60s needs a value", text);
        else if (option == '?' && optopt && optopt < 256 && strncmp(text, "--", 2) != 0)
            result = zero_fail(error, ZERO_E_INVALID, "unknown option -%c", optopt);
        else if (option == '?')
            result = zero_fail(error, ZERO_E_INVALID, "unknown option %.60s%s", text,
                               optopt ? " (it takes no value)" : "");
        else
            result = parse_option(options, option, optarg, error);
        for (int i = 0; i < OWN_OPTIONS; i++)
            given[i] |= option == own_options[i].option;
    }
    return result;
}

zero_result tool_options_parse(struct tool_options *options, int argc, char **argv,
                               struct base_error *error)
{
    bool given[OWN_OPTIONS] = {false};
    *options = (struct tool_options){.command = NULL};
    zero_result result = parse_all(options, given, argc, argv, error);
    if (result || options->help || options->version)
        return result;
    result = find_command(options, argv[optind], error);
    if (result)
        return result;
    options->paths = argv + optind + 1;
    options->path_count = argc - optind - 1;
    return check(options, given, error);
}
