// zero-run starts a job again: after what, with how many ranks, how soon, and when not.
#include "tests/ranks/run_command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void expect_words(const struct run_command *run, int status, const char *words)
{
    if (run->status != status || !strstr(run->err, words))
        fail_msg("status %d, expected %d and \"%s\": %s", run->status, status, words, run->err);
}

static void a_failed_job_is_started_again(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "echo start $ZERO_RESTARTS of $WORLD_SIZE; case $ZERO_RESTARTS$RANK in "
               "01) kill -KILL $$;; 10) exit 1;; 22) exit 75;; 3*) exit 0;; esac; exec sleep 30",
               "-n", "3", "--max-restarts", "3", "--backoff", "0");
    assert_int_equal(run.status, 0);
    for (int start = 0; start < 4; start++)
        for (int rank = 0; rank < 3; rank++) {
            char line[64];
            snprintf(line, sizeof line, "[%d] start %d of 3", rank, start);
            // A rank that fails early may end others before they say a word.
            assert_true(run_command_lines(run.out, line) == 1 || start < 3);
        }
    static const char *const said[] = {
        "rank 1 (process ",        "failed first: signal SIGKILL",
        "restart 1 of 3, with 3",  "failed first: exit code 1;",
        "restart 2 of 3, with 3",  "failed first: exit code 75;",
        "restart 3 of 3, with 3",  "zero-run: 3 restarts, ",
        "| 1: rank 1: signal ",    "| 2: rank 0: exit code 1; then 3 ranks, ",
        "| 3: rank 2: exit code ",
    };
    const char *at = run.err;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        const char *found = strstr(at, said[i]);
        if (!found)
            fail_msg("no \"%s\" in: %s", said[i], run.err);
        at = found;
    }
    run_command_free(&run);
}

static void what_cannot_help_is_not_tried(void **state)
{
    (void)state;
    struct run_command run;
    static const int codes[] = {2, 64, 78, 126, 127};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char script[64], why[96];
        snprintf(script, sizeof script, "exit %d", codes[i]);
        snprintf(why, sizeof why,
                 "not started again: exit code %d says that it would end in the same way",
                 codes[i]);
        RUN_SCRIPT(&run, script, "-n", "1", "--max-restarts", "2");
        expect_words(&run, codes[i], why);
        assert_null(strstr(run.err, "restart 1"));
        run_command_free(&run);
    }
    RUN(&run, "--max-restarts", "2", "--", "/nowhere/program");
    run_command_expect_line(&run, 66, "cannot run '/nowhere/program'", NULL);
    // Success needs no restart.
    RUN_SCRIPT(&run, "exit 0", "-n", "2", "--max-restarts", "2");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "");
    run_command_free(&run);
}

static void the_last_failure_counts(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "exit $((3 + ZERO_RESTARTS))", "--max-restarts", "2", "--backoff", "0");
    expect_words(&run, 5, "not started again: all its restarts are used up");
    assert_non_null(strstr(run.err, "zero-run: 2 restarts, "));
    run_command_free(&run);
    RUN_SCRIPT(&run, "exit 3", "--max-restarts", "0");
    run_command_expect_line(&run, 3, "failed: exit code 3", NULL);
}

static void fewer_ranks_go_on(void **state)
{
    (void)state;
    struct run_command run;
    const char *script =
        "echo $RANK $LOCAL_RANK of $WORLD_SIZE, at first $ZERO_FIRST_WORLD > "
        "$D/w$ZERO_RESTARTS$RANK;"
        "case $ZERO_RESTARTS$RANK in 03|11|20) until [ -s $D/w${ZERO_RESTARTS}0 ] && "
        "[ -s $D/w${ZERO_RESTARTS}1 ]; do sleep 0.02; done; exit 9;; 3*) exit 0;; esac; "
        "exec sleep 30";
    RUN_SCRIPT(&run, script, "-n", "2:4", "--max-restarts", "3", "--backoff", "0");
    assert_int_equal(run.status, 0);
    static const int worlds[] = {4, 3, 2, 2};
    for (int start = 0; start < 4; start++)
        for (int rank = 0; rank < 2; rank++) {
            char name[8], text[64] = "", expected[64];
            snprintf(name, sizeof name, "w%d%d", start, rank);
            FILE *file = fopen(temporary_path(&run_directory, name), "r");
            assert_non_null(file);
            assert_non_null(fgets(text, sizeof text, file));
            fclose(file);
            snprintf(expected, sizeof expected, "%d %d of %d, at first 4\n", rank, rank,
                     worlds[start]);
            assert_string_equal(text, expected);
        }
    assert_non_null(strstr(run.err, "| 1: rank 3: exit code 9; then 3 ranks, "));
    run_command_free(&run);
    // By itself as often as a rank can be left out.
    RUN_SCRIPT(&run, "exit 9", "-n", "2:3");
    expect_words(&run, 9, "not started again: that was the one restart it had");
    assert_non_null(strstr(run.err, "restart 1 of 1, with 2 ranks\n"));
    run_command_free(&run);
}

