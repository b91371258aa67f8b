#include "tools/zero-ckpt/tool.h"

#include <string.h>
#include <unistd.h>

enum command { LIST, INSPECT, VERIFY, DIFF, EXPORT, IMPORT, PRUNE, COMMANDS };

static const struct tool_command commands[COMMANDS] = {
    [LIST] = {"list", "DIR", 1, 1, tool_list},
    [INSPECT] = {"inspect", "PATH", 1, 1, tool_inspect},
    [VERIFY] = {"verify", "PATH...", 1, INT32_MAX, tool_verify},
    [DIFF] = {"diff", "PATH PATH", 2, 2, tool_diff},
    [EXPORT] = {"export", "PATH FILE", 2, 2, tool_export},
    [IMPORT] = {"import", "FILE DIR", 2, 2, tool_import},
    [PRUNE] = {"prune", "DIR", 1, 1, tool_prune},
};

#define AT(member) offsetof(struct tool_options, member)

static const struct option_row rows[] = {
    {"--json", .flag = AT(json)},
    {"--color", .kind = OPTION_CHOICE, .field = AT(color), .choices = OPTION_WHEN},
    {"--all", .flag = AT(all), .commands = 1 << VERIFY},
    {"--dry-run", .flag = AT(dry_run), .commands = 1 << PRUNE},
    {"--dtype", .kind = OPTION_CHOICE, .field = AT(dtype), .choices = "f32, bf16 or f16",
     .flag = AT(dtype_given), .commands = 1 << EXPORT},
    {"--edited", .flag = AT(edited), .commands = 1 << IMPORT},
    {"--force", .flag = AT(force), .commands = 1 << EXPORT | 1 << IMPORT},
    {"--keep", .kind = OPTION_COUNT, .field = AT(retention.keep), .least = 1,
     .commands = 1 << PRUNE},
    {"--keep-every", .kind = OPTION_COUNT, .field = AT(retention.keep_every), .least = 1,
     .commands = 1 << PRUNE},
    {"--like", .kind = OPTION_TEXT, .field = AT(like), .commands = 1 << IMPORT},
    {"--state", .flag = AT(state), .commands = 1 << EXPORT},
    {"--step", .kind = OPTION_COUNT, .field = AT(step), .flag = AT(step_given),
     .commands = 1 << IMPORT},
    {"--tensor", .kind = OPTION_TEXT, .field = AT(tensor), .commands = 1 << EXPORT},
    {"--values", .flag = AT(values), .commands = 1 << DIFF},
    {"--version", .flag = AT(version)},
    {"--help", 'h', .flag = AT(help)},
    {.name = NULL},
};

enum { ROWS = sizeof rows / sizeof *rows };

static zero_result find_command(struct tool_options *options, const char *name,
                                struct base_error *error)
{
    if (!name)
        return zero_fail(error, ZERO_E_INVALID, "no command given");
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name))
            options->command = &commands[i];
    return options->command ? ZERO_OK
                            : zero_fail(error, ZERO_E_INVALID, "there is no command '%.60s'", name);
}

// `given` has the places in rows[] of options that were.
static zero_result check(const struct tool_options *options, const bool *given,
                         struct base_error *error)
{
    const struct tool_command *command = options->command;
    const unsigned bit = 1U << (command - commands);
    for (int i = 0; i < ROWS; i++)
        if (given[i] && rows[i].commands && !(rows[i].commands & bit))
            return zero_fail(error, ZERO_E_INVALID, "%s has no option %s", command->name,
                             rows[i].name);
    if (options->path_count < command->fewest || options->path_count > command->most)
        return zero_fail(error, ZERO_E_INVALID, "%s takes %s, and %d %s given", command->name,
                         command->takes, options->path_count,
                         options->path_count == 1 ? "path is" : "paths are");
    if (command->run == tool_prune && options->retention.keep == 0)
        return zero_fail(error, ZERO_E_INVALID, "prune needs --keep");
    return ZERO_OK;
}

zero_result tool_options_parse(struct tool_options *options, int argc, char **argv,
                               struct base_error *error)
{
    bool given[ROWS] = {false};
    *options = (struct tool_options){.command = NULL};
    zero_result result = option_parse(rows, true, options, given, argc, argv, error);
    if (result || options->help || options->version)
        return result;
    result = find_command(options, argv[optind], error);
    if (result)
        return result;
    options->paths = argv + optind + 1;
    options->path_count = argc - optind - 1;
    return check(options, given, error);
}
