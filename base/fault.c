#include "base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_RULES = 16, POINT_SIZE = 32, LARGEST_ERRNO = 133 };

struct rule {
    char point[POINT_SIZE];
    int errnum; // 0: the point's own
    bool onwards;
    uint64_t wanted; // the hit that fails, from 1
    uint64_t hits;
};

struct rules {
    struct rule rule[MAX_RULES];
    int count;
};

// Set by tests or, once, from ZERO_FAULT; base_fault_state tells whether there is anything here.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static struct rules active;
static uint64_t fired;
static struct base_error environment_error;

atomic_int base_fault_state = -1;

// The number of an errno by name, in whatever case; 0 if there is none.
static int errno_by_name(const char *name, size_t length)
{
    for (int number = 1; number <= LARGEST_ERRNO; number++) {
        const char *candidate = strerrorname_np(number);
        if (candidate && strlen(candidate) == length && strncasecmp(candidate, name, length) == 0)
            return number;
    }
    return 0;
}

// Parses "point[:errno-name]@N[+]".
static zero_result parse_rule(struct rule *rule, const char *text, size_t length,
                              struct base_error *error)
{
    *rule = (struct rule){.errnum = 0};
    const char *const end = text + length;
    const char *at = memchr(text, '@', length);
    const char *colon = at ? memchr(text, ':', (size_t)(at - text)) : NULL;
    if (!at)
        return zero_fail(error, ZERO_E_INVALID, "fault '%.*s' has no '@' and number", (int)length,
                         text);

    const size_t name_length = (size_t)((colon ? colon : at) - text);
    if (name_length == 0 || name_length >= POINT_SIZE)
        return zero_fail(error, ZERO_E_INVALID, "fault '%.*s': a point has 1 to %d characters",
                         (int)length, text, POINT_SIZE - 1);
    memcpy(rule->point, text, name_length);
    if (colon) {
        rule->errnum = errno_by_name(colon + 1, (size_t)(at - colon - 1));
        if (rule->errnum == 0)
            return zero_fail(error, ZERO_E_INVALID, "fault '%.*s': unknown errno name", (int)length,
                             text);
    }

    const char *digit = at + 1;
    for (; digit < end && *digit >= '0' && *digit <= '9' && rule->wanted < UINT32_MAX; digit++)
        rule->wanted = rule->wanted * 10 + (uint64_t)(*digit - '0');
    rule->onwards = digit < end && *digit == '+';
    if (rule->wanted == 0 || digit + rule->onwards != end)
        return zero_fail(error, ZERO_E_INVALID, "fault '%.*s': after '@' stands N or N+, N from 1",
                         (int)length, text);
    return ZERO_OK;
}

static zero_result parse_rules(struct rules *rules, const char *spec, struct base_error *error)
{
    rules->count = 0;
    if (!spec || !*spec)
        return ZERO_OK;
    for (const char *item = spec;; item++) {
        const size_t length = strcspn(item, ",");
        if (rules->count == MAX_RULES)
            return zero_fail(error, ZERO_E_INVALID, "more than %d faults", MAX_RULES);
        const zero_result result = parse_rule(&rules->rule[rules->count++], item, length, error);
        if (result)
            return result;
        item += length;
        if (!*item)
            return ZERO_OK;
    }
}

static void activate(const struct rules *rules)
{
    pthread_mutex_lock(&mutex);
    active = *rules;
    fired = 0;
    atomic_store_explicit(&base_fault_state, rules->count > 0, memory_order_relaxed);
    pthread_mutex_unlock(&mutex);
}

static void read_environment(void)
{
    struct rules rules;
    if (parse_rules(&rules, getenv("ZERO_FAULT"), &environment_error) != ZERO_OK)
        rules.count = 0;
    activate(&rules);
}

zero_result base_fault_set(const char *spec, struct base_error *error)
{
    pthread_once(&environment_once, read_environment);
    struct rules rules;
    const zero_result result = parse_rules(&rules, spec, error);
    if (result == ZERO_OK)
        activate(&rules);
    return result;
}

zero_result base_fault_check_environment(struct base_error *error)
{
    pthread_once(&environment_once, read_environment);
    if (environment_error.result == ZERO_OK)
        return ZERO_OK;
    return zero_fail(error, environment_error.result, "ZERO_FAULT: %s", environment_error.message);
}

uint64_t base_fault_fired(void)
{
    pthread_mutex_lock(&mutex);
    const uint64_t count = fired;
    pthread_mutex_unlock(&mutex);
    return count;
}

static int default_errno(const char *point)
{
    if (strcmp(point, "alloc") == 0)
        return ENOMEM;
    if (strcmp(point, "thread") == 0)
        return EAGAIN;
    return EIO;
}

int base_fault_hit(const char *point)
{
    pthread_once(&environment_once, read_environment);
    int errnum = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < active.count; i++) {
        struct rule *rule = &active.rule[i];
        if (strcmp(rule->point, point) != 0)
            continue;
        rule->hits++;
        if (rule->hits == rule->wanted || (rule->onwards && rule->hits > rule->wanted))
            errnum = rule->errnum ? rule->errnum : default_errno(point);
    }
    fired += errnum != 0;
    pthread_mutex_unlock(&mutex);
    return errnum;
}
