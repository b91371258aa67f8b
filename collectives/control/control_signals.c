// Lists of signals that ask a job to stop, as users write them.

#include "collectives/control/control.h"

#include "base/text.h"

#include <string.h>
#include <strings.h>

/** What may ask: no signal that ends or suspends a process in any case, or tells of a fault. */
static const struct {
    const char *name;
    int number;
} known[] = {
    {"ALRM", SIGALRM}, {"HUP", SIGHUP},   {"INT", SIGINT},   {"PWR", SIGPWR},   {"QUIT", SIGQUIT},
    {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"XCPU", SIGXCPU},
};
enum { KNOWN = sizeof known / sizeof *known };

/** The signal called so, with or without SIG before it; 0: none. */
static int find(const char *name, size_t length)
{
    if (length > 3 && !strncasecmp(name, "SIG", 3)) {
        name += 3;
        length -= 3;
    }
    for (size_t i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && !strncasecmp(known[i].name, name, length))
            return known[i].number;
    return 0;
}

zero_result control_read_signals(sigset_t *set, const char *list, const char *what,
                                 struct base_error *error)
{
    sigset_t all = *set;
    for (const char *name = list;; name++) {
        const size_t length = strcspn(name, ",");
        const int number = find(name, length);
        if (!number)
            return zero_fail(error, ZERO_E_INVALID,
                             "%s takes names of signals with commas between them, of ALRM, HUP, "
                             "INT, PWR, QUIT, TERM, USR1, USR2 and XCPU, not '%.*s'",
                             what, length < 60 ? (int)length : 60, name);
        sigaddset(&all, number);
        name += length;
        if (!*name)
            break;
        name += strspn(name + 1, " "); // after the comma
    }
    *set = all;
    return ZERO_OK;
}

void control_show_signals(const sigset_t *set, char list[CONTROL_LIST_BYTES])
{
    struct base_text text = {list, CONTROL_LIST_BYTES, 0};
    *list = '\0';
    for (size_t i = 0; i < KNOWN; i++)
        if (sigismember(set, known[i].number) == 1)
            base_text_add(&text, "%s%s", text.used ? "," : "", known[i].name);
}
