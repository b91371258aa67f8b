/**
 * Reading launchers' variables: strict numbers, and values that are safe to show in one line.
 */
#ifndef COLLECTIVES_RENDEZVOUS_LAUNCHER_VARIABLES_H
#define COLLECTIVES_RENDEZVOUS_LAUNCHER_VARIABLES_H

#include "base/error.h"
#include "base/text.h"

#include <stddef.h>

/** Numbers of ranks, hosts and the like are below this in any launcher's variables. */
#define BOOT_NUMBER_MAX 1000000

/** The value of a variable, NULL if it isn't set. */
const char *boot_variable(char *const *environment, const char *name);

/** The first of these names that is set, in *name, and its value. NULL: none is; *name is the
 * first one, or NULL. The list ends with NULL or after `count` names. */
const char *boot_first_variable(const char **name, const char *const *names, size_t count,
                                char *const *environment);

/**
 * Parses plain decimal digits, min .. max. ZERO_E_INVALID: something else (a sign, blanks, nothing
 * at all); the message has name and value. *number is unchanged then.
 */
zero_result boot_number(int *number, const char *name, const char *value, int min, int max,
                        struct base_error *error);

/** Adds `name=value`, with at most 60 bytes of the value, whatever isn't printable as '?'. */
void boot_text_add_variable(struct base_text *text, const char *name, const char *value);

/** Adds it to a list of such variables, with a comma between them; nothing if `value` is NULL. */
void boot_text_list_variable(struct base_text *text, const char *name, const char *value);

/** How many items a list has that are kept apart by commas and white space. */
int boot_items(const char *list);

/** Length of the first of them; *list is moved to its beginning. */
size_t boot_first_item(const char **list);

#endif
