// zero-run asks ranks to stop: all of them do after the same step, or they are signalled.
#include "base/clock.h"
#include "tests/ranks/run_command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *rank_path;

static const char listening[] = "listening\n"; // says rank 0

/** The step after which zero-run says that the ranks stopped; 0: it says no such thing. */
static unsigned long stopped_after(const struct run_command *run)
{
    static const char said[] = "zero-run: stopped on request after step ";
    const char *at = strstr(run->err, said);
    return at ? strtoul(at + sizeof said - 1, NULL, 10) : 0;
}

static void expect_stopped(const struct run_command *run, int world)
{
    const unsigned long step = stopped_after(run);
    if (run->status != 75 || step == 0)
        fail_msg("status %d: %s%s", run->status, run->out, run->err);
    for (int rank = 0; rank < world; rank++) {
        char line[64];
        if (world > 1)
            snprintf(line, sizeof line, "[%d] stopped after %lu", rank, step);
        else
            snprintf(line, sizeof line, "stopped after %lu", step);
        if (run_command_lines(run->out, line) != 1)
            fail_msg("no \"%s\": %s", line, run->out);
    }
}

static void ranks_stop_after_the_same_step(void **state)
{
    (void)state;
    static const char *const worlds[] = {"1", "2", "3"};
    static const char asked[] =
        "asking the ranks to stop after this step; in 30 s they get SIGTERM "
        "(once more kills them)";
    unsigned seed = 4711;
    for (int i = 0; i < 9; i++) {
        struct run_command run;
        RUN_START(&run, "-n", worlds[i % 3], "--", rank_path, "listen", "100000", "1");
        run_await_output(&run, listening);
        seed = seed * 1103515245 + 12345;
        usleep(seed >> 16 & 0x3fff);
        kill(run.pid, i % 2 ? SIGINT : SIGTERM);
        run_command_finish(&run);
        expect_stopped(&run, i % 3 + 1);
        assert_non_null(strstr(run.err, i % 2 ? "SIGINT: asking" : "SIGTERM: asking"));
        assert_non_null(strstr(run.err, asked));
        run_command_free(&run);
    }
}

// timeout(1) sends its signal twice: to its child, and to the process group. Here one waits for the
// thread and one for the process, because two that wait for the same are one to the kernel.
static void what_is_sent_twice_at_once_is_one_signal(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct run_command run;
        RUN_START(&run, "-n", "2", "--", rank_path, "listen", "100000", "1");
        run_await_output(&run, listening);
        kill(run.pid, SIGSTOP);
        kill(run.pid, SIGTERM);
        tgkill(run.pid, run.pid, SIGTERM);
        kill(run.pid, SIGCONT);
        run_command_finish(&run);
        expect_stopped(&run, 2);
        run_command_free(&run);
    }
}

// The program of a rank may ask by itself; zero-run need not know why.
static void a_rank_may_ask_itself(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "3", "--", rank_path, "own", "100");
    expect_stopped(&run, 3);
    assert_true(stopped_after(&run) == 3);
    run_command_free(&run);
}

/** Runs two ranks with a --timeout, which is returned: a longer one if they do not listen yet when
 * it is over. */
static int run_until_it_listens(struct run_command *run, const char *how, const char *grace)
{
    for (int seconds = 1;; seconds *= 2) {
        char timeout[16];
        snprintf(timeout, sizeof timeout, "%d", seconds);
        RUN(run, "-n", "2", "--timeout", timeout, "--grace", grace, "--", rank_path, how, "100000",
            "1");
        if (strstr(run->out, listening))
            return seconds;
        run_command_free(run);
    }
}

static void a_timeout_asks_first(void **state)
{
    (void)state;
    struct run_command run;
    char said[96];
    const int seconds = run_until_it_listens(&run, "listen", "30");
    expect_stopped(&run, 2);
    snprintf(said, sizeof said, "the job has run for %d s (--timeout): asking the ranks to",
             seconds);
    assert_non_null(strstr(run.err, said));
    run_command_free(&run);
    const int deaf = run_until_it_listens(&run, "deaf", "1");
    assert_int_equal(run.status, 75);
    assert_true(run.seconds > deaf + 0.9);
    assert_true(stopped_after(&run) == 0);
    assert_non_null(strstr(run.err, "the ranks have not stopped in 1 s (--grace): SIGTERM"));
    assert_null(strstr(run.err, "failed"));
    run_command_free(&run);
}

