// When a long wait is spoken of, and how the ranks that are missing are listed then.
#include "base/numbers.h"
#include "base/reminder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 4096 };

static void reminders_come_at_growing_intervals(void **state)
{
    (void)state;
    static const uint64_t due[] = {10, 30, 60, 120, 240, 480};
    struct base_reminder reminder = {.first_ns = 10};
    size_t count = 0;
    for (uint64_t waited = 0; waited < 600; waited++)
        if (base_reminder_due(&reminder, waited))
            assert_int_equal(waited, due[count++]);
    assert_int_equal(count, sizeof due / sizeof *due);
    // What a process has slept through is one reminder.
    struct base_reminder late = {.first_ns = 10};
    assert_true(base_reminder_due(&late, 100));
    assert_false(base_reminder_due(&late, 119));
    assert_true(base_reminder_due(&late, 120));
}

static void expect_list(const char *which, const char *text)
{
    struct base_numbers list = {.count = 0};
    for (int rank = 0; which[rank]; rank++)
        if (which[rank] == 'x')
            base_numbers_add(&list, rank);
    assert_string_equal(base_numbers_text(&list, "rank"), text);
}

static void numbers_are_listed_in_runs(void **state)
{
    (void)state;
    expect_list("...", "no rank");
    expect_list("..x", "rank 2");
    expect_list("xx.", "ranks 0, 1");
    expect_list(".xxxxx.x", "ranks 1-5, 7");
    expect_list(".x.xx.xxx", "ranks 1, 3, 4, 6-8");
    struct base_numbers back = {.count = 0};
    for (int rank = 5; rank > 2; rank--)
        base_numbers_add(&back, rank);
    assert_string_equal(base_numbers_text(&back, "rank"), "ranks 5, 4, 3");
    // All that fit, and how many more.
    struct base_numbers list = {.count = 0};
    int shown = 0, last = 0, more = 0;
    for (int rank = 1; rank < MOST; rank += 2)
        base_numbers_add(&list, rank);
    const char *text = base_numbers_text(&list, "rank");
    assert_true(strlen(text) < BASE_NUMBERS_BYTES && strncmp(text, "ranks 1, 3, 5,", 14) == 0);
    for (const char *comma = text; comma; comma = strchr(comma + 1, ','), shown++)
        if (*comma == ',')
            assert_int_equal(sscanf(comma, ", %d and %d more", &last, &more) > 0, 1);
    assert_int_equal(last, 2 * shown - 1);
    assert_int_equal(more, MOST / 2 - shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reminders_come_at_growing_intervals),
        cmocka_unit_test(numbers_are_listed_in_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
