#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *boot_variable(char *const *environment, const char *name)
{
    const size_t length = strlen(name);
    for (; environment && *environment; environment++)
        if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

const char *boot_first_variable(const char **name, const char *const *names, size_t count,
                                char *const *environment)
{
    assert(count > 0);
    *name = names[0];
    for (size_t i = 0; i < count && names[i]; i++) {
        const char *value = boot_variable(environment, names[i]);
        if (value) {
            *name = names[i];
            return value;
        }
    }
    return NULL;
}

zero_result boot_number(int *number, const char *name, const char *value, int min, int max,
                        struct base_error *error)
{
    long parsed = 0;
    const char *digit = value;
    for (; *digit >= '0' && *digit <= '9' && parsed <= BOOT_NUMBER_MAX; digit++)
        parsed = 10 * parsed + (*digit - '0');
    if (digit == value || *digit || parsed < min || parsed > max) {
        char shown[128];
        struct base_text text = {shown, sizeof shown, 0};
        boot_text_add_variable(&text, name, value);
        return zero_fail(error, ZERO_E_INVALID, "%s is no number from %d to %d", shown, min, max);
    }
    *number = (int)parsed;
    return ZERO_OK;
}

void boot_text_add_variable(struct base_text *text, const char *name, const char *value)
{
    char shown[61];
    size_t length = 0;
    for (; value[length] && length < sizeof shown - 1; length++)
        shown[length] = (char)(value[length] >= ' ' && value[length] <= '~' ? value[length] : '?');
    shown[length] = '\0';
    base_text_add(text, "%s=%s%s", name, shown, value[length] ? "..." : "");
}

void boot_text_list_variable(struct base_text *text, const char *name, const char *value)
{
    if (!value)
        return;
    base_text_add(text, "%s", text->used ? ", " : "");
    boot_text_add_variable(text, name, value);
}

static const char between[] = ", \t\r\n";

size_t boot_first_item(const char **list)
{
    *list += strspn(*list, between);
    return strcspn(*list, between);
}

int boot_items(const char *list)
{
    int items = 0;
    for (size_t length; (length = boot_first_item(&list)) > 0; list += length)
        items++;
    return items;
}
