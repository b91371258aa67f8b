#include "tools/zero-ckpt/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

static enum tool_status status_of(zero_result result)
{
    switch (result) {
    case ZERO_OK:
        return TOOL_OK;
    case ZERO_NOT_FOUND:
        return TOOL_NOTHING;
    case ZERO_E_INVALID:
        return TOOL_USAGE;
    case ZERO_E_CORRUPT:
    case ZERO_E_VERSION:
    case ZERO_E_UNSUPPORTED:
        return TOOL_UNREADABLE;
    case ZERO_E_NOMEM:
        return TOOL_SYSTEM;
    case ZERO_AGAIN:
    case ZERO_E_STATE:
    case ZERO_E_TIMEOUT:
        return TOOL_BUSY;
    default:
        return TOOL_IO;
    }
}

static zero_result run(const struct tool_options *options, bool *found, struct base_error *error)
{
    if (options->help)
        return fputs(tool_help, stdout) < 0 ? ZERO_E_IO : ZERO_OK;
    if (options->version)
        return fputs("zero-ckpt " ZERO_VERSION "\n", stdout) < 0 ? ZERO_E_IO : ZERO_OK;
    return options->command->run(options, found, error);
}

int main(int argc, char **argv)
{
    struct base_error error = {.result = ZERO_OK};
    struct tool_options options;
    bool found = false;
    // A file that reaches the limit of file sizes is an error that is said, and no signal.
    signal(SIGXFSZ, SIG_IGN);
    zero_result result = tool_options_parse(&options, argc, argv, &error);
    const bool usage = result != ZERO_OK;
    if (!result)
        result = run(&options, &found, &error);
    if (!usage && (fflush(stdout) || ferror(stdout))) {
        base_error_clear(&error);
        result = zero_fail_errno(&error, ZERO_E_IO, errno, "cannot write to standard output");
    }
    if (!result)
        return found ? TOOL_FOUND : TOOL_OK;
    fprintf(stderr, "zero-ckpt: %s%s\n",
            error.message[0] ? error.message : base_result_text(result),
            usage ? " (see zero-ckpt --help)" : "");
    return (int)status_of(result);
}
