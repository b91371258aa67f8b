#include "base/fault.h"

#include <stdlib.h>

#ifdef ZERO_FAULT_POINTS

#include "base/clock.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 16, LARGEST_ERRNO = 133, LONGEST_DELAY_NS = 2000000 };

enum action { FAIL, KILL, STOP, EXIT, EXEC, DELAY, HANG, ACTIONS };

static const char *const action_names[ACTIONS] = {
    [KILL] = "kill", [STOP] = "stop",   [EXIT] = "exit",
    [EXEC] = "exec", [DELAY] = "delay", [HANG] = "hang",
};

struct rule {
    char point[BASE_FAULT_POINT_BYTES];
    enum action action;
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
static pthread_cond_t replaced = PTHREAD_COND_INITIALIZER;
static struct rules active;
static uint64_t replacements; // of them
static uint64_t fired;
static struct base_error environment_error;

static void (*told)(void *user);
static void *told_user;

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

// What stands behind the colon.
static bool parse_action(struct rule *rule, const char *name, size_t length)
{
    for (enum action action = KILL; action < ACTIONS; action++)
        if (strlen(action_names[action]) == length &&
            strncmp(action_names[action], name, length) == 0)
            rule->action = action;
    if (rule->action == FAIL)
        rule->errnum = errno_by_name(name, length);
    return rule->action != FAIL || rule->errnum != 0;
}

// Parses "point[:errno-name|:action]@N[+]".
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
    if (name_length == 0 || name_length >= BASE_FAULT_POINT_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "fault '%.*s': a point has 1 to %d characters",
                         (int)length, text, BASE_FAULT_POINT_BYTES - 1);
    memcpy(rule->point, text, name_length);
    if (colon && !parse_action(rule, colon + 1, (size_t)(at - colon - 1)))
        return zero_fail(error, ZERO_E_INVALID, "fault '%.*s': unknown errno name or action",
                         (int)length, text);

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
        assert(rules->count <= MAX_RULES);
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
    assert(rules->count >= 0 && rules->count <= MAX_RULES);
    pthread_mutex_lock(&mutex);
    active = *rules;
    replacements++;
    fired = 0;
    atomic_store_explicit(&base_fault_state, rules->count > 0, memory_order_relaxed);
    pthread_cond_broadcast(&replaced);
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

void base_fault_witness(void (*witness)(void *user), void *user)
{
    told = witness;
    told_user = user;
}

static bool matches(const struct rule *rule, const char *point)
{
    assert(*rule->point); // parse_rule() takes no empty one
    const size_t last = strlen(rule->point) - 1;
    return rule->point[last] == '*' ? strncmp(rule->point, point, last) == 0
                                    : strcmp(rule->point, point) == 0;
}

static void delay(const char *point, uint64_t hits)
{
    const uint64_t seed[] = {base_clock_ns(), (uint64_t)getpid(), hits};
    const uint64_t ns = base_hash64(seed, sizeof seed, base_hash64(point, strlen(point), 0));
    nanosleep(&(struct timespec){.tv_nsec = (long)(ns % LONGEST_DELAY_NS)}, NULL);
}

static void hang(uint64_t since)
{
    pthread_mutex_lock(&mutex);
    while (replacements == since)
        pthread_cond_wait(&replaced, &mutex);
    pthread_mutex_unlock(&mutex);
}

// Ends this process, or stops it.
static void end(enum action action)
{
    assert(action == KILL || action == STOP || action == EXIT || action == EXEC);
    if (told)
        told(told_user);
    switch (action) {
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        raise(SIGSTOP); // kill() would let this thread run on until another one has stopped it
        break;
    case EXEC:
        execl("/bin/sleep", "sleep", "60", (char *)NULL);
        _exit(127);
    default:
        _exit(0);
    }
}

int base_fault_hit(const char *point)
{
    pthread_once(&environment_once, read_environment);
    int errnum = 0;
    enum action action = FAIL;
    uint64_t hits = 0;
    pthread_mutex_lock(&mutex);
    const uint64_t since = replacements;
    for (int i = 0; i < active.count; i++) {
        struct rule *rule = &active.rule[i];
        if (!matches(rule, point))
            continue;
        hits = ++rule->hits;
        assert(rule->wanted > 0);
        if (hits != rule->wanted && (!rule->onwards || hits < rule->wanted))
            continue;
        action = rule->action;
        errnum = action != FAIL ? 0 : rule->errnum ? rule->errnum : default_errno(point);
    }
    fired += errnum != 0 || action != FAIL;
    pthread_mutex_unlock(&mutex);
    // Outside the lock: the other threads go on while this one sleeps.
    if (action == DELAY)
        delay(point, hits);
    else if (action == HANG)
        hang(since);
    else if (action != FAIL)
        end(action);
    return errnum;
}

#else

zero_result base_fault_check_environment(struct base_error *error)
{
    const char *given = getenv("ZERO_FAULT");
    if (!given || !*given)
        return ZERO_OK;
    return zero_fail(
        error, ZERO_E_UNSUPPORTED,
        "ZERO_FAULT is set to '%.100s', and this build has no fault points: unset it, or "
        "build with -DZERO_FAULT_POINTS=ON",
        given);
}

#endif
