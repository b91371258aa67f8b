/**
 * zero/plan/plan_values.h: values in the plan's JSON, and lines that are made of them. A path is
 * "a.b.c": the member c of the object b in the object a. *Local.*
 */
#ifndef ZERO_PLAN_PLAN_VALUES_H
#define ZERO_PLAN_PLAN_VALUES_H

#include <stdbool.h>
#include <stdint.h>

struct base_text;
struct json_t;

/** Bytes for people, exact below 10 KiB; returns `out`. */
const char *eng_human(uint64_t bytes, char out[32]);

/** What is there, which may be null; NULL: there is no such member. */
const struct json_t *eng_plan_at(const struct json_t *object, const char *path);

/** Whether there is a value that is not null. */
bool eng_plan_has(const struct json_t *object, const char *path);

/** Whether `true` is there. */
bool eng_plan_is_true(const struct json_t *object, const char *path);

/** Whether this string is there. */
bool eng_plan_is(const struct json_t *object, const char *path, const char *text);

/** The number that has to be there; 0: it is null. */
uint64_t eng_plan_number(const struct json_t *object, const char *path);

/** Appends what `line` says: "{a.b}" stands for the value there, "{~a.b}" for so many bytes, and
 * "{+a.b}" for an s unless the value is 1. All of them have to be there. */
void eng_plan_line(struct base_text *text, const struct json_t *object, const char *line);

#endif
