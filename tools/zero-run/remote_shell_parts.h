/**
 * tools/zero-run/remote_shell_parts.h: what the files of a remote shell share.
 */
#ifndef TOOLS_ZERO_RUN_REMOTE_SHELL_PARTS_H
#define TOOLS_ZERO_RUN_REMOTE_SHELL_PARTS_H

#include "tools/zero-run/remote_shell.h"

/** A command line under construction. */
struct run_command_line {
    char *words[RUN_SHELL_WORDS + 32]; /**< ends with NULL */
    int count;
    char bytes[6 * RUN_SHELL_PATH]; /**< of the words */
    size_t used;
};

/** Makes the command line that starts the agent of a host. ZERO_E_INVALID: as of
 * run_shell_prepare(), or a path is too long. *Local.* */
zero_result run_shell_command(struct run_command_line *line, const struct run_shell *shell,
                              struct base_error *error);

/** Splits a text into words as a shell does: blanks, quotes, backslashes; nothing is expanded.
 * ZERO_E_INVALID. *Local.* */
zero_result run_shell_split(struct run_command_line *line, const char *text,
                            struct base_error *error);

/** The name of the remote shell's program, for messages. *Local.* */
const char *run_shell_name(const struct run_shell_way *way, char name[64]);

#endif