static void ranks_that_do_not_stop_are_signalled(void **state)
{
    (void)state;
    struct run_command run;
    char script[512];
    RUN_START(&run, "-n", "2", "--grace", "1", "--", rank_path, "deaf", "100000", "1");
    run_await_output(&run, listening);
    double asked = base_clock_s();
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_true(base_clock_s() - asked > 0.9);
    assert_int_equal(run.status, 143);
    assert_non_null(strstr(run.err, "the ranks have not stopped in 1 s (--grace): SIGTERM"));
    assert_non_null(strstr(run.err, "ended: signal SIGTERM, after zero-run had sent SIGTERM"));
    assert_null(strstr(run.err, "failed"));
    run_command_free(&run);

    // A shell that waits for the program changes nothing about that.
    snprintf(script, sizeof script, "%s deaf 100000 1; exit $?", rank_path);
    START_SCRIPT(&run, script, "-n", "2", "--grace", "1");
    run_await_output(&run, listening);
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 143);
    assert_true(stopped_after(&run) == 0);
    assert_null(strstr(run.err, "failed"));
    run_command_free(&run);

    // Killed, if they don't heed that either.
    snprintf(script, sizeof script, "trap '' TERM; exec %s deaf 100000 1", rank_path);
    START_SCRIPT(&run, script, "-n", "2", "--grace", "1");
    run_await_output(&run, listening);
    asked = base_clock_s();
    kill(run.pid, SIGINT);
    run_command_finish(&run);
    assert_true(base_clock_s() - asked > 1.9);
    assert_int_equal(run.status, 137);
    assert_null(strstr(run.err, "out of memory"));
    assert_null(strstr(run.err, "failed"));
    run_command_free(&run);
}

static double seconds_after_the_second_signal(void)
{
    struct run_command run;
    RUN_START(&run, "-n", "2", "--", rank_path, "deaf", "100000", "1");
    run_await_output(&run, listening);
    kill(run.pid, SIGTERM);
    usleep(100000);
    const double second = base_clock_s();
    kill(run.pid, SIGINT);
    run_command_finish(&run);
    const double seconds = base_clock_s() - second;
    assert_int_equal(run.status, 137);
    run_command_free(&run);
    return seconds;
}

static void the_second_signal_kills(void **state)
{
    (void)state;
    assert_true(run_fastest(seconds_after_the_second_signal, 1) < 1);
}

// Who does not listen, or gets no time, gets the signal at once.
static void others_are_signalled_at_once(void **state)
{
    (void)state;
    struct run_command run;
    RUN_START(&run, "-n", "2", "--grace", "0", "--", rank_path, "listen", "100000", "1");
    run_await_output(&run, listening);
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 143);
    assert_non_null(strstr(run.err, "SIGTERM: passed on to the ranks"));
    run_command_free(&run);
    START_SCRIPT(&run, "echo listening; exec sleep 30", "-n", "2");
    run_await_output(&run, listening);
    kill(run.pid, SIGTERM);
    run_command_finish(&run);
    assert_int_equal(run.status, 143);
    assert_non_null(strstr(run.err, "SIGTERM: passed on to the ranks"));
    run_command_free(&run);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    run_command_path = argv[1];
    rank_path = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_stop_after_the_same_step),
        cmocka_unit_test(what_is_sent_twice_at_once_is_one_signal),
        cmocka_unit_test(a_rank_may_ask_itself),
        cmocka_unit_test(a_timeout_asks_first),
        cmocka_unit_test(ranks_that_do_not_stop_are_signalled),
        cmocka_unit_test(the_second_signal_kills),
        cmocka_unit_test(others_are_signalled_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
