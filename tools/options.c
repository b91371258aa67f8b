#include "tools/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROWS = 32,
    LONG = 256, // getopt's value of the first row's long name: no letter has it
};

static bool read_digits(const char *text, uint64_t least, uint64_t most, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *number >= least && *number <= most;
}

zero_result option_number(const char *name, const char *text, int least, int most, int *number,
                          struct base_error *error)
{
    uint64_t value;
    if (!read_digits(text, (uint64_t)least, (uint64_t)most, &value))
        return zero_fail(error, ZERO_E_INVALID, "%s takes a number from %d to %d, not '%.60s'",
                         name, least, most, text);
    *number = (int)value;
    return ZERO_OK;
}

static zero_result read_count(const struct option_row *row, const char *text, uint64_t *count,
                              struct base_error *error)
{
    if (!read_digits(text, (uint64_t)row->least, UINT64_C(1) << 53, count))
        return zero_fail(error, ZERO_E_INVALID, "%s takes a number from %d to 2^53, not '%.60s'",
                         row->name, row->least, text);
    return ZERO_OK;
}

// Digits, and perhaps a unit.
zero_result option_time(const char *name, const char *text, int least, int *seconds,
                        struct base_error *error)
{
    static const char units[] = "smhd";
    static const int unit_s[] = {1, 60, 3600, 86400};
    const long most = 365L * 86400;
    char *end;
    errno = 0;
    const long count = strtol(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : units;
    const bool good = *text >= '0' && *text <= '9' && !errno && unit && (!*end || !end[1]);
    const long scale = good ? unit_s[unit - units] : 1;
    if (!good || count > most / scale || count * scale < least)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s takes a time such as 90, 90s, 15m or 2h, from %d s to 365d, not "
                         "'%.60s'",
                         name, least, text);
    *seconds = (int)(count * scale);
    return ZERO_OK;
}

static zero_result read_choice(const struct option_row *row, const char *text, int *place,
                               struct base_error *error)
{
    const char *word = row->choices;
    for (*place = 0;; ++*place) {
        const size_t length = strcspn(word, ", ");
        if (!text || (strlen(text) == length && !strncmp(text, word, length)))
            return ZERO_OK;
        if (!word[length])
            return zero_fail(error, ZERO_E_INVALID, "%s takes %s, not '%.60s'", row->name,
                             row->choices, text);
        word += length + strlen(word[length] == ',' ? ", " : " or ");
    }
}

static zero_result read_value(const struct option_row *row, const char *text, void *options,
                              struct base_error *error)
{
    void *field = (char *)options + row->field;
    switch (row->kind) {
    case OPTION_FLAG:
        break;
    case OPTION_TEXT:
        *(const char **)field = text;
        break;
    case OPTION_NUMBER:
        return option_number(row->name, text, row->least, row->most, field, error);
    case OPTION_COUNT:
        return read_count(row, text, field, error);
    case OPTION_TIME:
        return option_time(row->name, text, row->least, field, error);
    case OPTION_CHOICE:
        return read_choice(row, text, field, error);
    case OPTION_CALL:
        return row->read(options, text, error);
    }
    return ZERO_OK;
}

// The table as getopt takes it.
static void list_names(const struct option_row *rows, struct option *names, char *letters)
{
    for (int i = 0; rows[i].name; i++) {
        const int value = rows[i].optional              ? optional_argument
                          : rows[i].kind == OPTION_FLAG ? no_argument
                                                        : required_argument;
        if (rows[i].name[1] == '-')
            *names++ = (struct option){rows[i].name + 2, value, NULL, LONG + i};
        if (rows[i].letter)
            *letters++ = rows[i].letter;
        if (rows[i].letter && value)
            *letters++ = ':';
    }
}

static int row_of(const struct option_row *rows, int option)
{
    int i = option - LONG;
    if (i < 0)
        for (i = 0; rows[i].letter != option; i++)
            ;
    return i;
}

zero_result option_parse(const struct option_row *rows, bool anywhere, void *options, bool *given,
                         int argc, char **argv, struct base_error *error)
{
    struct option names[MOST_ROWS + 1] = {{0}};
    // '+': options end at the first argument; ':': a missing value is told from an unknown option.
    char letters[2 * MOST_ROWS + 3] = "+:";
    list_names(rows, names, letters + 2);
    zero_result result = ZERO_OK;
    int option;
    opterr = 0;
    while (!result && (option = getopt_long(argc, argv, letters + anywhere, names, NULL)) != -1) {
        const char *text = argv[optind - 1];
        if (option == ':')
            return zero_fail(error, ZERO_E_INVALID, "%.60s needs a value", text);
        if (option == '?' && optopt && optopt < LONG)
            return zero_fail(error, ZERO_E_INVALID, "unknown option -%c", optopt);
        if (option == '?')
            return zero_fail(error, ZERO_E_INVALID, "unknown option %.60s%s", text,
                             optopt ? " (it takes no value)" : "");
        const int i = row_of(rows, option);
        if (given)
            given[i] = true;
        if (rows[i].flag)
            *((bool *)options + rows[i].flag) = true;
        result = read_value(&rows[i], optarg, options, error);
    }
    return result;
}

bool option_color(enum option_when when, bool terminal)
{
    const char *forbidden = getenv("NO_COLOR"), *kind = getenv("TERM");
    if (when != OPTION_AUTO)
        return when == OPTION_ALWAYS;
    return terminal && !(forbidden && *forbidden) && kind && *kind && strcmp(kind, "dumb") != 0;
}
