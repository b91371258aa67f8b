// See plan_values.h.
#include "zero/plan/plan_values.h"

#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 64 };

const char *eng_human(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 10240 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

const json_t *eng_plan_at(const json_t *object, const char *path)
{
    char key[PATH_BYTES];
    while (object && *path) {
        const size_t length = strcspn(path, ".");
        assert(length > 0 && length < sizeof key);
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_object_get(object, key);
        path += length + (path[length] == '.');
    }
    return object;
}

bool eng_plan_has(const json_t *object, const char *path)
{
    const json_t *value = eng_plan_at(object, path);
    return value && !json_is_null(value);
}

bool eng_plan_is_true(const json_t *object, const char *path)
{
    return json_is_true(eng_plan_at(object, path));
}

uint64_t eng_plan_number(const json_t *object, const char *path)
{
    const json_t *value = eng_plan_at(object, path);
    assert(value && (json_is_integer(value) || json_is_null(value)));
    return (uint64_t)json_integer_value(value);
}

bool eng_plan_is(const json_t *object, const char *path, const char *text)
{
    const char *value = json_string_value(eng_plan_at(object, path));
    return value && strcmp(value, text) == 0;
}

static void add_value(struct base_text *text, const json_t *object, const char *path)
{
    const json_t *value = eng_plan_at(object, path + (*path == '~' || *path == '+'));
    char bytes[32];
    assert(value && !json_is_null(value)); // a line is of what is there
    assert(json_is_number(value) || (*path != '~' && *path != '+'));
    if (*path == '~')
        base_text_add(text, "%s", eng_human((uint64_t)json_number_value(value), bytes));
    else if (*path == '+')
        base_text_add(text, "%s", json_integer_value(value) == 1 ? "" : "s");
    else if (json_is_string(value))
        base_text_add(text, "%s", json_string_value(value));
    else if (json_is_real(value))
        base_text_add(text, "%.3g", json_real_value(value));
    else
        base_text_add(text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
}

void eng_plan_line(struct base_text *text, const json_t *object, const char *line)
{
    char path[PATH_BYTES];
    for (const char *open; (open = strchr(line, '{')) != NULL;) {
        const size_t length = strcspn(open + 1, "}");
        assert(length < sizeof path && open[1 + length] == '}');
        snprintf(path, sizeof path, "%.*s", (int)length, open + 1);
        base_text_add(text, "%.*s", (int)(open - line), line);
        add_value(text, object, path);
        line = open + 1 + length + 1;
    }
    base_text_add(text, "%s", line);
}
