// base/error.h: the first failure, on one line, with its numbers.
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void the_first_failure_is_kept(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(zero_fail(&error, ZERO_E_INVALID, "stage %d of %s", 7, "x"), ZERO_E_INVALID);
    assert_int_equal(error.result, ZERO_E_INVALID);
    assert_string_equal(error.message, "stage 7 of x");

    assert_int_equal(zero_fail(&error, ZERO_E_IO, "later"), ZERO_E_IO);
    assert_int_equal(zero_fail_errno(&error, ZERO_E_NOMEM, ENOMEM, "later"), ZERO_E_NOMEM);
    assert_int_equal(error.result, ZERO_E_INVALID);
    assert_string_equal(error.message, "stage 7 of x");

    base_error_clear(&error);
    assert_int_equal(error.result, ZERO_OK);
    assert_string_equal(error.message, "");
    zero_fail(&error, ZERO_E_IO, "new");
    assert_string_equal(error.message, "new");
}

static void errno_is_named_and_left_alone(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    errno = EAGAIN;
    zero_fail_errno(&error, ZERO_E_IO, ENOSPC, "writing '%s'", "f");
    assert_string_equal(error.message, "writing 'f': No space left on device (ENOSPC)");
    assert_int_equal(errno, EAGAIN);

    base_error_clear(&error);
    zero_fail_errno(&error, ZERO_E_IO, 9999, "x");
    assert_string_equal(error.message, "x: errno 9999");
}

static void limits_behind_an_errno_are_named(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit few = {.rlim_cur = 15, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    zero_fail_errno(&error, ZERO_E_IO, EMFILE, "x");
    setrlimit(RLIMIT_NOFILE, &before);
    assert_string_equal(error.message, "x: Too many open files (EMFILE): the limit is 15 open "
                                       "files; `ulimit -n` raises it");
    base_error_clear(&error);
    zero_fail_errno(&error, ZERO_E_IO, ENFILE, "x");
    assert_string_equal(error.message,
                        "x: Too many open files in system (ENFILE): the host's limit "
                        "of open files (the sysctl fs.file-max) is reached");
    base_error_clear(&error);
    // A file system has a limit of its own, which is none of the process's.
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    zero_fail_errno(&error, ZERO_E_IO, EFBIG, "x");
    if (before.rlim_cur == RLIM_INFINITY)
        assert_string_equal(error.message, "x: File too large (EFBIG)");
}

static void no_error_is_wanted(void **state)
{
    (void)state;
    assert_int_equal(zero_fail(NULL, ZERO_E_STATE, "%d", 1), ZERO_E_STATE);
    assert_int_equal(zero_fail_errno(NULL, ZERO_E_IO, EIO, "%d", 1), ZERO_E_IO);
    base_error_clear(NULL);
}

static void messages_are_one_line_that_fits(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    zero_fail(&error, ZERO_E_INVALID, "a\nb\tc\x7f\x1b[1m\xc3\xa9");
    assert_string_equal(error.message, "a?b?c??[1m\xc3\xa9");

    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    for (size_t length = sizeof error.message - 20; length < sizeof error.message + 20; length++) {
        base_error_clear(&error);
        zero_fail_errno(&error, ZERO_E_IO, EIO, "%.*s", (int)length, text);
        const size_t stored = length < sizeof error.message ? length : sizeof error.message - 1;
        assert_true(strlen(error.message) < sizeof error.message);
        assert_memory_equal(error.message, text, stored);
    }
}

static void every_result_has_a_text(void **state)
{
    (void)state;
#define CHECK_TEXT(name, value, text) assert_string_equal(base_result_text(name), text);
    ZERO_RESULT_LIST(CHECK_TEXT)
#undef CHECK_TEXT
    assert_string_equal(base_result_text((zero_result)-99), "unknown result");
}

static void only_failures_are_failures(void **state)
{
    (void)state;
#define NAME(name, value, text) name,
    static const zero_result all[] = {ZERO_RESULT_LIST(NAME)};
#undef NAME
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(base_failure_of(all[i], ZERO_E_PEER), all[i] < 0 ? all[i] : ZERO_E_PEER);
    assert_int_equal(base_failure_of(ZERO_E_ABORTED - 1, ZERO_E_PEER), ZERO_E_PEER);
    assert_int_equal(base_failure_of(INT32_MIN, ZERO_OK), ZERO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_failure_is_kept),
        cmocka_unit_test(errno_is_named_and_left_alone),
        cmocka_unit_test(limits_behind_an_errno_are_named),
        cmocka_unit_test(no_error_is_wanted),
        cmocka_unit_test(messages_are_one_line_that_fits),
        cmocka_unit_test(every_result_has_a_text),
        cmocka_unit_test(only_failures_are_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
