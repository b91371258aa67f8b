// base/log.h: what passes, to whom, and how it looks.
#include "base/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct received {
    int count;
    zero_log_level level;
    char component[16];
    char message[2048];
};

static void receive(void *user, zero_log_level level, const char *component, const char *message)
{
    struct received *received = user;
    received->count++;
    received->level = level;
    snprintf(received->component, sizeof received->component, "%s", component);
    snprintf(received->message, sizeof received->message, "%s", message);
}

static void levels_filter(void **state)
{
    (void)state;
    struct received got = {0};
    struct base_log log = {.sink = receive, .user = &got, .level = ZERO_LOG_INFO};
    errno = EDOM;
    base_logf(&log, ZERO_LOG_WARN, "io", "%d of %d", 3, 4);
    assert_int_equal(errno, EDOM);
    assert_int_equal(got.count, 1);
    assert_int_equal(got.level, ZERO_LOG_WARN);
    assert_string_equal(got.component, "io");
    assert_string_equal(got.message, "3 of 4");
    base_logf(&log, ZERO_LOG_INFO, "io", "x");
    assert_int_equal(got.count, 2);
    base_logf(&log, ZERO_LOG_DEBUG, "io", "x");
    assert_int_equal(got.count, 2);

    log.component_level[BASE_LOG_COLL] = ZERO_LOG_DEBUG;
    log.component_level[BASE_LOG_CKPT] = -1;
    base_logf(&log, ZERO_LOG_DEBUG, "coll", "x");
    assert_int_equal(got.count, 3);
    base_logf(&log, ZERO_LOG_TRACE, "coll", "x");
    base_logf(&log, ZERO_LOG_DEBUG, "core", "x");
    base_logf(&log, ZERO_LOG_ERROR, "ckpt", "x");
    assert_int_equal(got.count, 3);
    base_logf(&log, ZERO_LOG_INFO, "a component nobody knows", "x");
    assert_int_equal(got.count, 4);

    log = (struct base_log){.sink = receive, .user = &got};
    base_logf(&log, ZERO_LOG_ERROR, "core", "x");
    log.level = -1;
    base_logf(&log, ZERO_LOG_ERROR, "core", "x");
    base_logf(NULL, ZERO_LOG_ERROR, "core", "x");
    assert_int_equal(got.count, 4);
}

static void other_ranks_only_warn(void **state)
{
    (void)state;
    struct received got = {0};
    const struct base_log log = {.sink = receive, .user = &got, .level = ZERO_LOG_TRACE, .rank = 2};
    base_logf(&log, ZERO_LOG_INFO, "core", "x");
    base_logf(&log, ZERO_LOG_TRACE, "core", "x");
    assert_int_equal(got.count, 0);
    base_logf(&log, ZERO_LOG_WARN, "core", "x");
    base_logf(&log, ZERO_LOG_ERROR, "core", "x");
    assert_int_equal(got.count, 2);
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    struct received got = {0};
    const struct base_log log = {.sink = receive, .user = &got, .level = ZERO_LOG_INFO};
    base_logf(&log, ZERO_LOG_INFO, "core", "%01500d", 7);
    assert_int_equal(strlen(got.message), 1023);
}

// What standard error gets while the log is used with the default sink.
static void capture(const struct base_log *log, const char *text, char *line, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    base_logf(log, ZERO_LOG_WARN, "run", "%s", text);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    close(ends[1]);
    const ssize_t length = read(ends[0], line, size - 1);
    close(ends[0]);
    assert_true(length >= 0);
    line[length] = '\0';
}

static void the_default_sink_writes_lines(void **state)
{
    (void)state;
    char line[2048];
    struct base_log log = {.level = ZERO_LOG_WARN, .rank = 3};
    capture(&log, "disk is slow", line, sizeof line);
    assert_string_equal(line, "zero[3] warn run: disk is slow\n");

    log.sink = base_log_default_sink;
    capture(&log, "again", line, sizeof line);
    assert_string_equal(line, "zero[3] warn run: again\n");

    char text[1024];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    capture(&log, text, line, sizeof line);
    assert_int_equal(strlen(line), strlen("zero[3] warn run: ") + 1023 + 1);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

static void texts_set_levels(void **state)
{
    (void)state;
    struct base_log log = {.level = ZERO_LOG_WARN};
    assert_int_equal(base_log_parse(&log, NULL, NULL), ZERO_OK);
    assert_int_equal(base_log_parse(&log, "", NULL), ZERO_OK);
    assert_int_equal(log.level, ZERO_LOG_WARN);
    assert_int_equal(base_log_parse(&log, "info,coll=debug,io=off", NULL), ZERO_OK);
    assert_int_equal(log.level, ZERO_LOG_INFO);
    assert_int_equal(log.component_level[BASE_LOG_COLL], ZERO_LOG_DEBUG);
    assert_true(log.component_level[BASE_LOG_IO] < 0);
    assert_int_equal(log.component_level[BASE_LOG_CORE], 0);
    assert_int_equal(base_log_parse(&log, "off", NULL), ZERO_OK);
    assert_false(base_log_passes(&log, ZERO_LOG_ERROR, "core"));
    assert_false(base_log_passes(&log, ZERO_LOG_ERROR, "io"));
    assert_true(base_log_passes(&log, ZERO_LOG_DEBUG, "coll"));

    static const char *const bad[] = {
        "loud",   "info,",      ",info",       "coll=",  "=info",           "col=info",
        "coll=x", "collx=info", "info coll=x", " info ", "trace,core=nope", "INFO",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct base_log before = log;
        struct base_error error = {.result = ZERO_OK};
        assert_int_equal(base_log_parse(&log, bad[i], &error), ZERO_E_INVALID);
        assert_memory_equal(&log, &before, sizeof log);
        assert_non_null(strstr(error.message, "unknown"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_filter),         cmocka_unit_test(other_ranks_only_warn),
        cmocka_unit_test(long_messages_are_cut), cmocka_unit_test(the_default_sink_writes_lines),
        cmocka_unit_test(texts_set_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
