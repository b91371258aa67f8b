// zero-ckpt export and import when a call of the system fails, whichever: what they say, and that
// nothing is left under a name but what was there, or all that was to be: ckpt_tool_failures
// <zero-ckpt>
#include "tests/unit/ckpt_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/** A point, and what the one who runs into it is told; NULL: nothing, all goes well. */
static const struct point {
    const char *name, *says;
} points[] = {
    {"io.open", "Input/output error"},
    {"io.read", "Input/output error"},
    {"io.write", "Input/output error"},
    {"io.write:enospc", "No space left on device"},
    {"io.truncate", "Input/output error"},
    {"io.fsync", "Input/output error"},
    {"io.fsync:enospc", "No space left on"},
    {"io.rename", "Input/output error"},
    {"io.close", "Input/output error"},
    {"io.list", "Input/output error"},
    {"io.lock", "Input/output error"},
    {"io.mkdir", "Input/output error"},
    {"io.read:eintr", NULL},
    {"io.write:eintr", NULL},
    {"io.short", NULL},
};

enum { POINTS = sizeof points / sizeof *points, IN_A_ROW = 3, MOST_CALLS = 500 };

/** Whether the failure has its file and errno in the message. What a manifest that can't be opened
 * leads to is told of the exchange with it: it counts as there, and was not. */
static bool is_said(const struct point *point)
{
    return point->says && strstr(tool_output, tool_temporary.directory) &&
           (strstr(tool_output, point->says) ||
            (strcmp(point->name, "io.open") == 0 && strstr(tool_output, "cannot exchange")));
}

/** The n-th of these calls fails in `command`. */
static int run_failing(const struct point *point, int n, const char *command)
{
    char fault[64];
    snprintf(fault, sizeof fault, "%s@%d", point->name, n);
    assert_int_equal(setenv("ZERO_FAULT", fault, 1), 0);
    const int status = tool_run(command);
    unsetenv("ZERO_FAULT");
    if (status != 0 && (status != 74 || !is_said(point)))
        fail_msg("%s, %s: status %d:\n%s", fault, command, status, tool_output);
    return status;
}

/** Each call fails once; then `check`, told whether the command has failed. Some failures harm
 * nothing, as those of what only cleans up: it is at its end when several in a row do not. */
static int sweep(const char *command, void (*check)(bool failed))
{
    int failures = 0;
    for (int p = 0; p < POINTS; p++)
        for (int n = 1, good = 0; good < (points[p].says ? IN_A_ROW : 2 * IN_A_ROW); n++) {
            const bool failed = run_failing(&points[p], n, command) != 0;
            assert_true(n < MOST_CALLS);
            good = failed ? 0 : good + 1;
            failures += failed;
            check(failed);
        }
    return failures;
}

/** The file is the old one or the new one, which are the same, and nothing is beside it. */
static void check_replaced(bool failed)
{
    (void)failed;
    assert_int_equal(system("cmp $T/good $T/f"), 0);
    assert_int_equal(temporary_entries(&tool_temporary), 3);
}

/** There is none after a failure, but for that of the last flush: then it is whole. */
static void check_new(bool failed)
{
    assert_true(failed || system("test -e $T/n") == 0);
    assert_int_equal(system("test ! -e $T/n || cmp $T/good $T/n && rm -f $T/n"), 0);
    assert_int_equal(temporary_entries(&tool_temporary), 3);
}

static void an_export_that_fails_leaves_no_half_file(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 2, NULL, 8);
    tool_expect(0, "export --state $D $T/good", "");
    tool_expect(0, "export --state $D $T/f", "");
    assert_true(sweep("export --state --force $D $T/f", check_replaced) > 20);
    assert_true(sweep("export --state $D $T/n", check_new) > 20);
}

/** What was there is, and what is new is whole if it is there. */
static void check_imported(bool failed)
{
    const bool there = system("test -e $T/b/step-00000050/manifest.json") == 0;
    assert_true(there || failed);
    tool_expect(0, "verify --all $T/b", there ? "step-00000050: whole" : "step-00000040: whole");
    assert_null(strstr(tool_output, "damaged"));
    assert_int_equal(system("test ! -e $T/b/saving-00000050 && rm -rf $T/b/step-00000050"), 0);
}

static void an_import_that_fails_leaves_no_half_checkpoint(void **state)
{
    (void)state;
    tool_save(tool_directory(), SAMPLE_SMALL, 50, 1, NULL, 8);
    tool_save(temporary_path(&tool_temporary, "b"), SAMPLE_SMALL, 40, 1, NULL, 8);
    tool_expect(0, "export --state $D $T/f", "");
    assert_true(sweep("import $T/f $T/b", check_imported) > 20);
    tool_expect(0, "import $T/f $T/b", "");
    assert_int_equal(tool_run("list $T/b | grep -q unfinished"), 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_export_that_fails_leaves_no_half_file, tool_set_up,
                                        tool_tear_down),
        cmocka_unit_test_setup_teardown(an_import_that_fails_leaves_no_half_checkpoint, tool_set_up,
                                        tool_tear_down),
    };
    if (argc != 2)
        return 2;
    tool_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
