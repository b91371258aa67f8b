#include "tools/zero-ckpt/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct tool_command commands[] = {
    {"list", "DIR", 1, 1, tool_list},
    {"inspect", "PATH", 1, 1, tool_inspect},
    {"verify", "PATH...", 1, INT32_MAX, tool_verify},
    {"diff", "PATH PATH", 2, 2, tool_diff},
    {"export", "PATH FILE", 2, 2, tool_export},
    {"import", "FILE DIR", 2, 2, tool_import},
    {"prune", "DIR", 1, 1, tool_prune},
};

enum long_option {
    OPTION_ALL = 256,
    OPTION_COLOR,
    OPTION_DRY_RUN,
    OPTION_DTYPE,
    OPTION_EDITED,
    OPTION_FORCE,
    OPTION_JSON,
    OPTION_KEEP,
    OPTION_KEEP_EVERY,
    OPTION_LIKE,
    OPTION_STATE,
    OPTION_STEP,
    OPTION_TENSOR,
    OPTION_VALUES,
    OPTION_VERSION,
};

static const struct option long_options[] = {
    {"all", no_argument, NULL, OPTION_ALL},
    {"color", required_argument, NULL, OPTION_COLOR},
    {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"edited", no_argument, NULL, OPTION_EDITED},
    {"force", no_argument, NULL, OPTION_FORCE},
    {"help", no_argument, NULL, 'h'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"keep", required_argument, NULL, OPTION_KEEP},
    {"keep-every", required_argument, NULL, OPTION_KEEP_EVERY},
    {"like", required_argument, NULL, OPTION_LIKE},
    {"state", no_argument, NULL, OPTION_STATE},
    {"step", required_argument, NULL, OPTION_STEP},
    {"tensor", required_argument, NULL, OPTION_TENSOR},
    {"values", no_argument, NULL, OPTION_VALUES},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

/** Options that one command alone has, or two. */
static const struct {
    const char *name;
    int option;
    tool_run_fn run, other;
} own_options[] = {
    {"--all", OPTION_ALL, tool_verify, NULL},
    {"--dry-run", OPTION_DRY_RUN, tool_prune, NULL},
    {"--dtype", OPTION_DTYPE, tool_export, NULL},
    {"--edited", OPTION_EDITED, tool_import, NULL},
    {"--force", OPTION_FORCE, tool_export, tool_import},
    {"--keep", OPTION_KEEP, tool_prune, NULL},
    {"--keep-every", OPTION_KEEP_EVERY, tool_prune, NULL},
    {"--like", OPTION_LIKE, tool_import, NULL},
    {"--state", OPTION_STATE, tool_export, NULL},
    {"--step", OPTION_STEP, tool_import, NULL},
    {"--tensor", OPTION_TENSOR, tool_export, NULL},
    {"--values", OPTION_VALUES, tool_diff, NULL},
};

enum { OWN_OPTIONS = sizeof own_options / sizeof *own_options };

static zero_result parse_number(const char *option, const char *text, uint64_t least,
                                uint64_t *number, struct base_error *error)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > CKPT_MAX_NUMBER)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s takes a number from %" PRIu64 " to 2^53, not '%.60s'", option, least,
                         text);
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

// What an option without a value sets; NULL: it has one.
static bool *flag_of(struct tool_options *options, int option)
{
    switch (option) {
    case 'h':
        return &options->help;
    case OPTION_ALL:
        return &options->all;
    case OPTION_DRY_RUN:
        return &options->dry_run;
    case OPTION_EDITED:
        return &options->edited;
    case OPTION_FORCE:
        return &options->force;
    case OPTION_JSON:
        return &options->json;
    case OPTION_STATE:
        return &options->state;
    case OPTION_VALUES:
        return &options->values;
    case OPTION_VERSION:
        return &options->version;
    default:
        return NULL;
    }
}

static zero_result parse_option(struct tool_options *options, int option, const char *argument,
                                struct base_error *error)
{
    static const char *const whens[] = {"auto", "always", "never", NULL};
    static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
    int index = 0;
    zero_result result = ZERO_OK;
    bool *flag = flag_of(options, option);
    if (flag)
        *flag = true;
    switch (option) {
    case OPTION_COLOR:
        result = parse_choice("--color", argument, whens, "auto, always or never", &index, error);
        options->color = (enum tool_when)index;
        break;
    case OPTION_DTYPE:
        result = parse_choice("--dtype", argument, dtypes, "f32, bf16 or f16", &index, error);
        options->dtype = (enum ckpt_dtype)index;
        options->dtype_given = true;
        break;
    case OPTION_KEEP:
        return parse_number("--keep", argument, 1, &options->retention.keep, error);
    case OPTION_KEEP_EVERY:
        return parse_number("--keep-every", argument, 1, &options->retention.keep_every, error);
    case OPTION_LIKE:
        options->like = argument;
        break;
    case OPTION_STEP:
        options->step_given = true;
        return parse_number("--step", argument, 0, &options->step, error);
    case OPTION_TENSOR:
        options->tensor = argument;
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
        if (given[i] && own_options[i].run != command->run && own_options[i].other != command->run)
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
