// Warnings that several ranks give alike are shown once, with the number of ranks; and so is all
// that they write alike to standard error once one of them has noticed the end of another one.

#include "tools/zero-run/run.h"

#include "base/arena.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define MS_NS UINT64_C(1000000)

// What stands behind the library's "zero[rank] ", if the line is a warning of this rank's.
static const char *find_warning(int rank, const char *line, size_t length)
{
    static const char level[] = "warn ";
    char start[32];
    const size_t size = (size_t)snprintf(start, sizeof start, "zero[%d] ", rank);
    if (length < size + sizeof level || line[length - 1] != '\n' ||
        memcmp(line, start, size) != 0 || memcmp(line + size, level, sizeof level - 1) != 0)
        return NULL;
    return line + size;
}

// What is held of a line: all of it, or what stands behind "zero[rank] ". NULL: it is not held.
static const char *find_text(const struct run_join *join, int rank, const char *line, size_t length,
                             bool *whole)
{
    const char *text = find_warning(rank, line, length);
    *whole = !text;
    return text ? text : join->errors && line[length - 1] == '\n' ? line : NULL;
}

// That of one rank as it came; else "[0-63] zero warn core: text (64 ranks)".
static void show(const struct run_join *join, struct run_warning *warning)
{
    const struct run_stream *first = warning->first;
    char bytes[512] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    if (warning->count == 1) {
        base_text_add(&text, "%s", first->prefix);
        if (!warning->whole)
            base_text_add(&text, "zero[%d] ", first->rank);
    } else {
        if (*first->prefix) {
            base_text_add(&text, "[");
            run_only_show(&text, warning->given, join->ranks, '-');
            base_text_add(&text, "] ");
        }
        base_text_add(&text, "%s", warning->whole ? "" : "zero ");
    }
    run_sink_add(first->sink, bytes, strlen(bytes));
    run_sink_add(first->sink, warning->text, strlen(warning->text) - 1);
    snprintf(bytes, sizeof bytes, " (%d ranks)", warning->count);
    if (warning->count > 1)
        run_sink_add(first->sink, bytes, strlen(bytes));
    run_sink_add(first->sink, "\n", 1);
    base_free(warning->text);
    base_free(warning->given);
    *warning = (struct run_warning){.text = NULL};
}

static struct run_warning *find(struct run_join *join, const char *text, size_t length)
{
    for (int i = 0; i < RUN_JOIN_WARNINGS; i++) {
        struct run_warning *warning = &join->warnings[i];
        if (warning->text && strlen(warning->text) == length &&
            memcmp(warning->text, text, length) == 0)
            return warning;
    }
    return NULL;
}

// A free place: that of the oldest one if all are taken.
static struct run_warning *make(struct run_join *join, const char *text, size_t length)
{
    struct run_warning *place = &join->warnings[0];
    for (int i = 0; i < RUN_JOIN_WARNINGS && place->text; i++)
        if (!join->warnings[i].text || join->warnings[i].first_ns < place->first_ns)
            place = &join->warnings[i];
    if (place->text)
        show(join, place);
    place->text = base_calloc(length + 1, 1);
    place->given = base_calloc((size_t)join->ranks, 1);
    if (!place->text || !place->given) {
        base_free(place->text);
        base_free(place->given);
        *place = (struct run_warning){.text = NULL};
        return NULL;
    }
    memcpy(place->text, text, length);
    place->first_ns = base_clock_ns();
    return place;
}

bool run_join_take(struct run_join *join, const struct run_stream *stream, const char *line,
                   size_t length)
{
    const int rank = stream->rank;
    bool whole;
    const char *text = find_text(join, rank, line, length, &whole);
    if (!text || memchr(line, '\0', length)) {
        if (join->errors) // what stands before it in the rank's output comes before it
            run_join_show(join, UINT64_MAX);
        return false;
    }
    length -= (size_t)(text - line);
    struct run_warning *warning = find(join, text, length);
    if (warning && warning->given[rank]) { // it gives the warning once more
        show(join, warning);
        warning = NULL;
    }
    if (!warning)
        warning = make(join, text, length);
    if (!warning)
        return false;
    // On a busy host many ranks come one after the other.
    const uint64_t last_ns = warning->first_ns + RUN_JOIN_MOST_MS * MS_NS;
    const uint64_t due_ns = base_clock_ns() + RUN_JOIN_MS * MS_NS;
    warning->due_ns = due_ns < last_ns ? due_ns : last_ns;
    warning->whole = whole;
    warning->given[rank] = 1;
    if (warning->count == 0)
        warning->first = stream;
    if (++warning->count == join->ranks)
        show(join, warning);
    return true;
}

uint64_t run_join_due(const struct run_join *join)
{
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < RUN_JOIN_WARNINGS; i++)
        if (join->warnings[i].text && join->warnings[i].due_ns < due)
            due = join->warnings[i].due_ns;
    return due;
}

// The one that came first of those that are due; NULL: none is.
static struct run_warning *find_due(struct run_join *join, uint64_t now_ns, bool errors)
{
    struct run_warning *first = NULL;
    for (int i = 0; i < RUN_JOIN_WARNINGS; i++) {
        struct run_warning *warning = &join->warnings[i];
        if (warning->text && warning->due_ns <= now_ns && (errors || !warning->whole) &&
            (!first || warning->first_ns < first->first_ns))
            first = warning;
    }
    return first;
}

void run_join_show(struct run_join *join, uint64_t now_ns)
{
    struct run_warning *first;
    while ((first = find_due(join, now_ns, true)) != NULL)
        show(join, first);
}

void run_join_show_warnings(struct run_join *join)
{
    struct run_warning *first;
    while ((first = find_due(join, UINT64_MAX, false)) != NULL)
        show(join, first);
}
