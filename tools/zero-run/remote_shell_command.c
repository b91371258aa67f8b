#include "tools/zero-run/remote_shell_parts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

// What no shell takes for anything else.
static const char plain[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-,@%";

static bool add_word(struct run_command_line *line, const char *word)
{
    const size_t bytes = strlen(word) + 1;
    const size_t most = sizeof line->words / sizeof *line->words - 1;
    if ((size_t)line->count >= most || bytes > sizeof line->bytes - line->used)
        return false;
    line->words[line->count++] = memcpy(line->bytes + line->used, word, bytes);
    line->words[line->count] = NULL;
    line->used += bytes;
    return true;
}

/* ------------------------------------------------------------------ words of --rsh */

// Appends what stands behind a backslash, or the backslash itself: between double quotes it is only
// special before some characters.
static const char *take_escaped(const char *text, char quote, char *word, size_t *used)
{
    if (text[1] == '\0' || (quote == '"' && !strchr("\\\"$`", text[1])))
        word[(*used)++] = *text++;
    else {
        word[(*used)++] = text[1];
        text += 2;
    }
    return text;
}

// One word. NULL: a quote has no end.
static const char *take_word(const char *text, char *word)
{
    size_t used = 0;
    char quote = '\0';
    while (*text && (quote || !strchr(" \t\n", *text))) {
        if (quote ? *text == quote : *text == '\'' || *text == '"')
            quote = quote ? '\0' : *text++ /* which it is now */;
        else if (*text == '\\' && quote != '\'') {
            text = take_escaped(text, quote, word, &used);
            continue;
        } else {
            word[used++] = *text++;
            continue;
        }
        text += quote == '\0';
    }
    word[used] = '\0';
    return quote ? NULL : text;
}

zero_result run_shell_split(struct run_command_line *line, const char *text,
                            struct base_error *error)
{
    static char word[RUN_SHELL_PATH];
    const char *whole = text;
    if (strlen(text) >= sizeof word)
        return zero_fail(error, ZERO_E_INVALID, "--rsh takes at most %d characters",
                         RUN_SHELL_PATH - 1);
    for (;;) {
        text += strspn(text, " \t\n");
        if (!*text)
            break;
        text = take_word(text, word);
        if (!text)
            return zero_fail(error, ZERO_E_INVALID, "--rsh '%.80s': a quote has no end", whole);
        if (line->count == RUN_SHELL_WORDS || !add_word(line, word))
            return zero_fail(error, ZERO_E_INVALID, "--rsh takes at most %d words",
                             RUN_SHELL_WORDS);
    }
    if (line->count == 0 || !*line->words[0])
        return zero_fail(error, ZERO_E_INVALID, "--rsh takes a command, not '%.80s'", whole);
    return ZERO_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const char *run_shell_name(const struct run_shell_way *way, char name[64])
{
    struct run_command_line line = {.count = 0};
    if (way->rsh && run_shell_split(&line, way->rsh, NULL) == ZERO_OK)
        snprintf(name, 64, "%s", base_name(line.words[0]));
    else
        strcpy(name, "ssh");
    return name;
}

/* ------------------------------------------------------------------ command lines */

// ssh takes the first value of an option, so those of --rsh count. It asks for nothing: there is no
// terminal to answer at.
static bool add_ssh_options(struct run_command_line *line)
{
    static const char *const options[] = {
        "-T", "-x",
        "-o", "BatchMode=yes",
        "-o", "ConnectTimeout=15",
        "-o", "ClearAllForwardings=yes",
        "-o", "ControlMaster=no",
    };
    bool added = true;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        added = added && add_word(line, options[i]);
    return added;
}

// A path with other characters travels as plain ones: each byte of another kind as \0 and its three
// octal digits, which `printf %b` of the other host turns back. Its login shell, of whatever
// family, sees plain characters and single quotes only. The full stop keeps newlines at the end.
static bool add_encoded(struct run_command_line *line, const char *path)
{
    static char command[5 * RUN_SHELL_PATH + 128];
    size_t used =
        (size_t)snprintf(command, sizeof command,
                         "exec sh -c 'p=$(printf \"%%b.\" \"$0\"); exec \"${p%%.}\" --agent' '");
    for (; *path && used + 8 < sizeof command; path++)
        used += (size_t)(strchr(plain, *path)
                             ? snprintf(command + used, 8, "%c", *path)
                             : snprintf(command + used, 8, "\\0%03o", (unsigned char)*path));
    command[used++] = '\'';
    command[used] = '\0';
    return !*path && add_word(line, command);
}

zero_result run_shell_command(struct run_command_line *line, const struct run_shell *shell,
                              struct base_error *error)
{
    const char *program = shell->by_path ? "zero-run" : shell->way->program;
    const bool is_plain = program[strspn(program, plain)] == '\0';
    zero_result result = ZERO_OK;
    bool added;
    *line = (struct run_command_line){.count = 0};
    if (!shell->local) {
        result = run_shell_split(line, shell->way->rsh ? shell->way->rsh : "ssh", error);
        if (result)
            return result;
        added = (strcmp(base_name(line->words[0]), "ssh") != 0 || add_ssh_options(line)) &&
                add_word(line, shell->host->name);
    } else
        added = true;
    if (shell->local || is_plain)
        added = added && add_word(line, program) && add_word(line, "--agent");
    else
        added = added && add_encoded(line, program);
    return added ? ZERO_OK
                 : zero_fail(error, ZERO_E_INVALID, "the path of zero-run is too long: %.80s...",
                             program);
}
