#include "tools/zero-run/remote_shell_parts.h"

#include "base/text.h"
#include "collectives/rendezvous/meeting.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 300, SSH_FAILED = 255, UNKNOWN_OPTION = 64 };

// What ssh says, the more telling first, and what to do.
static const struct {
    const char *words, *advice; // %s: the host, as ssh takes it
} known[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its key is another one than known_hosts has; if that is right, `ssh-keygen -R %s` forgets "
     "the old one"},
    {"Host key verification failed",
     "its key is not known here; `ssh %s` by hand asks whether it is right"},
    {"Permission denied",
     "it lets this user in with a password only, or not at all; `ssh-copy-id %s` gives it a key"},
    {"Could not resolve hostname", NULL},
    {"connect to host", NULL},
};

enum { KNOWN = sizeof known / sizeof *known };

// A line of a text, without what no terminal should get.
static void copy_line(char line[LINE], const char *begin, size_t length)
{
    while (length > 0 && strchr(" \r.", begin[length - 1]))
        length--;
    if (length >= LINE)
        length = LINE - 1;
    memcpy(line, begin, length);
    line[length] = '\0';
    boot_clean(line, LINE);
}

// The line that has these words; NULL: the last one that is not empty.
static bool find_line(const struct run_shell *shell, const char *words, char line[LINE])
{
    const char *text = shell->text, *found = NULL;
    size_t length = 0;
    while (*text) {
        const size_t count = strcspn(text, "\n");
        copy_line(line, text, count);
        if (*line && (!words || strstr(line, words)) && !(words && found)) {
            found = text;
            length = count;
        }
        text += count + (text[count] == '\n');
    }
    if (found)
        copy_line(line, found, length);
    return found != NULL;
}

// ssh has failed by itself, and says why.
static void add_ssh(const struct run_shell *shell, const char *name, struct base_text *text)
{
    char line[LINE];
    int i = 0;
    while (i < KNOWN && !find_line(shell, known[i].words, line))
        i++;
    const char *advice = i < KNOWN ? known[i].advice : NULL;
    if (i == KNOWN && !find_line(shell, NULL, line))
        strcpy(line, "it has ended with status 255");
    const size_t length = strlen(name);
    const bool named = !strncmp(line, name, length) && line[length] == ':';
    // The warning is one of many lines with frames of '@'.
    if (i == 0)
        base_text_add(text, "%s: Host key verification failed", name);
    else
        base_text_add(text, "%s%s%s", named ? "" : name, named ? "" : ": ", line);
    const char *place = advice ? strstr(advice, "%s") : NULL;
    if (place)
        base_text_add(text, ": %.*s%s%s", (int)(place - advice), advice, shell->host->name,
                      place + 2);
    else if (advice)
        base_text_add(text, ": %s", advice);
    else
        base_text_add(text, ": `%s %s%s true` by hand has to work first", name,
                      shell->way->rsh && strchr(shell->way->rsh, ' ') ? "... " : "",
                      shell->host->name);
}

static void add_status(const struct run_shell *shell, const char *name, struct base_text *text)
{
    if (shell->end.si_code == CLD_EXITED && shell->end.si_status == SSH_FAILED && !shell->local)
        base_text_add(text, "the agent was killed, or %s has lost it", name);
    else if (shell->end.si_code == CLD_EXITED && shell->end.si_status == UNKNOWN_OPTION)
        base_text_add(text, "its zero-run is of another version, which has no agents: install the "
                            "same zero-run on all hosts");
    else if (shell->end.si_code == CLD_EXITED)
        base_text_add(text, "the agent has ended with status %d", shell->end.si_status);
    else
        base_text_add(text, "%s was ended by SIG%s", shell->local ? "the agent" : name,
                      sigabbrev_np(shell->end.si_status) ? sigabbrev_np(shell->end.si_status)
                                                         : "?");
}

// Remote shells that are not ssh end with 1 for either reason.
static void add_either(const struct run_shell *shell, const char *name, struct base_text *text)
{
    char line[LINE];
    if (find_line(shell, NULL, line))
        base_text_add(text, "%s: ", line);
    base_text_add(text,
                  "there is neither %.1000s nor a zero-run in its PATH, so install it there; or %s "
                  "itself has failed: try `%s %s%s true`",
                  shell->way->program, name, name,
                  shell->way->rsh && strchr(shell->way->rsh, ' ') ? "... " : "", shell->host->name);
}

// The remote shell has done its work, and what it was to start has not.
static void add_program(const struct run_shell *shell, const char *name, struct base_text *text)
{
    char line[LINE];
    const bool exited = shell->by_path && shell->end.si_code == CLD_EXITED;
    const bool missing = exited && (shell->end.si_status == 127 || shell->end.si_status == 126);
    if (exited && shell->end.si_status == 1) {
        add_either(shell, name, text);
        return;
    }
    if (missing)
        base_text_add(text,
                      "there is neither %.1000s nor a zero-run in its PATH, so install it there",
                      shell->way->program);
    else
        add_status(shell, name, text);
    if (find_line(shell, NULL, line))
        base_text_add(text, ": %s", line);
    else if (*shell->link.noise) {
        copy_line(line, shell->link.noise, strcspn(shell->link.noise, "\n"));
        base_text_add(text, ": its shell says: %s", line);
    }
}

void run_shell_why(const struct run_shell *shell, char *text, size_t size)
{
    struct base_text out = {text, size, 0};
    char name[64];
    run_shell_name(shell->way, name);
    const bool ssh_failed = shell->ended && !shell->local && !shell->link.greeted &&
                            shell->end.si_code == CLD_EXITED && shell->end.si_status == SSH_FAILED;
    // What a link says is wrong tells more than how its process ended, which it may not have yet.
    const bool link_tells =
        shell->ended ? shell->link.end == RUN_LINK_REFUSED || shell->link.end == RUN_LINK_WRONG
                     : shell->link.state == RUN_LINK_ENDED;
    base_text_add(&out, "host %s: ", shell->host->name);
    if (ssh_failed)
        add_ssh(shell, name, &out);
    else if (link_tells)
        base_text_add(&out, "%s", shell->link.why.message);
    else if (shell->ended)
        add_program(shell, name, &out);
    else
        base_text_add(&out, "%s has not started the agent in time",
                      shell->local ? "this machine" : name);
}