static void a_job_that_does_not_get_on_waits(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "exit 9", "--max-restarts", "2", "--backoff", "1");
    expect_words(&run, 9, "restart 1 of 2, with 1 rank\n");
    assert_non_null(strstr(run.err, "restart 2 of 2, with 1 rank, in 1 s, as it does not get "
                                    "further\n"));
    assert_true(run.seconds > 0.9);
    run_command_free(&run);

    // A user who stops the job need not wait.
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        START_SCRIPT(&run, "exit 9", "--max-restarts", "2", "--backoff", "30");
        run_await_error(&run, ", in 30 s, ");
        kill(run.pid, signals[i]);
        run_command_finish(&run);
        expect_words(&run, 9, ": the job is not started again\nzero-run: 1 restart, ");
        run_command_free(&run);
    }
    RUN_SCRIPT(&run, "exit 9", "--max-restarts", "2", "--backoff", "30", "--timeout", "1");
    expect_words(&run, 75, "the job has run for 1 s (--timeout)\n");
    run_command_free(&run);
}

// Neither before the failure nor after it.
static void a_job_that_is_to_stop_stays_down(void **state)
{
    (void)state;
    struct run_command run;
    START_SCRIPT(&run, "trap 'exit 3' TERM; echo $$ > $D/s$RANK; while :; do sleep 0.02; done",
                 "-n", "2", "--max-restarts", "2");
    run_await_pid("s0");
    run_await_pid("s1");
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    expect_words(&run, 3, "not started again: the job was asked to stop");
    run_command_free(&run);

    // Rank 0 fails once rank 1 no longer hears a SIGTERM.
    START_SCRIPT(&run,
                 "[ $RANK = 0 ] && { until [ -s $D/t1 ]; do sleep 0.01; done; exit 4; }; "
                 "trap '' TERM; echo $$ > $D/t$RANK; while :; do sleep 0.02; done",
                 "-n", "2", "--max-restarts", "2");
    run_await_error(&run, "rank 0 (process ");
    kill(run.pid, SIGTERM);
    usleep(50000);
    kill(run.pid, SIGINT);
    run_command_finish(&run);
    expect_words(&run, 4, "not started again: the job was asked to stop");
    run_command_free(&run);
}

static void logs_go_on(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "echo start $ZERO_RESTARTS; exit $((9 * (1 - ZERO_RESTARTS)))", "-n", "1:2",
               "--log-dir", run_directory.directory, "--max-restarts", "1");
    assert_int_equal(run.status, 0);
    run_command_free(&run);
    char text[256] = "";
    FILE *log = fopen(temporary_path(&run_directory, "rank-0.log"), "r");
    assert_non_null(log);
    assert_true(fread(text, 1, sizeof text - 1, log) > 0);
    fclose(log);
    assert_non_null(strstr(text, "start 1\n"));
    assert_true(run_command_lines(text, "start 0") <= 1);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    run_command_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_job_is_started_again),
        cmocka_unit_test(what_cannot_help_is_not_tried),
        cmocka_unit_test(the_last_failure_counts),
        cmocka_unit_test(fewer_ranks_go_on),
        cmocka_unit_test(a_job_that_does_not_get_on_waits),
        cmocka_unit_test(a_job_that_is_to_stop_stays_down),
        cmocka_unit_test(logs_go_on),
    };
    return cmocka_run_group_tests(tests, run_make_directory, run_remove_directory);
}
