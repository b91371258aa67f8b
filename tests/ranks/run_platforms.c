// zero-run in the environments of platforms and launchers: what --explain says, and that it starts
// no ranks where a launcher has.
#include "tests/ranks/run_command.h"
#include "tests/unit/boot_sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void enter(const struct boot_set *set, struct boot_environment *made)
{
    boot_environment_make(made, set->variables, NULL);
    clearenv();
    setenv("PATH", "/usr/bin:/bin", 1);
    for (int i = 0; i < made->count; i++)
        putenv(made->list[i]);
}

static void expect(const struct boot_set *set, const struct run_command *run, const char *words)
{
    if (!strstr(run->out, words))
        fail_msg("%s: '%s' is not in:\n%s", set->name, words, run->out);
}

// Looks for "rank         5 of 8" and "host         1 of 2, ranks of each 4, ".
static void compare(const struct boot_set *set, const struct run_command *run)
{
    int number = 0, count = 0, ranks = 0;
    char words[128];
    if (sscanf(set->library, "rank %d of %d", &number, &count) == 2)
        snprintf(words, sizeof words, "rank         %d of %d\n", number, count);
    else
        snprintf(words, sizeof words, "%s", set->library + 2);
    expect(set, run, words);
    if (sscanf(set->zero_run, "host %d of %d, %d", &number, &count, &ranks) != 3)
        return;
    const int used =
        snprintf(words, sizeof words, "host         %d of %d, ranks of each ", number, count);
    snprintf(words + used, sizeof words - (size_t)used, ranks ? "%d, " : "left open, ", ranks);
    expect(set, run, words);
    expect(set, run, "host 0 is at port ");
}

static void every_platform_is_explained(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++) {
        struct boot_environment made;
        struct run_command run;
        if (boot_sets[i].given.hosts)
            continue;
        enter(&boot_sets[i], &made);
        RUN(&run, "--explain");
        assert_int_equal(run.status, 0);
        compare(&boot_sets[i], &run);
        run_command_free(&run);
    }
    clearenv();
}

static void no_ranks_are_started_by_a_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < boot_set_count; i++) {
        struct boot_environment made;
        struct run_command run;
        if (*boot_sets[i].zero_run != '!')
            continue;
        enter(&boot_sets[i], &made);
        RUN(&run, "-n", "2", "true");
        run_command_expect_line(&run, 69, boot_sets[i].zero_run + 2, NULL);
    }
    clearenv();
}

static void restarts_by_others_reach_the_ranks(void **state)
{
    (void)state;
    struct run_command run;
    setenv("PATH", "/usr/bin:/bin", 1);
    setenv("SLURM_RESTART_COUNT", "2", 1);
    setenv("ZERO_RESTARTS", "9", 1); // another job's
    RUN_SCRIPT(&run, "echo restarts $ZERO_RESTARTS; exit $((3 - ZERO_RESTARTS))", "-n", "1",
               "--max-restarts", "1", "--backoff", "0");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "restarts 2"), 1);
    assert_int_equal(run_command_lines(run.out, "restarts 3"), 1);
    run_command_free(&run);
    clearenv();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_platform_is_explained),
        cmocka_unit_test(no_ranks_are_started_by_a_rank),
        cmocka_unit_test(restarts_by_others_reach_the_ranks),
    };
    if (argc != 2)
        return 2;
    run_command_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
