// offload/direct_file.h: what is opened is used past the cache where that can be had, and says so.
#include "base/fault.h"
#include "base/file.h"
#include "offload/direct_file.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct temporary temporary;
static struct base_error failure;
static struct off_direct_file file = {.fd = -1};

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    off_direct_file_close(&file, NULL);
    temporary_remove(&temporary);
    return 0;
}

static zero_result open_with(const char *fault)
{
    off_direct_file_close(&file, NULL);
    assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
    const zero_result result =
        off_direct_file_open(&file, temporary_path(&temporary, "file"), O_CREAT, 0600, &failure);
    base_fault_set(NULL, NULL);
    return result;
}

static bool is_direct(void)
{
    return (fcntl(file.fd, F_GETFL) & O_DIRECT) != 0;
}

static void unit_and_flag_are_one(void **state)
{
    (void)state;
    char text[OFF_DIRECT_FILE_TEXT_BYTES], expected[OFF_DIRECT_FILE_TEXT_BYTES];
    assert_int_equal(open_with(NULL), ZERO_OK);
    assert_int_equal(is_direct(), file.unit > 1);
    if (!is_direct())
        return;
    assert_int_equal(file.unit, file.direct_unit);
    snprintf(expected, sizeof expected, "past the cache in units of %zu bytes", file.unit);
    assert_string_equal(off_direct_file_text(file.direct_unit, text), expected);
}

static void without_direct_it_is_told(void **state)
{
    (void)state;
    char text[OFF_DIRECT_FILE_TEXT_BYTES];
    assert_int_equal(open_with("file.direct:einval@1"), ZERO_OK);
    assert_false(is_direct());
    assert_int_equal(file.unit, 1);
    assert_string_equal(off_direct_file_text(file.direct_unit, text),
                        "through the cache: this file system has no O_DIRECT");
}

// Whatever asks for more than memory and files are cut for would be refused later, by EINVAL.
static void a_large_unit_is_left_alone(void **state)
{
    (void)state;
    char text[OFF_DIRECT_FILE_TEXT_BYTES];
    assert_int_equal(open_with("file.unit@1"), ZERO_OK);
    assert_false(is_direct());
    assert_int_equal(file.unit, 1);
    assert_int_equal(file.direct_unit, 2 * BASE_DIRECT_UNIT);
    assert_string_equal(off_direct_file_text(file.direct_unit, text),
                        "through the cache: O_DIRECT takes units of 8192 bytes here, more than "
                        "4096");
}

static void another_failure_is_one(void **state)
{
    (void)state;
    assert_int_equal(open_with("file.direct:eperm@1"), ZERO_E_IO);
    assert_non_null(strstr(failure.message, "/file: O_DIRECT: "));
    assert_int_equal(file.fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(unit_and_flag_are_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_direct_it_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_large_unit_is_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_failure_is_one, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_direct_file", tests, NULL, NULL);
}
