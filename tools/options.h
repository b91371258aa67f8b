/**
 * tools/options.h: reads a command line by a table. A row is an option, and says which field of the
 * tool's own structure it sets.
 */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPTION_FLAG,   /**< no value: sets `flag` only */
    OPTION_TEXT,   /**< const char * */
    OPTION_NUMBER, /**< int from least to most */
    OPTION_COUNT,  /**< uint64_t from least to 2^53 */
    OPTION_TIME,   /**< int: at least so many seconds */
    OPTION_CHOICE, /**< int, or an enum: the place of the word in `choices` */
    OPTION_CALL,   /**< `read` reads the value */
};

/** Values of options with these choices. */
enum option_when { OPTION_AUTO, OPTION_ALWAYS, OPTION_NEVER };
#define OPTION_WHEN "auto, always or never"

struct option_row {
    const char *name; /**< "--bind"; "-o" if it has a letter only; NULL ends a table */
    char letter;      /**< 'n' for -n too; 0: none */
    bool optional;    /**< --name or --name=VALUE; without VALUE it is the first choice */
    enum option_kind kind;
    size_t field;        /**< offset of what it sets */
    size_t flag;         /**< offset of a bool: the option is given; 0: there is none */
    int least, most;     /**< of a number or a time */
    const char *choices; /**< as messages show them: "none, core or auto" */
    zero_result (*read)(void *options, const char *value, struct base_error *error);
    unsigned commands; /**< a bit for each command that has it; 0: all. The caller checks it */
};

/** Reads the command line into `options`; argv[optind] is then the first argument that is none of
 * an option. `anywhere`: options may follow such arguments. Adds rows that are given to given[], by
 * place, unless it is NULL. ZERO_E_INVALID (what is wrong); errors of `read`. */
zero_result option_parse(const struct option_row *rows, bool anywhere, void *options, bool *given,
                         int argc, char **argv, struct base_error *error);

/** For `read` of a row: what OPTION_NUMBER and OPTION_TIME do. Messages begin with `name`. */
zero_result option_number(const char *name, const char *text, int least, int most, int *number,
                          struct base_error *error);
zero_result option_time(const char *name, const char *text, int least, int *seconds,
                        struct base_error *error);

/** Whether to print in colours. OPTION_AUTO: on a `terminal` that knows them, if no user forbids it
 * (NO_COLOR). */
bool option_color(enum option_when when, bool terminal);

#endif
